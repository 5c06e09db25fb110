"""Waits for what happens in a room, by its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus import EventStream, RoomClient, RoomEvent
from toolbus.room.toolkit_proxy import ToolkitInfo


async def until_hosts(room: RoomClient, name: str, hosts: int) -> None:
    """Wait until a toolkit has this many hosts; 0 waits until it is gone."""
    async with asyncio.timeout(60), room.events() as events:
        while await _hosts_of(room, name) != hosts:
            await anext(events)


async def _hosts_of(room: RoomClient, name: str) -> int:
    return next((each.hosts for each in await listed(room) if each.name == name), 0)


async def listed(room: RoomClient, search: str | None = None) -> list[ToolkitInfo]:
    """Read the whole list."""
    return [toolkit async for toolkit in room.toolkits(search)]


async def next_toolkit_event(events: EventStream[RoomEvent]) -> RoomEvent:
    """Wait for the next event about a toolkit."""
    while (event := await anext(events)).toolkit is None:
        pass
    return event


async def names_of(room: RoomClient) -> list[str]:
    return sorted(each.name for each in await room.participants())


async def kits_of(room: RoomClient) -> dict[str, int]:
    return {each.name: each.hosts for each in await listed(room)}


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds; the caller limits the time."""
    while not is_so():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
