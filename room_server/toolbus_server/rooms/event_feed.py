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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, cast

from msgspec import Raw, Struct

from toolbus.auth.grants import covers_topic
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Unavailable
from toolbus.wire import Event, encode
from toolbus_server.calls.call_state import CallHold
from toolbus_server.calls.call_statistics import CallCounts, RoomCallMonitor
from toolbus_server.calls.holds import describe_hold, may_settle
from toolbus_server.calls.router import Connection, RoutedRoom
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit
from toolbus_server.registry.room_state import RoomState, ToolkitChange
from toolbus_server.registry.tool_visibility import Listing, Steps
from toolbus_server.rooms.room_changes import (
    ChangeBatch,
    RoomChanges,
    ServingNotices,
    definition_summary,
)
from toolbus_server.rooms.scheduling import FairScheduler, pack_once

__all__ = ["EventFeed", "EventFeeds", "participant_summary", "toolkit_summary"]

_logger = bounded_logger(__name__)
# Names have up to 64 bytes, and an event is all header, which has at most 64 KiB.
_MAX_TOOLS = 512
# The last definition of a toolkit that is removed, and whether it still exists for others, may be
# hidden from the receiver.
_OF_REMOVED = {"title": "", "description": "", "version": "", "digest": "", "hosts": 0}
MAX_HOLD_EVENTS = 8_192
"""Events about holds that wait until they are sent, in one room: a host that asks and withdraws
without end would fill the memory. Beyond it the oldest are dropped; approvers can list."""
_PARTICIPANT_EVENTS = {
    (False, True): "participant_joined",
    (True, True): "participant_changed",
    (True, False): "participant_left",
}
"""The name of an event, by whether the participant was present before, and is now."""


def toolkit_summary(
    toolkit: RegisteredToolkit, listing: Listing, issuers: Issuers
) -> dict[str, Any]:
    """Describe a toolkit for lists and events, to those who may see this of it: no schemas."""
    manifest, hosts = toolkit.serving.definition.manifest, toolkit.serving.hosts
    owner = {"name": toolkit.owner.name, "issuer": toolkit.owner.issuer}
    if alias := issuers.alias_before(toolkit.owner):
        owner["alias"] = alias
    summary = {
        "name": toolkit.name,
        "title": manifest.title,
        "description": manifest.description[:500],
        "version": manifest.version,
        "digest": toolkit.serving.definition.digest,
        "public": toolkit.public,
        "owner": owner,
        "hosts": len(hosts),
        "tools": [tool.name for tool in listing.tools],
    }
    if hosts and all(host.assesses for host in hosts):
        summary["assesses"] = True
    if listing.reserve:
        summary["reserve"] = [_reserve_summary(generation) for generation in listing.reserve]
    return summary


def _reserve_summary(generation: Generation) -> dict[str, Any]:
    last_call = None
    if generation.last_call_at is not None:
        age_s = asyncio.get_running_loop().time() - generation.last_call_at
        last_call = int((time.time() - age_s) * 1000)
    hosts = len(generation.hosts)
    return {**definition_summary(generation), "hosts": hosts, "last_call": last_call}


def participant_summary(participant: Participant) -> dict[str, Any]:
    """Describe a participant for lists and events."""
    more = {"attributes": participant.attributes, "since": participant.since}
    return participant.describe() | more


class _Ticket(Struct, eq=False):
    """The ticket of an event that may be refused; it is never taken back."""

    written: bool = False
    ended: bool = False


class _Shown(NamedTuple):
    """A toolkit as a subscriber knows it."""

    changed_at: int
    """The number of the change that it was sent last."""
    serving: Generation
    """The generation that served then."""


