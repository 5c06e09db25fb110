"""Two nodes at which a toolkit's name is reserved for a host that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import ask, offer
from support.nodes.cluster import nodes
from support.redis.server import RedisServer
from support.rooms.events import until_hosts
from toolbus import RoomClient
from toolbus_server.limits import Limits
from toolbus_server.testing import TestServer

TIME_S = 60
RESERVED_S = 3


async def until_published(server: TestServer, room: str = "lab") -> None:
    """Wait until Redis has all that a node publishes about a room."""
    replication: Any = server.server.hub.rooms[room].routed.replication
    await replication.wait_until_published()


async def kept_in(redis: RedisServer) -> list[bytes]:
    """Return the reserved names that Redis holds: they would be released by any node that reads
    them.
    """
    # The URL may be that of a user with the rights of a node, who may not run CLIENT SETINFO.
    async with Redis.from_url(redis.url, driver_info=None) as client:
        facts = [key for key in await client.hkeys("toolbus:{r:lab}:facts") if key[:1] == b"k"]
        return [*facts, *await client.zrange("toolbus:{r:lab}:kept", 0, -1)]


@asynccontextmanager
async def lost_name(redis: RedisServer) -> AsyncIterator[tuple[TestServer, TestServer, RoomClient]]:
    """Run two nodes; at the second, where a witness is, the host of `echo` has just been lost."""
    limits = Limits(reservation_ms=RESERVED_S * 1000)
    async with asyncio.timeout(TIME_S), nodes(redis, limits=limits) as (here, there):
        async with there.room("witness") as witness:
            async with raw_participant(there, "host") as host:
                await ask(host, offer())
                host.abort()
            await until_hosts(witness, "echo", 0)
            await until_published(there)
            assert {b"k+echo", b"+echo"} <= {*await kept_in(redis)}
            yield here, there, witness
