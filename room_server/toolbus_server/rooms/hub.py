"""The rooms of one server: participants join, replace an older connection, and leave.

A room begins with its first participant and ends with its last. If names are reserved in it then,
these are kept until they are free or a participant joins (`ParkedRooms`); of several nodes, Redis
keeps the names. It knows nothing of sockets: a connection has a `MessagePort`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from toolbus.concurrency.timers import Deadlines
from toolbus_server import identity_usage
from toolbus_server.calls.router import Connection, RoutedRoom, Router
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.identity_usage import IdentityUsage, IdentityUsages
from toolbus_server.limits import Limits
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import Generation, Identity, Participant, Reservation
from toolbus_server.registry.room_state import RoomState, ToolkitChange
from toolbus_server.registry.tool_visibility import ToolVisibility
from toolbus_server.rooms.event_feed import EventFeeds
from toolbus_server.rooms.hold_requests import HoldRequests
from toolbus_server.rooms.participant_requests import ParticipantRequests
from toolbus_server.rooms.scheduling import FairScheduler
from toolbus_server.rooms.toolkit_requests import ManifestQuota, ToolkitRequests

__all__ = ["ConnectedSession", "Hub", "OpenRoom"]

MAX_PARKED_NAMES = 65_536
"""Reserved names in rooms without participants; with more, the longest parked room is removed."""
_SHARE_CHARS = 1_024
"""So many characters of `shared_with` count as one more name."""


class ParkedName(NamedTuple):
    """A name that is reserved for its owner in a room without participants."""

    owner: Identity
    public: bool
    generation: Generation
    """The one that served the name, without its manifest."""
    last_number: int
    """The highest number of a generation that its owner has used in the room."""
    ends_at: float
    """When the name is free, by the event loop's clock."""

    @property
    def size(self) -> int:
        """How many names it counts as."""
        return 1 + sum(map(len, self.generation.shared_with)) // _SHARE_CHARS


@dataclass(slots=True, eq=False)
class _ParkedRoom:
    name: str
    names: list[ParkedName]
    sizes: dict[Identity, tuple[IdentityUsage, int]]
    ended: bool = False

    @property
    def size(self) -> int:
        return sum(size for _, size in self.sizes.values())


