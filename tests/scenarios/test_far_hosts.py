"""Hosts at other nodes: a slow way there, a clock that is wrong, a host that moves."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from redis.asyncio import Redis

from scenarios.test_nodes import Holding, add, until_listed
from support.node_kits import Kit, error_of, proxied
from support.redis_relay import Fate, carries
from support.redis_server import redis_server
from support.relayed_nodes import joined_nodes, relayed_nodes
from support.server_process import server_process
from toolbus import RoomClient, Toolkit, tool
from toolbus.wire import Dispatch
from toolbus_server.nodes import node as node_module
from toolbus_server.testing import Faults

TIME_S = 30
SKEW_S = 300.0
_SKEWED = f"""
import time
def skewed(clock, by):
    return lambda: clock() + by
time.time, time.time_ns = skewed(time.time, {SKEW_S}), skewed(time.time_ns, {int(SKEW_S)} * 10**9)
from toolbus_command import main
main()
"""


@pytest.mark.alone
@pytest.mark.row(83)
async def test_50_ms_more_to_redis_make_a_call_slower_by_two_hops_and_none_fail() -> None:
    late_s = 0.05
    async with asyncio.timeout(TIME_S), redis_server() as redis:
        async with (
            proxied(redis) as (here_way, here_url),
            proxied(redis) as (there_way, there_url),
            joined_nodes(here_url, there_url) as (here, there),
            Kit(there, "kit").hosted(),
            here.room("me") as me,
        ):
            await until_listed(me, "kit")
            before_s = median([await _call_s(me) for _ in range(20)])
            for way in (here_way, there_way):  # half of it each way
                way.to_server = way.to_participant = Faults(latency_s=late_s / 2)
            allowed_s = before_s + 2 * late_s + 0.02
            # What else the machine does adds to it: a few tries, of which the kindest counts.
            alone_s = [median([await _call_s(me) for _ in range(5)]) for _ in range(3)]
            assert late_s < min(alone_s) < allowed_s
            for _ in range(8):
                if (together_s := await _together_s(me)) < allowed_s:
                    break
            assert together_s < allowed_s
            async with me.stream("kit", "numbers", {"count": 2_000}) as chunks:
                assert [chunk.value async for chunk in chunks] == list(range(2_000))
            for name in ("a", "b", "c"):
                async with here.room(name) as late:  # its news may still be on its way
                    assert await late.call("kit.add", a=1, b=1) == 2


async def _call_s(room: RoomClient) -> float:
    began_at = time.perf_counter()
    assert await room.invoke("kit", "add", {"a": 1, "b": 1}, retry=False)
    return time.perf_counter() - began_at


async def _together_s(room: RoomClient) -> float:
    """Make calls, each at a moment of its own while others are on their way; the median."""
    calls = []
    for _ in range(30):
        calls.append(asyncio.create_task(_call_s(room)))
        await room.participants()
    return median(await asyncio.gather(*calls))


@pytest.mark.row(79)
async def test_a_clock_that_is_five_minutes_wrong_has_no_effect(tmp_path: Path) -> None:
    holding = Holding()
    async with asyncio.timeout(TIME_S), redis_server() as redis:
        async with (
            server_process(tmp_path, "--redis", redis.url) as here,
            server_process(tmp_path, "--redis", redis.url, program=("-c", _SKEWED)) as there,
            Redis.from_url(redis.url) as client,
            here.room("me") as me,
            there.room("host") as host,
            host.host(Toolkit("kit", [add, holding.tool])),
            me.host(Toolkit("mine", [add])),
        ):
            await asyncio.gather(until_listed(me, "kit"), until_listed(host, "mine"))
            people = {each.name: each.since for each in await me.participants()}
            assert abs(people["host"] - people["me"] - SKEW_S) < 30, "the clock is right"
            assert await me.call("kit.add", a=1, b=1) == 2
            assert await host.call("mine.add", a=1, b=1) == 2
            error = await error_of(me.invoke("kit", "hold", timeout_s=0.3))
            assert (error.code, error.executed) == ("deadline_exceeded", "maybe")
            await holding.ended.wait()
            await _until_renewed(client)
            assert {each.name for each in await me.participants()} == {"me", "host"}
            assert {each.name for each in await host.participants()} == {"me", "host"}


async def _until_renewed(client: Redis) -> None:
    """Wait until each of two leases ends later than it did, and within one life of now."""
    before = await _leases(client)
    assert len(before) == 2
    after = before
    while not all(after[name] > ends_ms for name, ends_ms in before.items()):
        after = await _leases(client)
    seconds, _ = await client.time()
    for ends_ms in after.values():
        assert 0 < ends_ms / 1000 - seconds <= node_module.LEASE_S + 1


async def _leases(client: Redis) -> dict[Any, float]:
    """Tell when each node's lease ends, in ms of the clock of Redis."""
    leases: list[Any] = await client.zrange("toolbus:nodes", 0, -1, withscores=True)
    return dict(leases)


@pytest.mark.row(81)
@pytest.mark.parametrize("stays", [False, True])
async def test_a_call_on_its_way_to_a_host_that_has_moved_finds_it(stays: bool) -> None:
    ran: list[str] = []

    def told(place: str) -> Any:
        @tool
        async def run() -> str:
            """Say where this ran."""
            ran.append(place)
            return place

        return run

    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes, nodes.here.room("me") as me:
        async with AsyncExitStack() as stack:
            if stays:  # its connection, without the toolkit
                first = await stack.enter_async_context(nodes.there.room("host", instance="one"))
            async with AsyncExitStack() as leaving:
                if not stays:
                    gone = nodes.there.room("host", instance="one")
                    first = await leaving.enter_async_context(gone)
                await leaving.enter_async_context(first.host(Toolkit("kit", [told("there")])))
                await until_listed(me, "kit")
                assert await me.call("kit.run") == "there"
                held = nodes.there_way.coming(carries(Dispatch), Fate.HELD)
                sent = nodes.here_way.going(carries(Dispatch), Fate.PASSED)
                again = nodes.here_way.going(carries(Dispatch), Fate.PASSED)
                call = asyncio.create_task(me.call("kit.run"))
                await asyncio.gather(sent.met.wait(), held.met.wait())
            async with nodes.here.room("host", instance="two") as second:
                async with second.host(Toolkit("kit", [told("here")])):
                    held.release()
                    assert await call == "here"
                    assert ran == ["there", "here"]
                    assert not again.met.is_set(), "it was sent to the former place again"