@dataclass(slots=True, eq=False)
class EventFeed:
    """The events that one subscriber is still to be sent."""

    _connection: Connection
    _state: RoomState
    _scheduler: FairScheduler
    _number: int = 0
    _topics: frozenset[str] = frozenset()
    _has_started: bool = False
    _batches: list[ChangeBatch] = field(default_factory=list)
    """Those that it has not read."""
    _known: int = 0
    """The number of the last change of participants that it has read or does not need."""
    _toolkits: dict[RegisteredToolkit, None] = field(default_factory=dict)
    _shown: dict[RegisteredToolkit, _Shown] = field(default_factory=dict)
    """The toolkits that it may list, as they were sent last."""
    _recheck: bool = False
    """Whether all toolkits have to be compared with changed grants."""
    _participants: dict[Participant, bool] = field(default_factory=dict)
    """Participants that changed, and whether they were present before the first change."""
    _sent: dict[Participant, int] = field(default_factory=dict)
    """The number of the change that was sent last, since a batch was read."""
    _removed: dict[tuple[str, bool, str, str], int] = field(default_factory=dict)
    """The same of the removals of toolkits, by their place in lists."""
    _is_flushing: bool = False
    _counts: CallCounts | None = None
    """The counts of calls that were sent last, or those at the time of subscribing."""
    _in_flight: int = 0
    """The number of calls in flight that was sent last."""
    _hold_changes: int = 0
    """`hold_changes` of the monitor at that time."""
    _calls_ticket: _Ticket | None = None
    """The ticket of the last event about calls."""
    counted: int = 0
    """What it counts among the subscriptions of its identity."""

    @property
    def participant(self) -> Participant:
        """The subscriber."""
        return self._connection.participant

    def read_toolkits(self) -> Steps[None]:
        """Note the toolkits that it can list already; changes meanwhile have to be collected."""
        participant = self.participant
        for toolkit in self._state.toolkits_after(None):
            tools = yield from self._state.visibility.listed_tools(toolkit, participant)
            if not participant.is_present:
                return
            if tools is not None:
                self._shown[toolkit] = _Shown(toolkit.changed_at, toolkit.serving)
            yield

    def start(self, topics: Iterable[str], latest_change: int) -> None:
        """Send the events of these topics from now on, for which the subscriber has the grants.

        Changes of participants up to the number of the room's last change are not sent.
        """
        self._topics = frozenset(topics)
        self._has_started = True
        self._known = latest_change
        for batch in self._batches:
            batch.unread += 1
        self._flush_soon()

    def includes(self, topic: str) -> bool:
        """Whether the subscriber has subscribed to a topic."""
        return topic in self._topics

    def update_grants(self) -> None:
        """Drop topics that the subscriber's new grants do not cover, and send what changes."""
        scope = self._connection.participant.scope
        self._topics = frozenset(topic for topic in self._topics if covers_topic(scope, topic))
        self._recheck = "toolkits" in self._topics
        self._flush_soon()

    def collect(self, batch: ChangeBatch) -> None:
        """Take a batch of changes, which is read and sent in turn with those of others."""
        if not self._has_started:
            self._batches.append(batch)
            return
        has_participants = "participants" in self._topics and batch.participants
        has_toolkits = "toolkits" in self._topics and batch.concerns(self.participant.identity)
        if has_participants or has_toolkits:
            batch.unread += 1
            self._batches.append(batch)
            self._flush_soon()

    def offer_message(self, packed: Raw) -> bool:
        """Send a message at once; return whether it is subscribed and its queue was not full."""
        if "messages" not in self._topics:
            return False
        event = Event(self._number + 1, "message", cast(dict[str, Any], packed))
        if not self._connection.port.offer_message(encode(event), _Ticket()):
            return False
        self._number += 1
        return True

    def offer_hold(self, name: str, hold: CallHold, packed: Callable[[], Raw]) -> None:
        """Send an event about a hold, if the subscriber may settle it and its queue is not full."""
        if "holds" not in self._topics or not may_settle(self.participant, hold):
            return
        event = Event(self._number + 1, name, cast(dict[str, Any], packed()))
        if self._connection.port.offer_message(encode(event), _Ticket()):
            self._number += 1

    def observe_calls_from(self, counts: CallCounts) -> None:
        """Send events about calls that start or end after these counts."""
        self._counts = counts

    def send_calls(self, monitor: RoomCallMonitor) -> bool:
        """Send what changed about calls, unless the last such event is still queued.

        Returns whether the subscriber is up to date now.
        """
        known, last = self._counts, self._calls_ticket
        is_unchanged = (monitor.counts, monitor.in_flight) == (known, self._in_flight)
        is_unchanged = is_unchanged and monitor.hold_changes == self._hold_changes
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
        self._hold_changes = monitor.hold_changes
        self._calls_ticket = ticket
        return True

    def close(self) -> None:
        """Send nothing more."""
        self._topics = frozenset()
        for batch in self._batches:
            batch.unread -= 1
        self._batches.clear()
        self._participants.clear()
        self._toolkits.clear()
        self._recheck = False
        self.uncount()

    def uncount(self) -> None:
        """End to count among the subscriptions of its identity."""
        self._connection.usage.subscribed -= self.counted
        self.counted = 0

    def _flush_soon(self) -> None:
        if not self._is_flushing and self._is_due:
            self._is_flushing = True
            self._scheduler.add(self._flush())

    @property
    def _is_due(self) -> bool:
        return bool(self._batches or self._participants or self._toolkits or self._recheck)

    def _flush(self) -> Iterator[None]:
        """Send what was collected, at most one change with each step."""
        while self._is_due:
            try:
                yield from self._send_all()
            except Exception:
                name = self._connection.participant.full_name
                _logger.exception("events of its room could not be sent to %r", name)
        self._is_flushing = False

    def _send_all(self) -> Iterator[None]:
        # State changes between two steps: each event is made when it is sent.
        yield from self._read_batches()
        for participant in list(self._participants):
            was_present = self._participants.pop(participant, None)
            if was_present is not None:
                self._send_participant(participant, was_present)
                yield
            if self._batches:
                return  # the next batch of the room begins when all have read this one
        if self._recheck:
            self._recheck = False
            for toolkit in self._state.toolkits_after(None):  # some became visible or hidden
                yield from self._send_toolkit(toolkit)
                yield
                yield from self._read_batches()
        for toolkit in list(self._toolkits):
            if self._toolkits.pop(toolkit, True) is None:
                yield from self._send_toolkit(toolkit)
                yield
            if self._batches:
                return

    def _read_batches(self) -> Iterator[None]:
        while self._batches:
            batch = self._batches.pop(0)
            batch.unread -= 1
            if "participants" in self._topics:
                for participant in batch.participants:
                    changed_at = participant.changed_at
                    if changed_at > self._known and self._sent.get(participant) != changed_at:
                        was_present = participant.joined_at <= self._known
                        self._participants.setdefault(participant, was_present)
            self._known = max(self._known, batch.end)
            if "toolkits" in self._topics:
                for toolkit in batch.toolkits_for(self.participant.identity):
                    if self._removed.get(toolkit.order) != toolkit.changed_at:
                        self._toolkits[toolkit] = None
            self._sent.clear()
            self._removed.clear()
            yield

    def _send_participant(self, participant: Participant, was_present: bool) -> None:
        self._sent[participant] = participant.changed_at
        name = _PARTICIPANT_EVENTS.get((was_present, participant.is_present))
        if name is None or "participants" not in self._topics:
            return
        hidden: dict[str, Any] = {} if participant.is_present else {"attributes": {}}
        packed = self._scheduler.packed(
            participant, None, lambda: participant_summary(participant) | hidden
        )
        self._send(name, {"participant": packed})

    def _send_toolkit(self, toolkit: RegisteredToolkit) -> Iterator[None]:
        listing = yield from self._state.visibility.listing(toolkit, self.participant)
        if "toolkits" not in self._topics:
            return
        last = self._shown.get(toolkit)
        if listing is None and last is None:
            if toolkit.order in self._removed:  # one that comes and goes again and again
                return
            visibility = self._state.visibility
            seen = yield from visibility.listed_tools(toolkit, self.participant, is_gone=True)
            if seen is None or "toolkits" not in self._topics:
                return
        if listing is None:
            # Also one that was not reported yet: the subscriber may have listed it meanwhile.
            self._shown.pop(toolkit, None)
            self._removed[toolkit.order] = toolkit.changed_at
            self._send("toolkit_removed", {"toolkit": self._pack_toolkit(toolkit, None)})
            return
        if last is not None and last.changed_at == toolkit.changed_at:
            return
        self._shown[toolkit] = _Shown(toolkit.changed_at, toolkit.serving)
        packed = self._pack_toolkit(toolkit, listing)
        if last is None:
            self._send("toolkit_added", {"toolkit": packed})
            return
        self._send("toolkit_changed", {"toolkit": packed})
        if last.serving in toolkit.reserve:
            superseded = definition_summary(last.serving)
            self._send("toolkit_superseded", {"toolkit": packed, "superseded": superseded})

    def _pack_toolkit(self, toolkit: RegisteredToolkit, listing: Listing | None) -> Raw:
        """Pack an event once for all subscribers that see the same tools and the same reserve."""
        pack, issuers = self._scheduler.packed, self._state.issuers
        if listing is None:
            removed = Listing((), ())
            return pack(
                toolkit, None, lambda: toolkit_summary(toolkit, removed, issuers) | _OF_REMOVED
            )
        sees_all = len(listing.tools) == len(toolkit.serving.definition.manifest.tools)
        tools = "all" if sees_all else self.participant.rights
        kind, shown = (tools, *listing.reserve), listing._replace(tools=listing.tools[:_MAX_TOOLS])
        return pack(toolkit, kind, lambda: toolkit_summary(toolkit, shown, issuers))

    def _send(self, name: str, data: dict[str, Any]) -> None:
        self._number += 1
        self._connection.port.send_message(encode(Event(self._number, name, data)))


