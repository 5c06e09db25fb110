"""Waiting for what happens in a room, by its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from toolbus import RoomClient, RoomEvent
from toolbus.toolkit_proxy import ToolkitInfo


async def until_hosts(room: RoomClient, name: str, hosts: int) -> None:
    """Wait until a toolkit has so many hosts; 0 is until it is gone."""
    async with asyncio.timeout(20), aclosing(room.events()) as events:
        news = asyncio.ensure_future(anext(events))
        try:
            while await _hosts_of(room, name) != hosts:
                await news
                news = asyncio.ensure_future(anext(events))
        finally:
            news.cancel()
            await asyncio.wait([news])


async def _hosts_of(room: RoomClient, name: str) -> int:
    return next((each.hosts for each in await listed(room) if each.name == name), 0)


async def listed(room: RoomClient, search: str | None = None) -> list[ToolkitInfo]:
    """Read the whole list."""
    return [toolkit async for toolkit in room.toolkits(search)]


async def toolkit_events(room: RoomClient) -> AsyncGenerator[RoomEvent, None]:
    """Go through the events that are of toolkits."""
    async with aclosing(room.events()) as events:
        async for event in events:
            if event.toolkit is not None:
                yield event
