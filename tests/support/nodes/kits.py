"""What tests of nodes need at each: a host with a toolkit, a faulty connection to Redis, retried
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.nodes.tools import Holding, add, numbers
from support.processes.server_process import ServerProcess
from support.redis.server import RedisServer
from toolbus import NoHost, RoomClient, RoomException, Toolkit, Unavailable
from toolbus_server.testing import FaultProxy, TestServer


async def error_of(call: Awaitable[Any]) -> RoomException:
    """Return the error that a call ends with."""
    with pytest.raises(RoomException) as raised:
        await call
    return raised.value


async def until_works(room: RoomClient, toolkit: str = "kit") -> None:
    """Call until a call succeeds."""
    while True:
        try:
            assert await room.invoke(f"{toolkit}.add", {"a": 1, "b": 1}, timeout_s=5.0)
        except (Unavailable, NoHost):
            await asyncio.sleep(0)
        else:
            return


@asynccontextmanager
async def proxied(redis: RedisServer) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Put a fault proxy before Redis; yield it with the URL for a node."""
    async with FaultProxy(f"ws://127.0.0.1:{redis.port}") as proxy:
        yield proxy, f"redis://127.0.0.1:{urlsplit(proxy.url).port}/0"


class Kit:
    """A host at a node, with a tool that runs until it is released, and its own caller there."""

    def __init__(self, server: TestServer | ServerProcess, name: str) -> None:
        self.server = server
        self.name = name
        self.holding = Holding()

    @asynccontextmanager
    async def hosted(self) -> AsyncIterator[RoomClient]:
        """Host it."""
        async with self.server.room(f"host-of-{self.name}") as room:
            async with room.host(Toolkit(self.name, [add, numbers, self.holding.tool])):
                try:
                    yield room
                finally:
                    self.holding.is_over.set()
