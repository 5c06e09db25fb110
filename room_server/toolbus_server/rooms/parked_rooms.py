"""The reserved names of rooms that have no participants: what is left of such a room.

Of each name only owner, digest and place are kept, not its manifest, so that the memory for a room
that ended is small whatever was registered in it. The names of one identity are limited, and those
of all; where nodes share their rooms, Redis keeps the names, and they are only counted here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from toolbus.concurrency.timers import Deadlines
from toolbus_server import identity_usage
from toolbus_server.identity_usage import IdentityUsage, IdentityUsages
from toolbus_server.registry.models import Generation, Identity
from toolbus_server.registry.room_state import RoomState
from toolbus_server.registry.toolkit_definition import LazyDefinition

__all__ = ["MAX_PARKED_NAMES", "ParkedName", "ParkedRooms", "parked_names_of"]

MAX_PARKED_NAMES = 65_536
"""Reserved names in rooms without participants; with more, the longest parked room is removed."""
_SHARE_CHARS = 1_024
"""So many characters of `shared_with` count as one more name."""


class ParkedName(NamedTuple):
    """A name that is reserved for its owner in a room without participants."""

    owner: Identity
    name: str
    public: bool
    digest: str
    version: str
    number: int
    base: int
    shared_with: frozenset[str]
    last_number: int
    """The highest number of a generation that its owner has used in the room."""
    ends_at: float
    """When the name is free, by the event loop's clock."""

    @property
    def size(self) -> int:
        """How many names it counts as."""
        return 1 + sum(map(len, self.shared_with)) // _SHARE_CHARS

    def generation(self) -> Generation:
        """Make the generation that serves the name, without host and manifest."""
        definition = LazyDefinition(self.name, self.digest, self.version, b"")
        return Generation(self.number, definition, [], self.shared_with, self.base)


def parked_names_of(state: RoomState) -> Iterator[ParkedName]:
    """Yield what has to be stored of each name that is reserved in a room."""
    for toolkit, reservation in state.reservations():
        serving = toolkit.serving
        yield ParkedName(
            toolkit.owner,
            toolkit.name,
            toolkit.public,
            serving.definition.digest,
            serving.definition.version,
            serving.number,
            serving.base,
            serving.shared_with,
            state.last_generation_of(toolkit.owner),
            reservation.ends_at,
        )


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
    """The rooms of a server that have reserved names and no participants."""

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
        names = list(parked_names_of(state))
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
