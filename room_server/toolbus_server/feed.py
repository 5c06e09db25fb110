"""News of a room for those who subscribed: numbered, coalesced, and only of what each can see.

Changes of toolkits and participants that come within a few milliseconds are told as one, so that a
host that flaps costs its watchers no more than one that does not. Messages are told at once, and
who has no room for one does not get it. The numbers count what a connection was sent; they have no
holes that would betray what is hidden. What becomes of calls is collected in `call_watch`; who
has not taken the last of that yet misses the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Raw, Struct

from toolbus.grants import ApiScope
from toolbus.wire import Event, encode
from toolbus_server.call_watch import CallCounts, CallWatch
from toolbus_server.room_state import Change
from toolbus_server.room_view import Member, Toolkit
from toolbus_server.rounds import Rounds
from toolbus_server.routing import Room, Seat

__all__ = ["TOPICS", "TOPIC_GRANTS", "Feed", "Feeds", "participant_summary", "toolkit_summary"]

_logger = logging.getLogger(__name__)
COALESCE_S = 0.02
"""How long news is held back at least, to be told together (PROTOCOL.md, EVENT-3)."""
TOPICS: dict[str, Callable[[ApiScope], bool]] = {
    "toolkits": lambda scope: scope.agents.use_tools,
    "participants": lambda scope: scope.presence,
    "messages": lambda scope: scope.messaging,
    "calls": lambda scope: scope.observe,
}
"""What can be subscribed to, and whether a participant's grants cover it."""
TOPIC_GRANTS = {
    "toolkits": "agents.use_tools",
    "participants": "presence",
    "messages": "messaging",
    "calls": "observe",
}
"""The names of the grants that cover them."""
# Names have up to 64 bytes, and an event is all header, which has at most 64 KiB.
_MAX_TOOLS = 512


def toolkit_summary(toolkit: Toolkit, seat: Seat) -> dict[str, Any]:
    """Tell what lists and events say of a toolkit: everything but its schemas."""
    manifest = toolkit.serving.definition.manifest
    return {
        "name": toolkit.name,
        "title": manifest.title,
        "description": manifest.description[:500],
        "version": manifest.version,
        "digest": toolkit.serving.definition.digest,
        "public": toolkit.public,
        "owner": {"name": toolkit.owner.name, "issuer": toolkit.owner.issuer},
        "hosts": len(toolkit.serving.hosts),
        "tools": [tool.name for tool in toolkit.tools_seen_by(seat.member)],
    }


def participant_summary(member: Member) -> dict[str, Any]:
    """Tell what lists and events say of a participant."""
    return {
        "id": member.id,
        "name": member.identity.name,
        "role": member.role,
        "issuer": member.identity.issuer,
        "attributes": member.attributes,
        "since": member.since,
    }


def _news_of_participant(member: Member) -> dict[str, Any]:
    summary = participant_summary(member)
    return summary if member.is_there else summary | {"attributes": {}}


def _news_of_toolkit(toolkit: Toolkit, seat: Seat) -> dict[str, Any]:
    summary = toolkit_summary(toolkit, seat)
    return summary | {"tools": summary["tools"][:_MAX_TOOLS]}


def _end_of_toolkit(toolkit: Toolkit, seat: Seat) -> dict[str, Any]:
    # What it said of itself last may be others' alone, and whether it goes on for them too.
    hidden = {"title": "", "description": "", "version": "", "digest": "", "tools": [], "hosts": 0}
    return toolkit_summary(toolkit, seat) | hidden


class _Ticket(Struct, eq=False):
    """What may be refused carries this; it is never taken back."""

    written: bool = False
    ended: bool = False


