"""The ledger over three nodes with one Redis: a storm's faults of one server, and those between
nodes.

Nodes are killed, terminated and suspended, Redis is killed and suspended, and half of the
participants move between nodes. The leases are shorter than usual, so that more of them end within
the time. A failing run prints its seed, as that of one server does; `TOOLBUS_LEDGER_SEED` draws it
again. `TOOLBUS_LEDGER_CALLS` and `TOOLBUS_LEDGER_FAULTS` change the size of that at two nodes.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.redis.server import RedisServer, redis_server
from support.storm.processes import NODES
from support.storm.run import SECONDS, Storm, run_storm, storm_of, storm_seed
from toolbus_server.limits import Limits

SHORT_S = 5.0
RESERVED_MS = Limits().reservation_ms
STRETCHES = (0.6, 0.2, 0.2)
# Read here: each test removes such variables.
CALLS = int(os.environ.get("TOOLBUS_LEDGER_CALLS", "200000"))
FAULTS = int(os.environ.get("TOOLBUS_LEDGER_FAULTS", "300"))


async def leaves_nothing(storm: Storm, redis: RedisServer, nodes: int = NODES) -> None:
    """Let all processes leave, and check that Redis has nothing but reserved names, for a while."""
    for caller in storm.callers:
        await caller.__aexit__(None, None, None)
    async with asyncio.timeout(60), Redis.from_url(redis.url) as client:
        # Nodes that were killed are removed by those that live.
        ended = "toolbus:nodes:ended"
        while await client.zcard("toolbus:nodes:leases") > nodes or await client.exists(ended):  # noqa: ASYNC110 - Redis has no event for it
            await asyncio.sleep(0.1)
        await storm.processes.leave()
        left: set[Any] = set(await client.keys("toolbus:*")) - {b"toolbus:tokens:since"}
        assert [key for key in left if not key.startswith(b"toolbus:{r:")] == []
        assert all([0 < await client.pttl(key) <= RESERVED_MS for key in left])


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_in_a_storm_over_nodes_each_call_ends_once_with_a_true_executed(
    tmp_path: Path,
) -> None:
    """CALL-8, ERR-2, ERR-4, RETRY-1, STREAM-2, STREAM-5, LEAVE-4: over three nodes."""
    with storm_seed() as seed:
        async with redis_server() as redis, storm_of(seed, tmp_path, redis) as storm:
            await storm.stretch(float(SECONDS or SHORT_S), server=True, part=0)
            print(storm.summary())  # noqa: T201 - shown when the test fails
            await storm.settled()
            storm.check()
            await leaves_nothing(storm, redis)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
async def test_in_a_storm_of_minutes_over_nodes_memory_is_flat_too(tmp_path: Path) -> None:
    """As the short one, with more of everything."""
    with storm_seed() as seed:
        async with redis_server() as redis, storm_of(seed, tmp_path, redis) as storm:
            await run_storm(storm, 300.0, STRETCHES)
            await leaves_nothing(storm, redis)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_ledger_of_200_000_calls_and_300_faults_at_two_nodes(tmp_path: Path) -> None:
    """A quarter of the calls are made while nodes fail too; the others while hosts, Redis and
    connections fail."""
    with storm_seed() as seed:
        async with redis_server() as redis, storm_of(seed, tmp_path, redis, 2, 16) as storm:
            for part, (calls, faults) in enumerate(((CALLS // 4, FAULTS), (CALLS, FAULTS))):
                await storm.stretch_until(calls, faults, server=part == 0, part=part)
                print(storm.summary())  # noqa: T201 - shown when the test fails
                await storm.settled()
            storm.check()
            await leaves_nothing(storm, redis, 2)