class EventFeeds:
    """The subscribers of one room."""

    def __init__(
        self, room: RoutedRoom, loop: asyncio.AbstractEventLoop, scheduler: FairScheduler
    ) -> None:
        self.scheduler: FairScheduler = scheduler
        """Runs the work for subscribers in turn."""
        self._notices = ServingNotices(room, scheduler)
        self._state = room.state
        self._changes = RoomChanges(loop, self._publish_batch)
        self._feeds: dict[str, EventFeed] = {}
        self._starting: set[EventFeed] = set()
        """Those whose subscription is not answered yet."""
        self._hold_events: deque[tuple[str, CallHold]] = deque(maxlen=MAX_HOLD_EVENTS)
        self._is_sending_holds = False
        self._observers: dict[str, EventFeed] = {}
        """Subscribers to `calls`."""
        self.monitor: RoomCallMonitor = RoomCallMonitor(room, loop, self._send_calls)
        """Counts and records the room's calls."""

    def subscribe(self, connection: Connection, topics: Iterable[str]) -> Steps[None]:
        """Replace a participant's subscription, if it has one, by a new one.

        The old one lasts until the new one has noted which toolkits its participant can list.

        Raises:
            Unavailable: The participant has left meanwhile.
            QuotaExceeded: Its identity has too many subscriptions.
        """
        participant = connection.participant
        feed = EventFeed(connection, self._state, self.scheduler)
        rights, has_toolkits = participant.rights, "toolkits" in topics
        toolkits = self._state.toolkit_count if has_toolkits else 0
        old = self._feeds.get(participant.id)
        feed.counted = connection.usage.subscribe(0 if old is None else old.counted, toolkits)
        if old is not None:  # it counts in the place of the old one
            old.counted = 0
        if has_toolkits:
            self._starting.add(feed)
            try:
                yield from feed.read_toolkits()
            finally:
                self._starting.discard(feed)
        if not participant.is_present:
            feed.uncount()
            raise Unavailable("the connection has ended", executed="no")
        feed.start(topics, self._changes.latest)
        if participant.rights is not rights:
            feed.update_grants()
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

    def update_grants(self, participant: Participant) -> None:
        """Apply a participant's new grants to its subscription."""
        feed = self._feeds.get(participant.id)
        if feed is not None:
            feed.update_grants()
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
            self._notices.add(change)
            self.scheduler.forget(change.toolkit)
            self._changes.note_toolkit(change.toolkit, collect=self._has_feeds)

    def publish_participant(self, participant: Participant, *, was_present: bool) -> None:
        """Send all subscribers the current state of a participant that joined, changed or left."""
        self.scheduler.forget(participant)
        self._changes.note_participant(
            participant, was_present=was_present, collect=self._has_feeds
        )

    @property
    def _has_feeds(self) -> bool:
        return bool(self._feeds or self._starting)

    def _publish_batch(self, batch: ChangeBatch) -> None:
        batch.unread += 1  # until all feeds have it
        self.scheduler.add(self._hand_out(batch))

    def _hand_out(self, batch: ChangeBatch) -> Iterator[None]:
        for feed in (*self._feeds.values(), *self._starting):
            feed.collect(batch)
            yield
        batch.unread -= 1

    def publish_hold(self, name: str, hold: CallHold) -> None:
        """Send an event about a hold to the subscribers that may settle it, in order.

        Those who observe calls get it with what else they get.
        """
        self.monitor.hold_changed(hold)
        if not self._feeds:
            return
        self._hold_events.append((name, hold))
        if not self._is_sending_holds:
            self._is_sending_holds = True
            self.scheduler.add(self._send_holds())

    def _send_holds(self) -> Iterator[None]:
        try:
            while self._hold_events:
                name, hold = self._hold_events.popleft()
                packed = cache(partial(self._packed_hold, hold))
                for feed in list(self._feeds.values()):
                    feed.offer_hold(name, hold, packed)
                    yield
        finally:
            self._is_sending_holds = False

    def _packed_hold(self, hold: CallHold) -> Raw:
        now = asyncio.get_running_loop().time()
        return pack_once({"hold": describe_hold(hold, self._state.issuers, now)})

    def deliver(self, message: dict[str, Any], receivers: Iterable[Participant]) -> Steps[int]:
        """Send a message to the subscribers among the receivers; return how many accepted it."""
        packed: Raw | None = None
        accepted = 0
        for receiver in receivers:
            feed = self._feeds.get(receiver.id)
            if (
                feed is not None
                and feed.includes("messages")
                and not self._state.has_moved(receiver)
            ):
                packed = packed or pack_once(message)
                accepted += feed.offer_message(packed)
                yield
        return accepted

    def deliver_to_others(self, message: dict[str, Any], sender: Participant) -> Steps[int]:
        """Send a message to all subscribers but the sender; return how many accepted it."""
        others = [feed.participant for key, feed in self._feeds.items() if key != sender.id]
        return self.deliver(message, others)