class ParkedRooms:
    """The rooms of a server that have reserved names and no participants.

    Of each name only owner, digest and place are kept, not its manifest, so that the memory for a
    room that ended is small whatever was registered in it. The names of one identity are limited,
    and those of all; where nodes share their rooms, Redis keeps the names, and they are only
    counted here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, usages: IdentityUsages) -> None:
        self._usages = usages
        self._rooms: dict[str, _ParkedRoom] = {}
        """The longest parked first."""
        self._size = 0
        self._ends: Deadlines[_ParkedRoom] = Deadlines(loop, self._end)

    def __len__(self) -> int:
        """Return the number of rooms."""
        return len(self._rooms)

    def park(
        self, room: str, state: RoomState, *, is_replicated: bool = False
    ) -> frozenset[Identity]:
        """Keep the names that are reserved in a room, as far as their owners' quotas allow.

        If Redis keeps the names they are only counted.

        Returns:
            The owners beyond their quota: their names are free at once.
        """
        self.take(room)
        names = [
            ParkedName(
                toolkit.owner,
                toolkit.public,
                toolkit.serving.without_manifest(),
                state.last_generation_of(toolkit.owner),
                reservation.ends_at,
            )
            for toolkit, reservation in state.reservations()
        ]
        sizes = Counter[Identity]()
        for name in names:
            sizes[name.owner] += name.size
        usages = {owner: (self._usages.of(owner), size) for owner, size in sizes.items()}
        limit = identity_usage.MAX_PARKED_NAMES
        beyond = {
            owner for owner, (usage, size) in usages.items() if usage.parked_names + size > limit
        }
        names = [name for name in names if name.owner not in beyond]
        if names:
            counted = {owner: usages[owner] for owner in usages if owner not in beyond}
            parked = _ParkedRoom(room, [] if is_replicated else names, counted)
            self._rooms[room] = parked
            self._count(parked, 1)
            self._ends.add(max(name.ends_at for name in names), parked)
            while self._size > MAX_PARKED_NAMES:
                self._end(next(iter(self._rooms.values())))
        return frozenset(beyond)

    def _count(self, parked: _ParkedRoom, sign: int) -> None:
        self._size += sign * parked.size
        for usage, size in parked.sizes.values():
            usage.parked_names += sign * size

    def take(self, room: str) -> list[ParkedName]:
        """Return the names of a room that begins again, and forget them here."""
        parked = self._rooms.get(room)
        if parked is None:
            return []
        self._end(parked)
        return parked.names

    def _end(self, parked: _ParkedRoom) -> None:
        parked.ended = True
        del self._rooms[parked.name]
        self._count(parked, -1)
        self._ends.forget(parked)


class ConnectedSession(Protocol):
    """A session that a newer connection of its instance, or an administrator, may end."""

    connection: Connection

    def replaced(self) -> None:
        """Close: a newer connection of this instance has joined."""

    def evict(self) -> None:
        """Leave the room and close: an administrator or a revoked token ends this session."""


@dataclass(slots=True, eq=False)
class OpenRoom:
    """A room that has participants."""

    routed: RoutedRoom
    toolkit_requests: ToolkitRequests
    participant_requests: ParticipantRequests
    hold_requests: HoldRequests
    feeds: EventFeeds
    sessions: dict[tuple[Identity, str], ConnectedSession] = field(default_factory=dict)
    """The sessions at this node, by identity and instance."""


@dataclass(slots=True, eq=False)
class _ReservedName:
    """A reservation, and its room."""

    room: OpenRoom
    reservation: Reservation

    @property
    def ended(self) -> bool:
        """Whether the name is served again, or free as those of a room that has ended."""
        return self.reservation.ended


class Hub:
    """All rooms of one server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        telemetry: ServerTelemetry,
        random: Random | None = None,
    ) -> None:
        self.limits = limits
        self.router = Router(loop, limits, telemetry)
        self.rooms: dict[str, OpenRoom] = {}
        """Those that have participants."""
        self.usages: IdentityUsages = IdentityUsages(loop.time)
        """What each identity with participants here uses."""
        self.parked: ParkedRooms = ParkedRooms(loop, self.usages)
        """Rooms that have only reserved names."""
        self._manifests = ManifestQuota(self.usages)
        self.scheduler: FairScheduler = FairScheduler(loop)
        """Sends the events of all rooms, and runs the walks of all participants."""
        self._visibility = ToolVisibility()
        self.issuers: Issuers = Issuers()
        """Resolves the names of participants; `set_issuers` changes it."""
        self.denied = 0
        """Registrations without the grant for them, in rooms that have ended."""
        self._random = random or Random()
        self._loop = loop
        self._reservations = Deadlines(loop, self._release)
        self._empty: asyncio.Event | None = None
        self.accepts_remote_calls = True
        """Whether calls from other nodes are run; False once the drain time is over."""

    def set_issuers(self, aliases: Mapping[str, str]) -> None:
        """Replace the issuers and their aliases; publish what is shown with another alias now."""
        self.issuers.update(aliases)
        for open_room in self.rooms.values():
            changed: set[str] = set()
            for connection in open_room.routed.connections.values():
                participant = connection.participant
                alias = self.issuers.alias_before(participant.identity)
                if participant.alias != alias:
                    changed.add(participant.identity.issuer)
                    participant.set_alias(alias)
                    open_room.feeds.publish_participant(participant, was_present=True)
            open_room.feeds.publish(
                ToolkitChange("toolkit_changed", toolkit)
                for toolkit in open_room.routed.state.toolkits_after(None)
                if toolkit.owner.issuer in changed
            )

    def epoch_of(self, room: str, identity: Identity, instance: str) -> int | None:
        """Return the epoch of the session that this instance has in a room, if it has one."""
        open_room = self.rooms.get(room)
        if open_room is None or (identity, instance) not in open_room.sessions:
            return None
        return open_room.sessions[identity, instance].connection.participant.epoch

    def open(self, name: str) -> OpenRoom:
        """Find a room, or open it; the caller then has to join it or to `drop` it."""
        open_room = self.rooms.get(name)
        if open_room is not None:
            return open_room
        room = RoutedRoom(RoomState(name, self._random, self._visibility, self.issuers))
        feeds = EventFeeds(room, self._loop, self.scheduler)
        toolkit_requests = ToolkitRequests(room, self.limits, feeds, self._manifests)
        participant_requests = ParticipantRequests(room, feeds, self._loop.time)
        hold_requests = HoldRequests(room, feeds, self.router, self._loop)
        open_room = OpenRoom(room, toolkit_requests, participant_requests, hold_requests, feeds)
        self.rooms[name] = open_room
        now = self._loop.time()
        for parked in self.parked.take(name):  # reserved for the time that is left to them
            if parked.ends_at > now:
                changes = room.state.restore_reservation(
                    parked.owner,
                    parked.generation,
                    public=parked.public,
                    last_number=parked.last_number,
                )
                self.reserve_names(open_room, changes, parked.ends_at - now)
        return open_room

    def join(self, name: str, session: ConnectedSession) -> OpenRoom:
        """Add a participant; it replaces an older connection of its instance."""
        open_room = self.open(name)
        connection, participant = session.connection, session.connection.participant
        participant.since = time.time_ns() // 1_000_000
        participant.set_alias(self.issuers.alias_before(participant.identity))
        key = (participant.identity, participant.instance)
        old = open_room.sessions.get(key)
        open_room.sessions[key] = session
        open_room.routed.connections[participant.id] = connection
        if old is None:
            open_room.routed.state.join(participant)
        else:
            changes = open_room.routed.state.replace(old.connection.participant, participant)
            self._remove(open_room, old.connection)
            open_room.feeds.publish(changes)
            self.reserve_names(open_room, changes)
            open_room.feeds.publish_participant(old.connection.participant, was_present=True)
            old.replaced()
        open_room.feeds.publish_participant(participant, was_present=False)
        open_room.routed.publish_change(participant)
        return open_room

    def renew(self, name: str, session: ConnectedSession, newer: Participant) -> None:
        """Apply what a newer token of a participant grants."""
        open_room, participant = self.rooms[name], session.connection.participant
        role = participant.role
        participant.apply_token(newer)
        changes = open_room.routed.state.drop_uncovered(participant)
        self.router.delegated.check_principal(open_room.routed, participant)
        if not participant.has_expired:  # else the calls that it made may take a moment (CONN-12)
            self.router.delegated.check_agent(session.connection)
        open_room.feeds.publish(changes)
        open_room.feeds.update_grants(participant)
        if participant.role != role:  # events do not show the other grants
            open_room.feeds.publish_participant(participant, was_present=True)
        open_room.routed.publish_change(participant)

    def leave(self, name: str, session: ConnectedSession, *, reserve: bool = True) -> None:
        """Remove a participant: its calls and toolkits end, and so does an empty room. Idempotent.

        With `reserve` names that only it served stay reserved for its identity for a while.
        """
        open_room = self.rooms.get(name)
        connection = session.connection
        participant = connection.participant
        if open_room is None or open_room.routed.connections.get(participant.id) is not connection:
            return
        key = (participant.identity, participant.instance)
        if open_room.sessions.get(key) is session:
            del open_room.sessions[key]
        changes = open_room.routed.state.leave(participant, reserve=reserve)
        participant.reserves_names = reserve
        self._remove(open_room, connection, may_return=reserve)
        self.usages.left(participant.identity)
        open_room.routed.publish_change(participant)
        self.reserve_names(open_room, changes)
        if not open_room.sessions:
            self._close(open_room)
            return
        open_room.feeds.publish_participant(participant, was_present=True)
        open_room.feeds.publish(changes)

    def drop(self, name: str) -> None:
        """Close a room that was opened for a participant that did not join it."""
        open_room = self.rooms.get(name)
        if open_room is not None and not open_room.sessions:
            self._close(open_room)

    def _close(self, open_room: OpenRoom) -> None:
        del self.rooms[open_room.routed.state.name]
        self.denied += open_room.toolkit_requests.denied
        open_room.toolkit_requests.denied = 0
        open_room.hold_requests.away.remove(lambda _: True)  # whose timers refer to the room
        state, replication = open_room.routed.state, open_room.routed.replication
        beyond = frozenset[Identity]()
        if not state.remote_count:
            is_replicated = replication is not None
            beyond = self.parked.park(state.name, state, is_replicated=is_replicated)
        state.drop_reservations()
        if replication is not None:
            replication.room_closed(beyond)
        if self._empty is not None and not self.rooms:
            self._empty.set()

    # Participants of other nodes

    def join_remote(self, open_room: OpenRoom, connection: Connection) -> None:
        """Add a participant of another node."""
        participant = connection.participant
        participant.set_alias(self.issuers.alias_before(participant.identity))
        open_room.routed.connections[connection.participant.id] = connection
        open_room.routed.state.join(connection.participant)
        open_room.feeds.publish_participant(connection.participant, was_present=False)

    def leave_remote(self, open_room: OpenRoom, participant: Participant, *, reserve: bool) -> None:
        """Remove a participant of another node; that node ends its calls."""
        changes = open_room.routed.state.leave(participant, reserve=reserve)
        open_room.routed.connections.pop(participant.id, None)
        self.router.delegated.check_principal(open_room.routed, participant)
        open_room.feeds.publish_participant(participant, was_present=True)
        open_room.feeds.publish(changes)
        self.reserve_names(open_room, changes)

    def remote_count(self, room: str, identity: Identity, instance: str) -> int:
        """Count the participants of a room at other nodes, without an older one of this instance.

        A participant that takes over from an older one is not counted twice. Those at draining
        nodes are not counted, since they are about to connect here. A room that this node does not
        hold has none.
        """
        open_room = self.rooms.get(room)
        if open_room is None or not open_room.routed.state.remote_count:
            return 0
        state = open_room.routed.state
        own = (
            participant.is_remote
            and not participant.node_is_draining
            and participant.instance == instance
            for participant in state.participants_of(identity)
        )
        return state.remote_count - state.draining_node_participant_count - sum(own)

    async def wait_until_empty(self) -> None:
        """Wait until no room has participants."""
        self._empty = asyncio.Event()
        if self.rooms:
            await self._empty.wait()

    def reserve_names(
        self, open_room: OpenRoom, changes: list[ToolkitChange], left_s: float | None = None
    ) -> None:
        """Set a timer for each reserved name."""
        for change in changes:
            if change.toolkit.reservation is not None:
                reserved = _ReservedName(open_room, change.toolkit.reservation)
                duration_s = self.limits.reservation_ms / 1000 if left_s is None else left_s
                reserved.reservation.ends_at = self._loop.time() + duration_s
                self._reservations.add(reserved.reservation.ends_at, reserved)

    def _release(self, reserved: _ReservedName) -> None:
        room = reserved.room
        room.feeds.publish(room.routed.state.release(reserved.reservation))

    def _remove(
        self, open_room: OpenRoom, connection: Connection, *, may_return: bool = True
    ) -> None:
        open_room.feeds.remove(connection.participant)
        self.router.end_calls_of(connection, may_return=may_return)
        self.router.delegated.check_principal(open_room.routed, connection.participant)
        open_room.routed.connections.pop(connection.participant.id, None)
