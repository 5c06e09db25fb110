"""Counts the commands that calls cost in Redis: two PUBLISH between nodes, none within a node."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from support.redis.server import RedisServer
from toolbus import RoomClient, Toolkit, tool
from toolbus_server.testing import running_nodes

pytestmark = pytest.mark.redis
TIME_S = 60
CALLS = 200
SPARE = CALLS // 2
"""Commands of lease renewals and probes meanwhile; one more command for each call is twice that."""


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def commands_of(client: Redis) -> tuple[int, int]:
    """Count the PUBLISH commands and all other commands that this Redis has run."""
    stats = await client.info("commandstats")
    calls = {name: each["calls"] for name, each in stats.items()}
    return calls.pop("cmdstat_publish", 0), sum(calls.values())


async def toolkit_appears(room: RoomClient) -> None:
    """Wait until the room has a toolkit."""
    async with asyncio.timeout(TIME_S):
        while True:
            if [each.name async for each in room.toolkits()]:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("host_at", "publishes"), [(0, 0), (1, 2 * CALLS)])
async def test_a_call_between_nodes_costs_two_publishes_and_one_within_a_node_none(
    redis: RedisServer, host_at: int, publishes: int
) -> None:
    async with (
        Redis.from_url(redis.url) as client,
        running_nodes(redis.url) as nodes,
        nodes[host_at].room("host") as host,
        host.host(Toolkit("demo", [add])),
        nodes[0].room("caller") as caller,
    ):
        await toolkit_appears(caller)
        assert await caller.call("demo.add", a=1, b=2) == 3
        publishes_before, others_before = await commands_of(client)
        for number in range(CALLS):
            assert await caller.call("demo.add", a=number, b=1) == number + 1
        publishes_after, others_after = await commands_of(client)
    assert publishes <= publishes_after - publishes_before <= publishes + SPARE
    assert others_after - others_before <= SPARE
