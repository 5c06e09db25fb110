"""Nodes that end: participants that join meanwhile, and a node that others consider ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.relayed import node_of
from support.nodes.tools import Holding, add
from support.redis.server import RedisServer
from toolbus import DeadlineExceeded, NoHost, Toolkit, Unavailable, tool
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.replicated_room import ReplicatedRoom
from toolbus_server.testing import TestServer
from toolbus_server.websocket import leaving

TIME_S = 60


async def test_participant_that_joins_as_a_node_begins_to_drain_is_accepted_elsewhere(
    redis: RedisServer,
) -> None:
    """LEAVE-2: also one that waited for the room while the other nodes could not be asked."""
    async with asyncio.timeout(TIME_S), nodes(redis, drain_s=5.0) as (_, there):
        redis.freeze()
        entering = asyncio.create_task(there.room("late").__aenter__())
        while not there.server.hub.rooms:  # noqa: ASYNC110 - a room has no event for its begin
            await asyncio.sleep(0)
        leaving = asyncio.create_task(there.server.stop())
        await asyncio.sleep(0)
        redis.thaw()
        with pytest.raises(Unavailable) as refused:
            await entering
        assert refused.value.executed == "no"
        await leaving
        assert there.server.hub.rooms == {}


async def begin_to_enter(server: TestServer) -> asyncio.Task[None]:
    """Begin a room, as for a participant, while the other nodes cannot be asked."""
    entering = asyncio.create_task(node_of(server).enter("lab"))
    for _ in range(
        3
    ):  # turns of the loop, in which the room begins and requests its state from Redis
        await asyncio.sleep(0)
    return entering


async def test_participant_that_waits_for_a_room_that_ends_joins_the_replicated_one(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis, count=1) as (here,):
        redis.freeze()
        entering = await begin_to_enter(here)
        hub = here.server.hub
        ended = hub.rooms["lab"]
        hub.drop("lab")
        redis.thaw()
        await entering
        assert hub.rooms["lab"] is not ended
        replication = hub.rooms["lab"].routed.replication
        assert isinstance(replication, ReplicatedRoom)
        assert replication.is_loaded
        hub.drop("lab")


async def test_a_room_that_ends_before_the_others_have_answered_leaves_nothing_in_redis(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis, count=1) as (here,):
        redis.freeze()
        entering = await begin_to_enter(here)
        entering.cancel()
        here.server.hub.drop("lab")
        redis.thaw()
        await node_of(here)._rooms.wait_for_exits(TIME_S)
        async with Redis.from_url(redis.url) as client:
            left = await client.keys("*")
        assert not [key for key in left if b"rooms" in key or b"{r:" in key]


async def test_toolkits_of_a_stopping_node_are_removed_from_redis(redis: RedisServer) -> None:
    """LEAVE-3: also the host that was superseded there."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("me") as me, there.room("host") as host:
            async with host.host(Toolkit("kit", [add])):
                await until_listed(me, "kit")
                await there.server.stop()
                async with Redis.from_url(redis.url) as client:
                    facts = await client.hkeys("toolbus:{r:lab}:facts")
                assert sorted(key[:1] for key in facts) == [
                    b"k",
                    b"m",
                    b"s",
                ]  # its name is reserved


async def test_a_call_that_arrives_during_a_drain_is_served_before_the_node_leaves(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEAVE-7: if it ends within the drain time."""

    began, go = asyncio.Event(), asyncio.Event()

    @tool
    async def say() -> str:
        began.set()
        await go.wait()
        return "said"

    async def nothing_left(*waits: Coroutine[Any, Any, None]) -> None:
        for wait in waits:
            wait.close()
        await began.wait()  # as if that came right after it
        asyncio.get_running_loop().call_soon(go.set)

    monkeypatch.setattr(leaving, "wait_for_first", nothing_left)
    async with asyncio.timeout(TIME_S), nodes(redis, drain_s=10.0) as (here, there):
        async with hosted(there, say), here.room("me") as me:
            await until_listed(me, "kit")
            call = asyncio.create_task(me.call("kit.say"))
            await there.server.stop()
            assert await call == "said"


async def test_a_call_that_arrives_after_a_node_left_runs_nowhere(redis: RedisServer) -> None:
    """ERR-2: its drain time is over; the caller's node does not know that yet."""
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, holding.tool), here.room("me") as me:
            await until_listed(me, "kit")
            there.server.hub.accepts_remote_calls = False
            with pytest.raises(NoHost) as refused:
                await me.invoke("kit.hold", {}, retry=False, timeout_s=5.0)
            assert refused.value.executed == "no"
            assert not holding.began.is_set()


