"""A node's name is unique: no other node starts with it, but the same node does after it was
killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import hosted
from support.nodes.processes import named_server
from support.nodes.tools import add
from support.patience import PATIENCE_S
from support.redis.server import RedisServer
from toolbus import KeyRing, Toolkit
from toolbus_server.cluster import node
from toolbus_server.cluster.node import LEASE_S
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

LEASES = "toolbus:nodes:leases"
WAITS = "this node starts after it has"


@pytest.fixture
async def client(redis: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis.url) as client:
        yield client


async def lease_of_one(client: Redis) -> bytes:
    """Wait until there is one lease, and return its incarnation."""
    while not (leases := await client.zrange(LEASES, 0, -1)):
        pass
    (lease,) = leases
    assert isinstance(lease, bytes)
    return lease


async def age(client: Redis, lease: bytes, seconds: float) -> None:
    """Move the end of a lease closer by this much."""
    await client.zincrby(LEASES, -1000 * seconds, lease)


async def test_second_node_of_a_name_refuses_to_start_while_the_first_lives(
    redis: RedisServer, client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "HEARTBEAT_S", 0.2)  # so that the second one soon sees it
    settings = ServerSettings(keys=KeyRing([]), port=0, redis=redis.url, node="one")
    async with asyncio.timeout(PATIENCE_S), running_server(settings=settings) as first:
        async with hosted(first, add), first.room("me") as me:
            lease = await lease_of_one(client)
            async with named_server(tmp_path, redis) as second:
                assert await second.process.wait() == 3
                await second.until_logged("already_exists")
            assert "another live server has the node name one" in second.log[-1]
            assert await lease_of_one(client) == lease
            assert await me.call("kit.add", a=1, b=1) == 2


async def test_node_that_was_killed_starts_again_under_its_name_once_its_lease_has_ended(
    redis: RedisServer, client: Redis, tmp_path: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), named_server(tmp_path, redis) as first:
        await first.url()
        await first.end(signal.SIGKILL)
        while len(await client.client_list()) > 1:  # it may have renewed its lease at the end
            pass
        killed = await lease_of_one(client)
        await age(client, killed, -10 * PATIENCE_S)  # it does not end by itself during the test
        async with named_server(tmp_path, redis) as second:
            await second.until_logged(WAITS)
            assert await second.end() == 0, "a server that waits for its name stops on a signal"
        assert await lease_of_one(client) == killed
        async with named_server(tmp_path, redis) as third:
            await third.until_logged(WAITS)
            await age(client, killed, 11 * PATIENCE_S)
            await third.url()
            assert await lease_of_one(client) != killed


@pytest.mark.long
async def test_node_whose_name_was_taken_while_it_was_frozen_serves_by_itself(
    redis: RedisServer, client: Redis, tmp_path: Path
) -> None:
    async with asyncio.timeout(PATIENCE_S), named_server(tmp_path, redis) as first:
        async with await first.room("me") as me, me.host(Toolkit("kit", [add])):
            first.process.send_signal(signal.SIGSTOP)
            await age(client, await lease_of_one(client), LEASE_S)
            async with named_server(tmp_path, redis) as second:
                await second.url()
                lease = await lease_of_one(client)
                first.process.send_signal(signal.SIGCONT)
                await first.until_logged("another server has the node name one")
                assert await me.call("kit.add", a=1, b=1) == 2
                assert await lease_of_one(client) == lease
                assert await second.end() == 0
            assert await lease_of_one(client) != lease
            assert await me.call("kit.add", a=1, b=1) == 2
