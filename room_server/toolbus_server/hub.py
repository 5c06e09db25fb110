"""Rooms and who sits in them: joining, succeeding an older connection, leaving.

A room begins with its first participant and ends with its last. Knows nothing of sockets; a
connection is a `Port`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from toolbus.deadlines import Deadlines
from toolbus_server.feed import Feeds
from toolbus_server.limits import Limits
from toolbus_server.people import People
from toolbus_server.registry import Registry
from toolbus_server.room_state import Change, RoomState
from toolbus_server.room_view import Identity, Member, Reservation, Toolkit
from toolbus_server.rounds import Rounds
from toolbus_server.routing import Room, Router, Seat
from toolbus_server.telemetry import ServerTelemetry

__all__ = ["Hub", "Occupant", "OpenRoom"]


class Occupant(Protocol):
    """A connection that may have to make place for a newer one of the same instance."""

    seat: Seat

    def replaced(self) -> None:
        """Learn that a newer connection has taken this one's place."""

    def sent_away(self) -> None:
        """Leave the room: an administrator, or a revoked token, ends this connection."""


@dataclass(slots=True, eq=False)
class OpenRoom:
    """A room with somebody in it."""

    room: Room
    registry: Registry
    people: People
    feeds: Feeds
    occupants: dict[tuple[Identity, str], Occupant] = field(default_factory=dict)
    """By identity and instance."""
    has_ended: bool = False
    """Whether its last participant of this node has left."""


@dataclass(slots=True, eq=False)
class _Held:
    """A reservation, and the room that it holds a name in."""

    room: OpenRoom
    reservation: Reservation

    @property
    def ended(self) -> bool:
        """Whether the name is served again, or free, or its room is gone."""
        return self.reservation.ended or self.room.has_ended


