"""Servers that share a Redis in one process, and waits for what each of them sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.redis.server import RedisPlace
from toolbus import (
    RoomClient,
    Toolkit,
)
from toolbus.auth.keys import KeyRing
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_nodes


@asynccontextmanager
async def nodes(
    redis: RedisPlace, count: int = 2, drain_s: float = 1.0, **more: Any
) -> AsyncIterator[list[TestServer]]:
    """Run servers that share a Redis, and wait until each has joined the others.

    `more` are further settings.
    """
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=drain_s, **more)
    async with running_nodes(redis.url, count, settings=settings) as servers:
        yield list(servers)


@asynccontextmanager
async def hosted(
    server: TestServer, *tools: Callable[..., Any], name: str = "kit"
) -> AsyncIterator[RoomClient]:
    """Host a toolkit at a node."""
    async with server.room("host") as room:
        async with room.host(Toolkit(name, list(tools))):
            yield room


async def until_listed(room: RoomClient, name: str) -> None:
    """Wait until a toolkit is listed at this node."""
    async with room.events(["toolkits"]) as events:
        if name in [each.name async for each in room.toolkits()]:
            return
        async for event in events:
            if event.toolkit is not None and event.toolkit.name == name:
                return


async def until_present(room: RoomClient, *names: str) -> None:
    """Wait until participants are present at this node."""
    async with room.events(["participants"]) as events:
        seen = {each.name for each in await room.participants()}
        while not seen.issuperset(names):
            person = (await anext(aiter(events))).participant
            assert person is not None
            seen.add(person.name)
