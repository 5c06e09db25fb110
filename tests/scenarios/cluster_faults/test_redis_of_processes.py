"""A Redis that ends, is suspended, loses all data or is replaced, under nodes that are processes.

As in `test_node_processes`, it is seen from outside; other tests check what nodes then hold.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import until_listed, until_present
from support.nodes.kits import Kit, error_of, until_works
from support.nodes.processes import node_processes
from support.nodes.tools import add
from support.processes.server_process import server_process
from support.redis.sentinels import watched_redis
from support.redis.server import RedisServer
from support.rooms.events import kits_of, names_of
from toolbus import RoomClient, Toolkit

TIME_S = 60


@pytest.mark.parametrize(
    ("how", "least_s"),
    [
        ("killed", 0.0),
        ("frozen", 0.0),
        pytest.param("killed", 30.0, marks=pytest.mark.soak),
        pytest.param("frozen", 30.0, marks=pytest.mark.soak),
    ],
)
async def test_without_redis_each_node_serves_by_itself_and_all_recover_later(
    redis: RedisServer, tmp_path: Path, how: str, least_s: float
) -> None:
    async with (
        asyncio.timeout(TIME_S + least_s),
        node_processes(tmp_path, redis.url, redis.url) as (here, there),
        AsyncExitStack() as stack,
    ):
        near, far = Kit(here, "near"), Kit(there, "far")
        me = await stack.enter_async_context(near.hosted())
        other = await stack.enter_async_context(far.hosted())
        async with there.room("leaver"):
            await asyncio.gather(until_listed(me, "far"), until_listed(other, "near"))
            await until_present(me, "leaver")
            call = asyncio.create_task(me.invoke("far.hold", retry=False))
            within = asyncio.create_task(me.invoke("near.hold", retry=False))
            await asyncio.gather(far.holding.began.wait(), near.holding.began.wait())
            await (redis.kill() if how == "killed" else asyncio.to_thread(redis.freeze))
            error = await error_of(call)
            assert (error.code, error.executed) == ("unavailable", "maybe")
            await far.holding.ended.wait()
        late = await stack.enter_async_context(there.room("late"))
        await _goes_on(me, other, least_s)
        await (redis.start() if how == "killed" else asyncio.to_thread(redis.thaw))
        await asyncio.gather(until_works(me, "far"), until_works(other, "near"))
        for room in (me, other, late):
            await until_present(room, "host-of-near", "host-of-far", "late")
            assert await names_of(room) == ["host-of-far", "host-of-near", "late"]
            assert await kits_of(room) == {"near": 1, "far": 1}
        assert not within.done()


async def _goes_on(me: RoomClient, other: RoomClient, seconds: float) -> None:
    """Check for this long that calls within each node succeed, and none between them."""
    until_s = perf_counter() + seconds
    async with me.host(Toolkit("own", [add]), public=False):
        while True:
            unsent = await error_of(me.invoke("far.add", {"a": 1, "b": 1}, retry=False))
            assert (unsent.code, unsent.executed) == ("unavailable", "no")
            for room, tool in ((me, "near.add"), (me, "own.add"), (other, "far.add")):
                assert await room.call(tool, a=1, b=1) == 2
            if perf_counter() >= until_s:
                return
            await asyncio.sleep(0.05)


async def test_nodes_publish_everything_again_to_a_redis_that_lost_it(
    redis: RedisServer, tmp_path: Path
) -> None:
    """A node that starts later knows only what Redis has."""
    async with (
        asyncio.timeout(TIME_S),
        node_processes(tmp_path, redis.url, redis.url) as (here, there),
        Redis.from_url(redis.url) as client,
    ):
        near, far = Kit(here, "near"), Kit(there, "far")
        async with near.hosted() as me, far.hosted() as other:
            await asyncio.gather(until_listed(me, "far"), until_listed(other, "near"))
            await until_works(me, "far")
            await client.flushall()
            while await client.hlen("toolbus:{r:lab}:facts") < 4:
                assert await me.call("near.add", a=1, b=1) == 2
                await asyncio.sleep(0.02)
            async with server_process(tmp_path, "--redis", redis.url) as third:
                async with third.room("late") as late:
                    await until_present(late, "host-of-near", "host-of-far")
                    assert await kits_of(late) == {"near": 1, "far": 1}
                    await until_works(late, "far")
                    await asyncio.gather(until_present(me, "late"), until_present(other, "late"))
            await until_works(me, "far")


@pytest.mark.long
async def test_after_a_failover_that_lost_writes_no_participant_is_missing_or_listed_twice(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(TIME_S),
        watched_redis() as redis,
        node_processes(tmp_path, redis.url, redis.url) as (here, there),
    ):
        near, far = Kit(here, "near"), Kit(there, "far")
        async with near.hosted() as me, far.hosted() as other:
            await asyncio.gather(until_listed(me, "far"), until_listed(other, "near"))
            async with there.room("leaver"):
                await until_present(me, "leaver")
                await redis.until_copied()
                await redis.copy_no_more()
            async with here.room("late") as late:
                await until_present(other, "late")
                call = asyncio.create_task(me.invoke("far.hold", retry=False))
                await far.holding.began.wait()
                await redis.primary.kill()
                error = await error_of(call)
                assert (error.code, error.executed) == ("unavailable", "maybe")
                assert await me.call("near.add", a=1, b=1) == 2
                await redis.until_another_is_primary()
                await asyncio.gather(until_works(me, "far"), until_works(other, "near"))
                async with here.room("x") as x, there.room("y") as y:
                    # They are published after all that a node had to publish.
                    for room in (me, other, late, x, y):
                        await until_present(room, "x", "y")
                    participants = ["host-of-far", "host-of-near", "late", "x", "y"]
                    for room in (me, other, late, x, y):
                        assert await names_of(room) == participants
                        assert await kits_of(room) == {"near": 1, "far": 1}
