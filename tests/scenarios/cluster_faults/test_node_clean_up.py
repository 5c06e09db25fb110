"""What an ended node leaves in Redis is deleted by one of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import nodes
from support.redis.server import RedisServer, redis_server
from toolbus_server.cluster import node

TIME_S = 60
ROOMS = 40


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisServer]:
    monkeypatch.setattr(node, "HEARTBEAT_S", 0.05)
    async with redis_server() as server:
        yield server


async def end_a_node(client: Redis) -> None:
    """Leave the entries of a killed node that held rooms, after its lease has ended."""
    await client.sadd("toolbus:rooms:dead 1", *(f"room{number}" for number in range(ROOMS)))
    await client.sadd("toolbus:nodes:ended", "dead 1")


async def until_tidy(client: Redis) -> None:
    """Wait until nothing of it is left."""
    while await client.exists("toolbus:nodes:ended", "toolbus:rooms:dead 1"):
        pass


async def purges(client: Redis) -> int:
    """Count how often a room was read to delete a node's entries: here nothing else reads one."""
    stats = await client.info("commandstats")
    return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])


async def test_one_of_many_nodes_cleans_up_after_an_ended_node(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis, 4), Redis.from_url(redis.url) as client:
        await end_a_node(client)
        await until_tidy(client)
        assert await purges(client) == ROOMS
        while await client.exists("toolbus:nodes:cleanup:dead 1"):
            pass


async def test_another_node_takes_over_the_clean_up_of_a_node_that_ends(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis), Redis.from_url(redis.url) as client:
        await client.set("toolbus:nodes:cleanup:dead 1", "one that ended too", px=500)
        await end_a_node(client)
        assert await client.scard("toolbus:rooms:dead 1") == ROOMS
        await until_tidy(client)
        assert await purges(client) == ROOMS