async def test_a_call_that_ran_is_not_reported_lost_when_its_callers_node_ends(
    redis: RedisServer,
) -> None:
    """ERR-2: what such a node sends before it knows of its end is ignored."""
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(here, holding.tool, add), there.room("me") as me:
            await until_listed(me, "kit")
            running = asyncio.create_task(me.invoke("kit.hold", {}, timeout_s=1.0))
            await holding.began.wait()
            node, other = node_of(here), node_of(there)
            node._mark_ended({other.node_id})  # as after a lease that was not renewed
            await holding.ended.wait()
            with pytest.raises(DeadlineExceeded):
                await me.invoke("kit.add", {"a": 1, "b": 1}, timeout_s=0.3, retry=False)
            with pytest.raises(DeadlineExceeded) as ended:
                await running
            assert ended.value.executed == "maybe"


async def test_a_node_that_joined_and_ended_between_two_heartbeats_is_known_as_ended(
    redis: RedisServer,
) -> None:
    """No participant is there any more then, and nothing of it is kept."""
    async with asyncio.timeout(TIME_S), nodes(redis, count=1) as (here,):
        node = node_of(here)
        async with here.room("me") as me, nodes(redis, count=1) as (there,):
            async with there.room("other"):
                await until_present(me, "other")
            other = node_of(there).node_id
        assert other in node._peers
        await node._heartbeat()
        assert other not in node._peers
        assert node._live_peer(other) is None


async def test_a_node_whose_lease_ended_before_it_knew_the_peer_is_known_after_the_next_read(
    redis: RedisServer,
) -> None:
    """As if the reply to its first heartbeat was lost, and it took long to reconnect."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        node, other = node_of(here), node_of(there)
        async with here.room("me") as me, hosted(there, add):
            await until_listed(me, "kit")
            node._mark_ended({other.node_id})
            assert [each.name for each in await me.participants()] == ["me"]
            node.lease.on_disconnected()  # the living nodes are requested as a whole
            await node.lease.load_scripts()
            await node._heartbeat()
            await until_present(me, "host")
            assert await me.call("kit.add", a=1, b=1) == 2


async def test_a_node_that_joins_during_a_heartbeat_is_not_taken_as_ended(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis, count=1) as (here,):
        node = node_of(here)
        beat = asyncio.create_task(node._heartbeat())
        await asyncio.sleep(0)
        newcomer = node._peer(
            "new 1"
        )  # as if its message arrives before the reply to the heartbeat
        await beat
        assert node._peers["new 1"] is newcomer


async def test_a_room_that_ends_while_redis_is_away_leaves_nothing_there(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("stays") as stays:
            async with there.room("goes") as goes, goes.host(Toolkit("kit", [add])):
                await until_listed(stays, "kit")
                redis.freeze()
                node = node_of(there)
                node._redis._commands.transport.abort()
                while node.is_joined.is_set():  # noqa: ASYNC110 - it has an event for the other direction only
                    await asyncio.sleep(0)
            redis.thaw()
            while [person.name for person in await stays.participants()] != ["stays"]:
                pass


async def test_a_participant_that_joins_while_its_node_rejoins_finds_the_others(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.5)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), Redis.from_url(redis.url) as client:
            lease = node_of(here).lease  # it ended, like a node that was suspended for too long
            lease.ends_at = 0.0
            await client.zrem("toolbus:nodes:leases", lease.node_id)
            async with here.room("me") as me:
                assert await me.invoke("kit.add", {"a": 1, "b": 1}, retry=False)
            assert node_of(here).lease is not lease
