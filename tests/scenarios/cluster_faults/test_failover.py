"""A primary Redis that dies: Sentinels promote another one, which may lack the last writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import nodes, until_listed, until_present
from support.nodes.relayed import node_of
from support.nodes.tools import Holding, add
from support.redis.sentinels import WatchedRedis, watched_redis
from support.redis.server import RedisServer
from toolbus import RoomClient, Toolkit
from toolbus.auth.keys import KeyRing
from toolbus.errors import Unavailable
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.redis import client as redis_line
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

TIME_S = 60


@pytest.fixture
async def redis() -> AsyncIterator[WatchedRedis]:
    async with watched_redis() as group:
        yield group


async def names_in(server: RedisServer) -> int:
    """Count the participants of the room "lab" in a Redis."""
    async with Redis.from_url(server.url) as client:
        keys: Any = await client.hkeys("toolbus:{r:lab}:facts")
        return sum(key.startswith(b"m") for key in keys)


def settings_of(redis: WatchedRedis) -> ServerSettings:
    return ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=redis.url)


async def left(servers: list[TestServer], room: RoomClient) -> None:
    """Wait until nodes have noticed that their Redis is away."""
    for server in servers:
        while node_of(server).is_joined.is_set():
            await room.participants()


async def joined(servers: list[TestServer]) -> None:
    """Wait until nodes have joined each other."""
    for server in servers:
        await node_of(server).is_joined.wait()


async def until_generation(room: RoomClient, number: int) -> None:
    """Wait until calls to the toolkit "kit" go to a generation."""
    async with room.events(["toolkits"]) as stream:
        while (await room.explain("kit.add")).generation != number:
            await anext(aiter(stream))


async def view_of(room: RoomClient) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Return the participants, and for each toolkit the generation that serves and its hosts."""
    listed = sorted(each.name for each in await room.participants())
    kits = [each.name async for each in room.toolkits()]
    plans = {kit: await room.explain(f"{kit}.add") for kit in kits}
    return listed, {kit: (plan.generation, plan.hosts) for kit, plan in plans.items()}


async def host_anew(stack: AsyncExitStack, server: TestServer, holding: Holding) -> None:
    """Register the generations 2 and 4 of the identity "host"; 3 is used by one that leaves."""
    second = await stack.enter_async_context(server.room("host", instance="second"))
    newer = Toolkit("kit", [add, holding.tool])
    await stack.enter_async_context(second.host(newer, supersede=True))
    async with second.host(Toolkit("short-lived", [add])):
        pass
    await stack.enter_async_context(second.host(Toolkit("new", [add])))


@pytest.mark.redis
async def test_after_a_failover_that_lost_writes_every_node_has_the_room_as_it_is(
    redis: WatchedRedis,
) -> None:
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as servers, AsyncExitStack() as stack:
        here, there = servers
        enter = stack.enter_async_context
        host, me = await enter(there.room("host")), await enter(here.room("me"))
        await enter(host.host(Toolkit("kit", [add])))
        async with there.room("leaver"):
            await until_present(me, "host", "leaver")
            await until_listed(me, "kit")
            await redis.until_copied()
            await redis.copy_no_more()
        late = await enter(here.room("late"))
        await host_anew(stack, there, holding)
        await until_generation(me, 2)
        await until_listed(late, "new")

        call = asyncio.create_task(me.invoke("kit.hold", {}))
        await holding.began.wait()
        await redis.primary.kill()
        assert await names_in(redis.replica) == 3  # host, me, and leaver
        with pytest.raises(Unavailable) as raised:
            await call
        assert raised.value.executed == "maybe"
        await left(servers, me)
        assert await host.call("kit.add", a=1, b=1) == 2
        await redis.until_another_is_primary()
        await joined(servers)
        # A participant that joins now is published after all that a node had to publish and to
        # delete.
        last_here, last_there = await enter(here.room("x")), await enter(there.room("y"))
        await until_present(last_here, "y")
        await until_present(last_there, "x")
        third = await enter(running_server(key=here.key, settings=settings_of(redis)))
        last = await enter(third.room("z"))  # all that this one knows comes from Redis
        await until_present(me, "z")
        await until_present(host, "z")
        listed = ["host", "host", "late", "me", "x", "y", "z"]
        for room in (last, me, late, host, last_here, last_there):
            assert await view_of(room) == (listed, {"kit": (2, 1), "new": (4, 1)})
        assert await names_in(redis.replica) == len(listed)
        assert await me.call("kit.add", a=2, b=2) == 4


@pytest.mark.long
async def test_a_primary_and_a_sentinel_that_stand_still_are_left_for_those_that_answer(
    redis: WatchedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_s = redis_line.ANSWER_S
    monkeypatch.setattr(redis_line, "ANSWER_S", 0.5)
    monkeypatch.setattr(redis_line, "_OPEN_S", 2.5)
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.5)
    async with asyncio.timeout(TIME_S), nodes(redis) as servers:
        here, there = servers
        async with there.room("host") as host, here.room("me") as me:
            async with host.host(Toolkit("kit", [add])):
                await until_listed(me, "kit")
                redis.primary.freeze()  # the Sentinels still name it for a second or two
                await left(servers, me)
                monkeypatch.setattr(redis_line, "ANSWER_S", answer_s)
                redis.sentinels[0].freeze()
                await joined(servers)
                await until_present(me, "host")
                await until_listed(me, "kit")
                assert await me.call("kit.add", a=1, b=1) == 2
                redis.primary.thaw()  # it was reconfigured meanwhile, which changes nothing
                assert await me.call("kit.add", a=1, b=2) == 3
