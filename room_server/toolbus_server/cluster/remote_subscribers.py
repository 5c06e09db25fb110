"""Subscribers at other nodes: to messages, and to reports of a room's calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus.wire import unpack_body
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.cluster.remote_participants import RemoteParticipant
from toolbus_server.registry.models import (
    Identity,
    Participant,
    name_between,
    read_name_between,
)
from toolbus_server.rooms.hub import OpenRoom
from toolbus_server.rooms.scheduling import Ended, Lane

__all__ = ["RemoteSubscribers", "SubscriberChannel"]


_logger = bounded_logger(__name__)


class SubscriberChannel(Protocol):
    """Sends to other nodes."""

    def send_message(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to participants at a node, named by `name_between`, or to all."""

    def send_report(self, node: str, room: str, report: NodeCallReport) -> bool:
        """Send a report of calls; return False if the node is unreachable or full."""


class RemoteSubscribers:
    """Sends messages and reports of one room to other nodes, and receives theirs.

    Args:
        room: The room at this node.
        remote: Its remote participants, by slot.
        channel: Sends to other nodes.
    """

    def __init__(
        self, room: OpenRoom, remote: Mapping[bytes, RemoteParticipant], channel: SubscriberChannel
    ) -> None:
        self._open = room
        self._name = room.routed.state.name
        self._remote = remote
        self._channel = channel
        self._messages = Lane(room.feeds.scheduler)
        """Messages of remote participants, delivered one after another."""
        self._monitors: dict[str, dict[str, int]] = {}
        """By node, the participants that monitor calls, with the node's number of that monitor."""

    # Messages

    def send(self, to: Identity | None, message: dict[str, Any], sender: Identity) -> int:
        """Send a message to remote participants, or to all; return how many listen."""
        listeners = [
            remote
            for remote in self._remote.values()
            if remote.participant.receives_messages and to in (None, remote.participant.identity)
            if not self._open.routed.state.has_moved(remote.participant)
        ]
        name = None if to is None else name_between(to, sender.issuer)
        for node in {remote.node for remote in listeners}:
            self._channel.send_message(node, self._name, name, message)
        return len(listeners)

    def deliver(self, to: str | None, message: dict[str, Any]) -> None:
        """Deliver a message of a remote participant to its receivers at this node."""
        if to is None:
            local = [session.connection.participant for session in self._open.sessions.values()]
        else:
            *_, issuer = unpack_body(message["from"])[:4]
            named = self._open.routed.state.participants_of(read_name_between(to, issuer))
            local = [participant for participant in named if not participant.is_remote]
        size = len(message.get("body", b""))
        if self._messages.accepts(size):  # else it is dropped, as for a receiver that is behind
            self._messages.run(self._open.feeds.deliver(message, local), _log_bug, size)

    # Calls

    def update(self, node: str, participant: Participant) -> None:
        """Record whether a participant, which was added, changed or removed, monitors calls."""
        monitors = self._monitors.get(node, {})
        number = participant.monitor_id if participant.is_present else 0
        if number == monitors.get(participant.id, 0):
            return
        before = max(monitors.values(), default=0)
        if number:
            self._monitors.setdefault(node, monitors)[participant.id] = number
        else:
            del monitors[participant.id]
        self._start_or_stop(node, before, number)

    def _start_or_stop(self, node: str, before: int, number: int) -> None:
        """Report to a node while it has a monitor, from the start for each new monitor."""
        calls = self._open.feeds.monitor
        monitors = self._monitors[node]
        if not monitors:
            del self._monitors[node]
            calls.stop_reports(node)
        elif number and number != before:
            send = partial(self._channel.send_report, node, self._name)
            calls.start_reports(node, number, send)

    def resend_report(self, node: str | None = None) -> None:
        """Report again to a node, or to all with a monitor: a report may have been lost."""
        self._open.feeds.monitor.resend_report(node)

    def receive_report(self, node: str, report: NodeCallReport) -> None:
        """Record the calls of participants at another node."""
        self._open.feeds.monitor.receive_report(node, report)

    def remove_node(self, node: str) -> None:
        """Remove the reports of a node that has ended."""
        self._open.feeds.monitor.forget_node(node)

    def close(self) -> None:
        """Send the last reports: the room has been closed at this node."""
        self._monitors.clear()
        self._open.feeds.monitor.finish_reports()


def _log_bug(delivery: Ended) -> None:
    if delivery.error is not None:
        _logger.error("a message could not be delivered", exc_info=delivery.error)
