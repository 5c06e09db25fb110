"""A person who reads which calls wait, and decides about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from support.patience import PATIENCE_S
from toolbus import EventStream, HoldInfo, RoomClient, RoomEvent

T = TypeVar("T")


class Person:
    """One participant's view of the calls that wait, from now on."""

    def __init__(self, room: RoomClient, events: EventStream[RoomEvent]) -> None:
        self.room = room
        self._events = events

    async def _next(self, name: str) -> HoldInfo:
        async with asyncio.timeout(PATIENCE_S):
            event = await anext(self._events)
        assert event.name == name, event
        assert event.hold is not None
        return event.hold

    async def asked(self) -> HoldInfo:
        """Wait for the next call that waits, and read what would run."""
        return await self.room.hold((await self._next("hold_added")).id)

    async def added(self) -> HoldInfo:
        """Wait for the next call that waits."""
        return await self._next("hold_added")

    async def settled(self) -> HoldInfo:
        """Wait for the end of a wait."""
        return await self._next("hold_settled")


@asynccontextmanager
async def person_in(room: RoomClient) -> AsyncIterator[Person]:
    async with room.events(["holds"]) as events:
        yield Person(room, events)


async def approved(room: RoomClient, call: Awaitable[T]) -> T:
    """Make a call, and approve it as it is."""
    async with person_in(room) as person:
        task = asyncio.ensure_future(call)
        await room.approve(await person.asked())
        return await task
