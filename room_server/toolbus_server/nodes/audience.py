"""Those at other nodes who only listen: to messages, and to what becomes of a room's calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from toolbus_server.call_watch import CallReport
from toolbus_server.hub import OpenRoom
from toolbus_server.nodes.far_members import Far
from toolbus_server.room_view import Member

__all__ = ["Audience", "Post"]


class Post(Protocol):
    """The way to other nodes."""

    def say(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to the participants of a name there, or to all."""

    def report(self, node: str, room: str, report: CallReport) -> bool:
        """Send what has become of calls; return whether there was a way and room."""


class Audience:
    """Who is told what in one room, at other nodes and by them.

    Args:
        room: The room here.
        far: Its participants at other nodes.
        post: The way there.
    """

    def __init__(self, room: OpenRoom, far: Mapping[bytes, Far], post: Post) -> None:
        self._open = room
        self._name = room.room.state.name
        self._far = far
        self._post = post
        self._watching: dict[str, dict[str, int]] = {}
        """Who watches calls at which node, and by which number that node knows its watch."""

    # Messages

    def say(self, to: str | None, message: dict[str, Any]) -> int:
        """Send a message to those of a name at other nodes, or to all; return how many listen."""
        listeners = [
            far
            for far in self._far.values()
            if far.member.listens and to in (None, far.member.identity.name)
            if not self._open.room.state.is_told_elsewhere(far.member)
        ]
        for node in {far.node for far in listeners}:
            self._post.say(node, self._name, to, message)
        return len(listeners)

    def take_message(self, to: str | None, message: dict[str, Any]) -> None:
        """Hand a message of a participant elsewhere to those here whom it is for."""
        seats = (occupant.seat.member for occupant in self._open.occupants.values())
        named = [member for member in seats if to in (None, member.identity.name)]
        self._open.feeds.deliver(message, named)

    # Calls

    def note(self, node: str, member: Member) -> None:
        """Learn that a participant there came, changed or went: whether its node watches calls."""
        watching = self._watching.get(node, {})
        number = member.watches if member.is_there else 0
        if number == watching.get(member.id, 0):
            return
        before = max(watching.values(), default=0)
        if number:
            self._watching.setdefault(node, watching)[member.id] = number
        else:
            del watching[member.id]
        self._settle(node, before, number)

    def _settle(self, node: str, before: int, number: int) -> None:
        """Report to a node as long as somebody watches there, and anew for each of its watches."""
        calls = self._open.feeds.calls
        watching = self._watching[node]
        if not watching:
            del self._watching[node]
            calls.report_no_more(node)
        elif number and number != before:
            send = partial(self._post.report, node, self._name)
            calls.report_to(node, number, send)

    def report_anew(self, node: str | None = None) -> None:
        """Report once more to a node, or to all that watch: a report may have been lost."""
        self._open.feeds.calls.report_anew(node)

    def take_report(self, node: str, report: CallReport) -> None:
        """Take what has become of the calls that participants of another node make."""
        self._open.feeds.calls.take_report(node, report)

    def forget_node(self, node: str) -> None:
        """Hear nothing more from a node that has ended."""
        self._open.feeds.calls.forget_node(node)

    def close(self) -> None:
        """Tell for the last time: the room has ended here."""
        self._watching.clear()
        self._open.feeds.calls.end_reports()
