"""Sends a room's events to its subscribers: numbered, coalesced, and only what each one can see.

Changes of toolkits and participants within a few milliseconds become one event each, so a host that
reconnects many times costs its subscribers no more than one that does not. Messages are sent at
once; a subscriber whose send queue is full does not get them. Events are numbered by subscription,
without gaps, so that the numbers reveal nothing hidden. Counts and records of calls come from
`call_statistics`; a subscriber that has not received the last event about calls skips the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Raw, Struct

from toolbus.auth.grants import ApiScope
from toolbus.bounded_logging import bounded_logger
from toolbus.wire import Event, encode
from toolbus_server.calls.call_statistics import CallCounts, RoomCallMonitor
from toolbus_server.calls.router import Connection, RoutedRoom
from toolbus_server.registry.generations import Generation
from toolbus_server.registry.models import Participant, RegisteredToolkit
from toolbus_server.registry.room_state import ToolkitChange
from toolbus_server.rooms.fair_scheduler import FairScheduler
from toolbus_server.rooms.serving_notices import definition_summary, notify_hosts

__all__ = [
    "TOPICS",
    "TOPIC_GRANTS",
    "EventFeed",
    "EventFeeds",
    "participant_summary",
    "toolkit_summary",
]

_logger = bounded_logger(__name__)
COALESCE_S = 0.02
"""How long changes are collected at least before they are sent (PROTOCOL.md, EVENT-3)."""
TOPICS: dict[str, Callable[[ApiScope], bool]] = {
    "toolkits": lambda scope: scope.agents.use_tools,
    "participants": lambda scope: scope.presence,
    "messages": lambda scope: scope.messaging,
    "calls": lambda scope: scope.observe,
}
"""The topics of subscriptions, and whether a scope covers each of them."""
TOPIC_GRANTS = {
    "toolkits": "agents.use_tools",
    "participants": "presence",
    "messages": "messaging",
    "calls": "observe",
}
"""The names of the grants that cover the topics."""
# Names have up to 64 bytes, and an event is all header, which has at most 64 KiB.
_MAX_TOOLS = 512
_MAX_RESERVE = 16


def toolkit_summary(toolkit: RegisteredToolkit, connection: Connection) -> dict[str, Any]:
    """Describe a toolkit for lists and events: everything but its schemas."""
    manifest = toolkit.serving.definition.manifest
    summary = {
        "name": toolkit.name,
        "title": manifest.title,
        "description": manifest.description[:500],
        "version": manifest.version,
        "digest": toolkit.serving.definition.digest,
        "public": toolkit.public,
        "owner": {"name": toolkit.owner.name, "issuer": toolkit.owner.issuer},
        "hosts": len(toolkit.serving.hosts),
        "tools": [tool.name for tool in toolkit.tools_seen_by(connection.participant)],
    }
    if reserve := _reserve_seen_by(toolkit, connection.participant):
        summary["reserve"] = [_reserve_summary(each) for each in reserve]
    return summary


def _reserve_seen_by(toolkit: RegisteredToolkit, participant: Participant) -> list[Generation]:
    reserve = toolkit.reserve[:_MAX_RESERVE]
    return [each for each in reserve if toolkit.is_listed_for(participant, each)]


def _reserve_summary(generation: Generation) -> dict[str, Any]:
    last_call = None
    if generation.last_call_at is not None:
        age_s = asyncio.get_running_loop().time() - generation.last_call_at
        last_call = int((time.time() - age_s) * 1000)
    hosts = len(generation.hosts)
    return {**definition_summary(generation), "hosts": hosts, "last_call": last_call}


def participant_summary(participant: Participant) -> dict[str, Any]:
    """Describe a participant for lists and events."""
    return {
        "id": participant.id,
        "name": participant.identity.name,
        "role": participant.role,
        "issuer": participant.identity.issuer,
        "attributes": participant.attributes,
        "since": participant.since,
    }


def _participant_event(participant: Participant) -> dict[str, Any]:
    summary = participant_summary(participant)
    return summary if participant.is_present else summary | {"attributes": {}}


def _toolkit_event(toolkit: RegisteredToolkit, connection: Connection) -> dict[str, Any]:
    summary = toolkit_summary(toolkit, connection)
    return summary | {"tools": summary["tools"][:_MAX_TOOLS]}


def _removed_toolkit_event(toolkit: RegisteredToolkit, connection: Connection) -> dict[str, Any]:
    # Its last definition, and whether it still exists for others, may be hidden from this one.
    hidden = {"title": "", "description": "", "version": "", "digest": "", "tools": [], "hosts": 0}
    summary = toolkit_summary(toolkit, connection) | hidden
    summary.pop("reserve", None)
    return summary


class _Ticket(Struct, eq=False):
    """The ticket of an event that may be refused; it is never taken back."""

    written: bool = False
    ended: bool = False


class EventFeed:
    """The events that one subscriber is still to be sent.

    Args:
        connection: The subscriber's.
        loop: For the timer that coalesces changes.
        scheduler: Runs the sending, in turn with the other feeds.
    """

    __slots__ = (
        "_calls_ticket",
        "_connection",
        "_counts",
        "_in_flight",
        "_loop",
        "_number",
        "_participants",
        "_scheduler",
        "_shown",
        "_timer",
        "_toolkits",
        "_topics",
    )

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, scheduler: FairScheduler
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._scheduler = scheduler
        self._number = 0
        self._topics: frozenset[str] = frozenset()
        self._toolkits: dict[RegisteredToolkit, Generation | None] = {}
        """Toolkits that changed, with the generation that served before if it is in reserve now."""
        self._shown: set[RegisteredToolkit] = set()
        self._participants: dict[Participant, bool] = {}
        """Participants that changed, and whether they were present before the first change."""
        self._timer: asyncio.TimerHandle | None = None
        """Set until everything that was due when it fired is sent."""
        self._counts: CallCounts | None = None
        """The counts of calls that were sent last, or those at the time of subscribing."""
        self._in_flight = 0
        """The number of calls in flight that was sent last."""
        self._calls_ticket: _Ticket | None = None
        """The ticket of the last event about calls."""

    @property
    def participant(self) -> Participant:
        """The subscriber."""
        return self._connection.participant

    def start(self, topics: Iterable[str], visible: Iterable[RegisteredToolkit]) -> None:
        """Send the events of these topics from now on.

        Args:
            topics: Those that the subscriber asked for and has the grants for.
            visible: The toolkits that it can list already.
        """
        self._topics = frozenset(topics)
        self._shown = set(visible)

    def includes(self, topic: str) -> bool:
        """Whether the subscriber has subscribed to a topic."""
        return topic in self._topics

    def update_grants(self, visible: Iterable[RegisteredToolkit]) -> None:
        """Drop topics that the subscriber's new grants do not cover, and send what changes.

        Args:
            visible: The toolkits that it can list now.
        """
        scope = self._connection.participant.scope
        self._topics = frozenset(topic for topic in self._topics if TOPICS[topic](scope))
        if "participants" not in self._topics:
            self._participants.clear()
        if "toolkits" not in self._topics:
            self._toolkits.clear()
        elif changed := self._shown.symmetric_difference(visible):
            self._toolkits = dict.fromkeys(changed) | self._toolkits
            self._schedule()

    def add_change(self, change: ToolkitChange) -> None:
        """Add a change of a toolkit; it is sent after some 20 ms, together with others."""
        if "toolkits" in self._topics:
            before = None if change.serving is None else change.serving.before
            self._toolkits[change.toolkit] = self._toolkits.get(change.toolkit) or before
            self._schedule()

    def add_participant(self, participant: Participant, *, was_present: bool) -> None:
        """Add a participant that joined, changed or left; it is sent together with others."""
        if "participants" in self._topics:
            self._participants.setdefault(participant, was_present)
            self._schedule()

    def offer_message(self, message: dict[str, Any]) -> bool:
        """Send a message at once; return whether it is subscribed and its queue was not full."""
        if "messages" not in self._topics:
            return False
        data = encode(Event(self._number + 1, "message", message))
        if not self._connection.port.offer_message(data, _Ticket()):
            return False
        self._number += 1
        return True

    def observe_calls_from(self, counts: CallCounts) -> None:
        """Send events about calls that start or end after these counts."""
        self._counts = counts

    def send_calls(self, monitor: RoomCallMonitor) -> bool:
        """Send what changed about calls, unless the last such event is still queued.

        Returns:
            Whether the subscriber is up to date now.
        """
        known, last = self._counts, self._calls_ticket
        is_unchanged = (monitor.counts, monitor.in_flight) == (known, self._in_flight)
        if known is None or (last is not None and is_unchanged):
            return True
        if last is not None and not last.written:
            return False
        ticket = _Ticket()
        data = encode(Event(self._number + 1, "calls", monitor.changes_since(known)))
        if not self._connection.port.offer_message(data, ticket):
            return False
        self._number += 1
        self._counts, self._in_flight = monitor.counts, monitor.in_flight
        self._calls_ticket = ticket
        return True

    def close(self) -> None:
        """Send nothing more."""
        self._participants.clear()
        self._toolkits.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE_S, self._start_flush)

    def _start_flush(self) -> None:
        self._scheduler.add(self._flush())

    def _flush(self) -> Iterator[None]:
        """Send what was collected, one event with each step."""
        try:
            yield from self._send_all()
        except Exception:
            name = self._connection.participant.identity.name
            _logger.exception("events of its room could not be sent to %r", name)
        self._timer = None
        if self._participants or self._toolkits:
            self._schedule()

    def _send_all(self) -> Iterator[None]:
        # State changes between two steps: each event is made when it is sent.
        for participant in list(self._participants):
            was_present = self._participants.pop(participant, None)
            if was_present is not None:
                self._send_participant(participant, was_present)
                yield
        for toolkit in list(self._toolkits):
            if toolkit in self._toolkits:
                self._send_toolkit(toolkit, self._toolkits.pop(toolkit))
                yield

    def _send_participant(self, participant: Participant, was_present: bool) -> None:
        if participant.is_present:
            name = "participant_changed" if was_present else "participant_joined"
        elif was_present:
            name = "participant_left"
        else:
            return
        summary = self._scheduler.packed(participant, None, lambda: _participant_event(participant))
        self._send(name, {"participant": summary})

    def _send_toolkit(self, toolkit: RegisteredToolkit, before: Generation | None) -> None:
        is_shown = toolkit.is_present and toolkit.is_listed_for(self._connection.participant)
        was_shown = toolkit in self._shown
        if not is_shown and not was_shown:
            return
        if is_shown:
            self._shown.add(toolkit)
            name = "toolkit_changed" if was_shown else "toolkit_added"
        else:
            self._shown.discard(toolkit)
            name = "toolkit_removed"
        packed = self._pack_toolkit(toolkit, is_shown)
        self._send(name, {"toolkit": packed})
        if name == "toolkit_changed" and before is not None and before in toolkit.reserve:
            superseded = definition_summary(before)
            self._send("toolkit_superseded", {"toolkit": packed, "superseded": superseded})

    def _pack_toolkit(self, toolkit: RegisteredToolkit, is_shown: bool) -> Raw:
        """Pack an event once for all subscribers that see the same tools and the same reserve."""
        connection, pack = self._connection, self._scheduler.packed
        if not is_shown:
            return pack(toolkit, None, lambda: _removed_toolkit_event(toolkit, connection))
        reserve = _reserve_seen_by(toolkit, connection.participant)
        kind = (connection.participant.rights, *reserve)
        return pack(toolkit, kind, lambda: _toolkit_event(toolkit, connection))

    def _send(self, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._connection.port.send_message(encode(Event(self._number, name, data)))


class EventFeeds:
    """The subscribers of one room.

    Args:
        room: The room, whose calls are monitored while a subscriber observes them.
        loop: For the clock and the timer of the monitor.
        scheduler: Keeps the packed events that several subscribers get.
    """

    def __init__(
        self, room: RoutedRoom, loop: asyncio.AbstractEventLoop, scheduler: FairScheduler
    ) -> None:
        self._scheduler = scheduler
        self._room = room
        self._state = room.state
        self._feeds: dict[str, EventFeed] = {}
        self._observers: dict[str, EventFeed] = {}
        """Subscribers to `calls`."""
        self.monitor: RoomCallMonitor = RoomCallMonitor(room, loop, self._send_calls)
        """Counts and records the room's calls."""

    def add(self, participant: Participant, feed: EventFeed) -> None:
        """Replace a participant's subscription, if it has one, by a new one."""
        if participant.id in self._feeds:
            self._feeds[participant.id].close()
        self._feeds[participant.id] = feed
        if not feed.includes("calls"):
            self._stop_observing(participant)
            return
        self.monitor.start()  # or go on: other nodes report to the monitor id that they have
        feed.observe_calls_from(self.monitor.counts)
        self._observers[participant.id] = feed
        participant.monitor_id = self.monitor.monitor_id

    def remove(self, participant: Participant) -> None:
        """Remove the subscription of a participant, if it has one."""
        feed = self._feeds.pop(participant.id, None)
        if feed is not None:
            feed.close()
            self._stop_observing(participant)

    def update_grants(self, participant: Participant, visible: Iterable[RegisteredToolkit]) -> None:
        """Apply a participant's new grants to its subscription; it can list `visible` now."""
        feed = self._feeds.get(participant.id)
        if feed is not None:
            feed.update_grants(visible)
            if not feed.includes("calls"):
                self._stop_observing(participant)

    def _stop_observing(self, participant: Participant) -> None:
        participant.monitor_id = 0
        if self._observers.pop(participant.id, None) is not None and not self._observers:
            self.monitor.stop()

    def _send_calls(self) -> bool:
        sent = [feed.send_calls(self.monitor) for feed in self._observers.values()]
        return all(sent)

    def publish(self, changes: Iterable[ToolkitChange]) -> None:
        """Send changes of toolkits to all subscribers that can see them, and notify the hosts."""
        for change in changes:
            notify_hosts(self._room, change)
            self._scheduler.forget(change.toolkit)
            for feed in self._feeds.values():
                feed.add_change(change)

    def publish_participant(self, participant: Participant, *, was_present: bool) -> None:
        """Send all subscribers the current state of a participant that joined, changed or left."""
        self._scheduler.forget(participant)
        for feed in self._feeds.values():
            feed.add_participant(participant, was_present=was_present)

    def deliver(self, message: dict[str, Any], receivers: Iterable[Participant]) -> int:
        """Send a message to the subscribers among the receivers; return how many accepted it."""
        present = (each for each in receivers if not self._state.has_moved(each))
        feeds = (self._feeds.get(participant.id) for participant in present)
        return sum(feed.offer_message(message) for feed in feeds if feed is not None)

    def deliver_to_others(self, message: dict[str, Any], sender: Participant) -> int:
        """Send a message to all subscribers but the sender; return how many accepted it."""
        others = [feed.participant for key, feed in self._feeds.items() if key != sender.id]
        return self.deliver(message, others)
