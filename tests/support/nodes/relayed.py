"""Two servers that share a Redis, each with its own relay to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from support.redis.relay import RedisRelay, redis_relay
from support.redis.server import RedisServer, redis_server
from toolbus.auth.keys import Key, KeyRing
from toolbus_server.cluster.node import Node
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

__all__ = ["RelayedNodes", "joined_nodes", "node_of", "relayed_nodes"]


class RelayedNodes(NamedTuple):
    """Two nodes, `here` and `there`, and their relays to Redis."""

    redis: RedisServer
    here: TestServer
    there: TestServer
    here_way: RedisRelay
    there_way: RedisRelay


def node_of(server: TestServer) -> Node:
    """Return the cluster part of a server."""
    assert server.server.node is not None
    return server.server.node


@asynccontextmanager
async def joined_nodes(*urls: str, node: str = "") -> AsyncIterator[list[TestServer]]:
    """Run a server for each URL of their Redis, and wait until each has joined the others."""
    key = Key.generate(kid="test", iss="toolbus-test")
    async with AsyncExitStack() as stack:
        servers = []
        for url in urls:
            settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=url, node=node)
            running = running_server(key=key, settings=settings)
            servers.append(await stack.enter_async_context(running))
            await node_of(servers[-1]).is_joined.wait()
        yield servers


@asynccontextmanager
async def relayed_nodes() -> AsyncIterator[RelayedNodes]:
    """Run a Redis, two relays to it, and a node behind each."""
    async with redis_server() as redis:
        async with redis_relay(redis.port) as here_way, redis_relay(redis.port) as there_way:
            async with joined_nodes(here_way.url, there_way.url) as (here, there):
                yield RelayedNodes(redis, here, there, here_way, there_way)
