"""Rooms and who sits in them: joining, succeeding an older connection, leaving.

A room begins with its first participant and ends with its last. Knows nothing of sockets; a
connection is a `Port`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from toolbus_server.limits import Limits
from toolbus_server.registry import Registry
from toolbus_server.room_state import Identity, Member, RoomState
from toolbus_server.routing import Room, Router, Seat
from toolbus_server.telemetry import ServerTelemetry

__all__ = ["Hub", "Occupant", "OpenRoom"]


class Occupant(Protocol):
    """A connection that may have to make place for a newer one of the same instance."""

    seat: Seat

    def replaced(self) -> None:
        """Learn that a newer connection has taken this one's place."""


@dataclass(slots=True, eq=False)
class OpenRoom:
    """A room with somebody in it."""

    room: Room
    registry: Registry
    occupants: dict[tuple[Identity, str], Occupant] = field(default_factory=dict)
    """By identity and instance."""


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
        self._random = random or Random()

    def epoch_of(self, room: str, identity: Identity, instance: str) -> int | None:
        """Tell the epoch of the connection that sits there for this instance, if one does."""
        open_room = self.rooms.get(room)
        occupant = open_room.occupants.get((identity, instance)) if open_room else None
        return occupant.seat.member.epoch if occupant else None

    def join(self, name: str, occupant: Occupant) -> OpenRoom:
        """Seat a participant; an older connection of its instance makes place for it."""
        open_room = self.rooms.get(name)
        if open_room is None:
            room = Room(RoomState(name, self._random))
            open_room = self.rooms[name] = OpenRoom(room, Registry(room, self.limits))
        seat, member = occupant.seat, occupant.seat.member
        key = (member.identity, member.instance)
        old = open_room.occupants.get(key)
        open_room.occupants[key] = occupant
        open_room.room.seats[member.id] = seat
        if old is None:
            open_room.room.state.join(member)
        else:
            self._succeed(open_room, old, member)
        return open_room

    def _succeed(self, open_room: OpenRoom, old: Occupant, member: Member) -> None:
        changes = open_room.room.state.succeed(old.seat.member, member)
        self._unseat(open_room, old.seat)
        open_room.registry.publish(changes)
        old.replaced()

    def leave(self, name: str, occupant: Occupant) -> None:
        """Let a participant go: its calls end, its toolkits go, an empty room goes. Idempotent."""
        open_room = self.rooms.get(name)
        seat = occupant.seat
        if open_room is None or open_room.room.seats.get(seat.member.id) is not seat:
            return
        key = (seat.member.identity, seat.member.instance)
        if open_room.occupants.get(key) is occupant:
            del open_room.occupants[key]
        changes = open_room.room.state.leave(seat.member)
        self._unseat(open_room, seat)
        open_room.registry.publish(changes)
        if open_room.room.state.is_empty:
            del self.rooms[name]

    def _unseat(self, open_room: OpenRoom, seat: Seat) -> None:
        open_room.registry.forget(seat)
        self.router.depart(seat)
        open_room.room.seats.pop(seat.member.id, None)
