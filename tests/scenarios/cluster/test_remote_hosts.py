"""Hosts at other nodes: a slow Redis, a wrong clock, a host that moves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import until_listed
from support.nodes.kits import Kit, proxied
from support.nodes.relayed import joined_nodes, relayed_nodes
from support.nodes.tools import Holding, add
from support.processes.server_process import server_process
from support.redis.relay import Fate, carries
from support.redis.server import redis_server
from support.rooms.failures import late_in_its_tool
from toolbus import Toolkit, tool
from toolbus.wire import Dispatch, Frame, Result
from toolbus_server.cluster import node as node_module
from toolbus_server.testing import Faults

TIME_S = 60
SKEW_S = 300.0
_SKEWED = f"""
import time
def skewed(clock, by):
    return lambda: clock() + by
time.time, time.time_ns = skewed(time.time, {SKEW_S}), skewed(time.time_ns, {int(SKEW_S)} * 10**9)
from toolbus.__main__ import main
main()
"""


async def test_a_call_of_a_remote_host_is_one_message_each_way() -> None:
    """So a slower Redis adds two hops; also if many calls are in flight."""
    async with asyncio.timeout(TIME_S), relayed_nodes() as made, made.here.room("me") as me:
        async with Kit(made.there, "kit").hosted():
            await until_listed(me, "kit")
            await me.call("kit.add", a=1, b=1)
            sent, answered = Counted(Dispatch), Counted(Result)
            made.here_way.intercept_published(sent)
            made.there_way.intercept_published(answered)
            for number in range(1, 21):
                assert await me.invoke("kit.add", {"a": 1, "b": 1}, retry=False)
                assert (sent.messages, answered.messages) == (number, number)
            await asyncio.gather(*(me.call("kit.add", a=1, b=1) for _ in range(30)))
            assert sent.messages <= 50
            assert answered.messages <= 50


class Counted:
    """Matches no message, and counts those that contain a frame of this kind."""

    def __init__(self, kind: type[Frame]) -> None:
        self._carries = carries(kind)
        self.messages = 0

    def __call__(self, message: bytes) -> bool:
        self.messages += self._carries(message)
        return False


async def test_50_ms_more_to_redis_fail_no_call() -> None:
    async with asyncio.timeout(TIME_S), redis_server() as redis:
        async with (
            proxied(redis) as (here_way, here_url),
            proxied(redis) as (there_way, there_url),
            joined_nodes(here_url, there_url) as (here, there),
            Kit(there, "kit").hosted(),
            here.room("me") as me,
        ):
            await until_listed(me, "kit")
            for way in (here_way, there_way):  # half of it each way
                way.to_server = way.to_participant = Faults(latency_s=0.025)
            for _ in range(5):
                assert await me.invoke("kit.add", {"a": 1, "b": 1}, retry=False)
            assert await asyncio.gather(*(me.call("kit.add", a=1, b=1) for _ in range(30)))
            async with me.stream("kit.numbers", {"count": 2_000}) as chunks:
                assert [chunk.value async for chunk in chunks] == list(range(2_000))
            for name in ("a", "b", "c"):
                async with here.room(name) as late:  # its events may still be on their way
                    assert await late.call("kit.add", a=1, b=1) == 2


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
            listed = {each.name: each.since for each in await me.participants()}
            assert abs(listed["host"] - listed["me"] - SKEW_S) < 30, "the clock is right"
            assert await me.call("kit.add", a=1, b=1) == 2
            assert await host.call("mine.add", a=1, b=1) == 2
            error = await late_in_its_tool(
                lambda limit_s: me.invoke("kit.hold", timeout_s=limit_s), holding.began.is_set
            )
            assert error.executed == "maybe"
            await holding.ended.wait()
            await _until_renewed(client)
            assert {each.name for each in await me.participants()} == {"me", "host"}
            assert {each.name for each in await host.participants()} == {"me", "host"}


async def _until_renewed(client: Redis) -> None:
    """Wait until each of two leases ends later than before, and within one lifetime from now."""
    before = await _leases(client)
    assert len(before) == 2
    after = before
    while not all(after[name] > ends_ms for name, ends_ms in before.items()):
        after = await _leases(client)
    seconds, _ = await client.time()
    for ends_ms in after.values():
        assert 0 < ends_ms / 1000 - seconds <= node_module.LEASE_S + 1


async def _leases(client: Redis) -> dict[Any, float]:
    """Return when each node's lease ends, in ms of the clock of Redis."""
    leases: list[Any] = await client.zrange("toolbus:nodes:leases", 0, -1, withscores=True)
    return dict(leases)


@pytest.mark.parametrize("stays", [False, True])
async def test_a_call_on_its_way_to_a_host_that_has_moved_finds_it(stays: bool) -> None:
    ran: list[str] = []

    def kit_at(place: str) -> Any:
        @tool
        async def run() -> str:
            """Return the host at which this ran."""
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
                await leaving.enter_async_context(first.host(Toolkit("kit", [kit_at("there")])))
                await until_listed(me, "kit")
                assert await me.call("kit.run") == "there"
                held = nodes.there_way.intercept_inbox(carries(Dispatch), Fate.HELD)
                sent = nodes.here_way.intercept_published(carries(Dispatch), Fate.PASSED)
                again = nodes.here_way.intercept_published(carries(Dispatch), Fate.PASSED)
                call = asyncio.create_task(me.call("kit.run"))
                await asyncio.gather(sent.met.wait(), held.met.wait())
            async with nodes.here.room("host", instance="two") as second:
                async with second.host(Toolkit("kit", [kit_at("here")])):
                    held.release()
                    assert await call == "here"
                    assert ran == ["there", "here"]
                    assert not again.met.is_set(), "it was sent to the former place again"