class Hub:
    """All rooms of one server.

    Args:
        loop: Whose clock and timers are used.
        limits: What one participant may cost.
        telemetry: Records sampled calls.
        random: Draws hosts; hand in a seeded one to repeat a run.
    """

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
        self.rounds: Rounds = Rounds(loop)
        """Who is told the news of all rooms, in turns."""
        self.denied = 0
        """Registrations without the grant for them, in rooms that have ended."""
        self._random = random or Random()
        self._loop = loop
        self._reservations = Deadlines(loop, self._release)
        self._deserted: asyncio.Event | None = None
        self.takes_calls = True
        """Whether calls from other nodes are run; no more once the time to leave is over."""
        self.on_close: Callable[[OpenRoom], None] | None = None
        """Told of each room that its last participant of this node has left."""

    def epoch_of(self, room: str, identity: Identity, instance: str) -> int | None:
        """Tell the epoch of the connection that sits there for this instance, if one does."""
        open_room = self.rooms.get(room)
        occupant = open_room.occupants.get((identity, instance)) if open_room else None
        return occupant.seat.member.epoch if occupant else None

    def open(self, name: str) -> OpenRoom:
        """Find a room, or begin it; whoever begins it is to join it next."""
        open_room = self.rooms.get(name)
        if open_room is None:
            open_room = self.rooms[name] = self._open(name)
        return open_room

    def join(self, name: str, occupant: Occupant) -> OpenRoom:
        """Seat a participant; an older connection of its instance makes place for it."""
        open_room = self.open(name)
        seat, member = occupant.seat, occupant.seat.member
        member.since = time.time_ns() // 1_000_000
        key = (member.identity, member.instance)
        old = open_room.occupants.get(key)
        open_room.occupants[key] = occupant
        open_room.room.seats[member.id] = seat
        if old is None:
            open_room.room.state.join(member)
        else:
            self._succeed(open_room, old, member)
        open_room.feeds.announce(member, was_there=False)
        _touch(open_room, member)
        return open_room

    def _open(self, name: str) -> OpenRoom:
        room = Room(RoomState(name, self._random))
        feeds = Feeds(room, self._loop, self.rounds)
        registry = Registry(room, self.limits, feeds)
        return OpenRoom(room, registry, People(room, feeds, self._loop.time), feeds)

    def _succeed(self, open_room: OpenRoom, old: Occupant, member: Member) -> None:
        changes = open_room.room.state.succeed(old.seat.member, member)
        self._unseat(open_room, old.seat)
        open_room.registry.publish(changes)
        for change in changes:
            self._keep(open_room, change.toolkit)
        open_room.feeds.announce(old.seat.member, was_there=True)
        old.replaced()

    def revise(self, name: str, occupant: Occupant, newer: Member) -> None:
        """Let a participant go on with what a newer token of its own grants."""
        open_room, member = self.rooms[name], occupant.seat.member
        role = member.role
        member.revise(newer)
        changes = open_room.room.state.revise(member)
        open_room.registry.publish(changes)
        open_room.registry.regrant(occupant.seat)
        if member.role != role:  # of its grants nobody is told
            open_room.feeds.announce(member, was_there=True)
        _touch(open_room, member)

    def leave(self, name: str, occupant: Occupant, *, reserve: bool = True) -> None:
        """Let a participant go: its calls end, its toolkits go, an empty room goes. Idempotent.

        Args:
            name: The room.
            occupant: Who goes.
            reserve: Whether names that only it served are kept for its identity for a while.
        """
        open_room = self.rooms.get(name)
        seat = occupant.seat
        if open_room is None or open_room.room.seats.get(seat.member.id) is not seat:
            return
        key = (seat.member.identity, seat.member.instance)
        if open_room.occupants.get(key) is occupant:
            del open_room.occupants[key]
        changes = open_room.room.state.leave(seat.member, reserve=reserve)
        seat.member.keeps_names = reserve
        self._unseat(open_room, seat)
        _touch(open_room, seat.member)
        if not open_room.occupants:
            self._close(open_room)
            return
        open_room.feeds.announce(seat.member, was_there=True)
        open_room.registry.publish(changes)
        for change in changes:
            self._keep(open_room, change.toolkit)

    def drop(self, name: str) -> None:
        """End a room that was begun for somebody who does not join it after all."""
        open_room = self.rooms.get(name)
        if open_room is not None and not open_room.occupants:
            self._close(open_room)

    def _close(self, open_room: OpenRoom) -> None:
        del self.rooms[open_room.room.state.name]
        open_room.has_ended = True
        self.denied += open_room.registry.denied
        if self.on_close is not None:
            self.on_close(open_room)
        if self._deserted is not None and not self.rooms:
            self._deserted.set()

    # Participants of other nodes

    def join_far(self, open_room: OpenRoom, seat: Seat) -> None:
        """Seat a participant of another node."""
        open_room.room.seats[seat.member.id] = seat
        open_room.room.state.join(seat.member)
        open_room.feeds.announce(seat.member, was_there=False)

    def leave_far(self, open_room: OpenRoom, member: Member, *, reserve: bool) -> None:
        """Let a participant of another node go; its calls its own node ends."""
        changes = open_room.room.state.leave(member, reserve=reserve)
        open_room.room.seats.pop(member.id, None)
        open_room.feeds.announce(member, was_there=True)
        open_room.registry.publish(changes)
        for change in changes:
            self._keep(open_room, change.toolkit)

    def keep_far(self, open_room: OpenRoom, kept: list[Change], left_s: float) -> None:
        """Keep names that were lost at other nodes before this one held the room."""
        open_room.registry.publish(kept)
        for change in kept:
            self._keep(open_room, change.toolkit, left_s)

    def elsewhere(self, room: str, identity: Identity, instance: str) -> int:
        """Count the participants of a room at other nodes; an older one of this instance not.

        Whoever takes a place over is no further one, nor does anybody count at a node that is told
        to stop, and is to find a place here. A room that this node does not hold has none.
        """
        open_room = self.rooms.get(room)
        if open_room is None or not open_room.room.state.far_members:
            return 0
        state, place = open_room.room.state, (identity, instance)
        own = (
            each.is_far and not each.is_parting and (each.identity, each.instance) == place
            for each in state.all_named(identity.name)
        )
        return state.far_members - state.parting_members - sum(own)

    async def deserted(self) -> None:
        """Wait until nobody is in any room."""
        self._deserted = asyncio.Event()
        if self.rooms:
            await self._deserted.wait()

    def _keep(self, open_room: OpenRoom, toolkit: Toolkit, left_s: float | None = None) -> None:
        """Free a reserved name when its time is up; a room that ends takes its names along."""
        if toolkit.reservation is not None:
            held = _Held(open_room, toolkit.reservation)
            kept_s = self.limits.reservation_ms / 1000 if left_s is None else left_s
            self._reservations.add(self._loop.time() + kept_s, held)

    def _release(self, held: _Held) -> None:
        held.room.registry.publish(held.room.room.state.release(held.reservation))

    def _unseat(self, open_room: OpenRoom, seat: Seat) -> None:
        open_room.registry.forget(seat)
        self.router.depart(seat)
        open_room.room.seats.pop(seat.member.id, None)


def _touch(open_room: OpenRoom, member: Member) -> None:
    share = open_room.room.share
    if share is not None:
        share.touch(member)