class Feed:
    """What one subscriber is yet to be told.

    Args:
        seat: The subscriber.
        loop: For the timer that ends the waiting.
        rounds: Where it then takes its turn.
    """

    __slots__ = (
        "_counts",
        "_in_flight",
        "_loop",
        "_number",
        "_people",
        "_rounds",
        "_seat",
        "_shown",
        "_ticket",
        "_timer",
        "_toolkits",
        "_topics",
    )

    def __init__(self, seat: Seat, loop: asyncio.AbstractEventLoop, rounds: Rounds) -> None:
        self._seat = seat
        self._loop = loop
        self._rounds = rounds
        self._number = 0
        self._topics: frozenset[str] = frozenset()
        self._toolkits: dict[Toolkit, None] = {}
        self._shown: set[Toolkit] = set()
        self._people: dict[Member, bool] = {}
        """Whom there is news of, and whether they were there when it began to be held back."""
        self._timer: asyncio.TimerHandle | None = None
        """Set until all of that is told that was due when it ended."""
        self._counts: CallCounts | None = None
        """Of calls, as the subscriber was told last, or as they were when it came."""
        self._in_flight = 0
        """How many calls were in flight when it was told last."""
        self._ticket: _Ticket | None = None
        """Of what it was last told of calls."""

    @property
    def member(self) -> Member:
        """Who is told."""
        return self._seat.member

    def begin(self, topics: Iterable[str], visible: Iterable[Toolkit]) -> None:
        """Tell of these topics from now on.

        Args:
            topics: What the subscriber asked for and may hear of.
            visible: The toolkits that it can list already.
        """
        self._topics = frozenset(topics)
        self._shown = set(visible)

    def hears(self, topic: str) -> bool:
        """Whether the subscriber is told of a topic."""
        return topic in self._topics

    def regrant(self, visible: Iterable[Toolkit]) -> None:
        """Tell of what the subscriber's new grants cover, and no longer of anything else.

        Args:
            visible: The toolkits that it can list now.
        """
        scope = self._seat.member.scope
        self._topics = frozenset(topic for topic in self._topics if TOPICS[topic](scope))
        if "participants" not in self._topics:
            self._people.clear()
        if "toolkits" not in self._topics:
            self._toolkits.clear()
        elif changed := self._shown.symmetric_difference(visible):
            self._toolkits |= dict.fromkeys(changed)
            self._wait()

    def tell(self, change: Change) -> None:
        """Note a change of a toolkit; it is told in 20 ms or so, together with others."""
        if "toolkits" in self._topics:
            self._toolkits[change.toolkit] = None
            self._wait()

    def tell_of(self, member: Member, *, was_there: bool) -> None:
        """Note that a participant came, changed or went; it is told together with others."""
        if "participants" in self._topics:
            self._people.setdefault(member, was_there)
            self._wait()

    def offer(self, message: dict[str, Any]) -> bool:
        """Tell of a message at once; return whether the subscriber wanted it and had room."""
        if "messages" not in self._topics:
            return False
        data = encode(Event(self._number + 1, "message", message))
        if not self._seat.port.offer_message(data, _Ticket()):
            return False
        self._number += 1
        return True

    def watch_from(self, counts: CallCounts) -> None:
        """Tell of calls that come or end from now on, when so many have."""
        self._counts = counts

    def tell_of_calls(self, watch: CallWatch) -> bool:
        """Tell what has become of calls, unless the last such news has not gone out yet.

        Returns:
            Whether the subscriber now knows how things stand.
        """
        known, last = self._counts, self._ticket
        is_so = (watch.counts, watch.in_flight) == (known, self._in_flight)
        if known is None or (last is not None and is_so):
            return True
        if last is not None and not last.written:
            return False
        ticket = _Ticket()
        data = encode(Event(self._number + 1, "calls", watch.news(known)))
        if not self._seat.port.offer_message(data, ticket):
            return False
        self._number += 1
        self._counts, self._in_flight, self._ticket = watch.counts, watch.in_flight, ticket
        return True

    def close(self) -> None:
        """Stop telling."""
        self._people.clear()
        self._toolkits.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE_S, self._fall_due)

    def _fall_due(self) -> None:
        self._rounds.add(self._flush())

    def _flush(self) -> Iterator[None]:
        """Tell what has waited, one thing with each step."""
        try:
            yield from self._tell_all()
        except Exception:
            _logger.exception("%r could not be told of its room", self._seat.member.identity.name)
        self._timer = None
        if self._people or self._toolkits:
            self._wait()

    def _tell_all(self) -> Iterator[None]:
        # Between two steps things change: what is not told yet is told as it then is.
        for member in list(self._people):
            was_there = self._people.pop(member, None)
            if was_there is not None:
                self._flush_participant(member, was_there)
                yield
        for toolkit in list(self._toolkits):
            if toolkit in self._toolkits:
                del self._toolkits[toolkit]
                self._flush_toolkit(toolkit)
                yield

    def _flush_participant(self, member: Member, was_there: bool) -> None:
        if member.is_there:
            name = "participant_changed" if was_there else "participant_joined"
        elif was_there:
            name = "participant_left"
        else:
            return
        summary = self._rounds.packed(member, None, lambda: _news_of_participant(member))
        self._send(name, {"participant": summary})

    def _flush_toolkit(self, toolkit: Toolkit) -> None:
        is_there = toolkit.is_there and toolkit.is_listed_for(self._seat.member)
        was_there = toolkit in self._shown
        if not is_there and not was_there:
            return
        if is_there:
            self._shown.add(toolkit)
            name = "toolkit_changed" if was_there else "toolkit_added"
        else:
            self._shown.discard(toolkit)
            name = "toolkit_removed"
        self._send(name, {"toolkit": self._news_of_toolkit(toolkit, is_there)})

    def _news_of_toolkit(self, toolkit: Toolkit, is_there: bool) -> Raw:
        """Pack what all are told alike who have the same rights: these decide which tools."""
        if not is_there:
            return self._rounds.packed(toolkit, None, lambda: _end_of_toolkit(toolkit, self._seat))
        rights = self._seat.member.rights
        return self._rounds.packed(toolkit, rights, lambda: _news_of_toolkit(toolkit, self._seat))

    def _send(self, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._seat.port.send_message(encode(Event(self._number, name, data)))


class Feeds:
    """The subscribers of one room.

    Args:
        room: The room, whose calls are followed while one of them watches those.
        loop: For the clock and the timer of that.
        rounds: Keeps what is packed for all of them.
    """

    def __init__(self, room: Room, loop: asyncio.AbstractEventLoop, rounds: Rounds) -> None:
        self._rounds = rounds
        self._state = room.state
        self._feeds: dict[str, Feed] = {}
        self._watchers: dict[str, Feed] = {}
        """Those who are told of calls."""
        self.calls: CallWatch = CallWatch(room, loop, self._tell_of_calls)
        """What becomes of the room's calls."""

    def add(self, member: Member, feed: Feed) -> None:
        """Let a participant hear of things from now on, instead of what it heard before."""
        if member.id in self._feeds:
            self._feeds[member.id].close()
        self._feeds[member.id] = feed
        if not feed.hears("calls"):
            self._stop_watching(member)
            return
        self.calls.begin()  # or go on: other nodes report to the watch that they know
        feed.watch_from(self.calls.counts)
        self._watchers[member.id] = feed
        member.watches = self.calls.number

    def forget(self, member: Member) -> None:
        """Drop the subscription of a participant, if it has one."""
        feed = self._feeds.pop(member.id, None)
        if feed is not None:
            feed.close()
            self._stop_watching(member)

    def regrant(self, member: Member, visible: Iterable[Toolkit]) -> None:
        """Let a participant hear of what its new grants cover: of the toolkits, those `visible`."""
        feed = self._feeds.get(member.id)
        if feed is not None:
            feed.regrant(visible)
            if not feed.hears("calls"):
                self._stop_watching(member)

    def _stop_watching(self, member: Member) -> None:
        member.watches = 0
        if self._watchers.pop(member.id, None) is not None and not self._watchers:
            self.calls.end()

    def _tell_of_calls(self) -> bool:
        told = [feed.tell_of_calls(self.calls) for feed in self._watchers.values()]
        return all(told)

    def publish(self, changes: Iterable[Change]) -> None:
        """Tell of toolkits to everyone who can see them."""
        for change in changes:
            self._rounds.forget(change.toolkit)
            for feed in self._feeds.values():
                feed.tell(change)

    def announce(self, member: Member, *, was_there: bool) -> None:
        """Tell that a participant came, changed or went: what it is now is told."""
        self._rounds.forget(member)
        for feed in self._feeds.values():
            feed.tell_of(member, was_there=was_there)

    def deliver(self, message: dict[str, Any], receivers: Iterable[Member]) -> int:
        """Hand a message to those of the receivers who listen; return how many took it."""
        told = (each for each in receivers if not self._state.is_told_elsewhere(each))
        feeds = (self._feeds.get(member.id) for member in told)
        return sum(feed.offer(message) for feed in feeds if feed is not None)

    def deliver_to_others(self, message: dict[str, Any], sender: Member) -> int:
        """Hand a message to all who listen but the sender; return how many took it."""
        others = [feed.member for key, feed in self._feeds.items() if key != sender.id]
        return self.deliver(message, others)
