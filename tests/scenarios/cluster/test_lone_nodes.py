"""A single node that is cut off from Redis, what others do meanwhile, and how it rejoins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import until_listed, until_present
from support.nodes.kits import Kit, error_of, proxied, until_works
from support.nodes.relayed import joined_nodes, node_of
from support.nodes.tools import add
from support.redis.server import redis_server
from toolbus import HostLost, NoHost, RemoteToolkit, RoomClient, Toolkit
from toolbus.errors import AlreadyExists
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.redis import client as line_module
from toolbus_server.testing import Faults

TIME_S = 60


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all times that a node waits for."""
    monkeypatch.setattr(node_module, "LEASE_S", 2.1)
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(line_module, "_OPEN_S", 0.8)


async def test_a_node_that_alone_is_cut_off_stops_taking_part_before_its_lease_ends() -> None:
    async with asyncio.timeout(TIME_S), redis_server() as redis, proxied(redis) as (proxy, url):
        async with joined_nodes(redis.url, url) as (here, there), Redis.from_url(redis.url) as seen:
            near, far = Kit(here, "near"), Kit(there, "far")
            async with near.hosted() as me, far.hosted() as cut, there.room("beside") as beside:
                await asyncio.gather(until_listed(me, "far"), until_listed(cut, "near"))
                going = asyncio.create_task(cut.invoke("near.hold", retry=False))
                coming = asyncio.create_task(me.invoke("far.hold", retry=False))
                await asyncio.gather(near.holding.began.wait(), far.holding.began.wait())
                lease = node_of(there).node_id
                proxy.to_server = proxy.to_participant = Faults(lost=True)
                error = await error_of(going)
                assert (error.code, error.executed) == ("unavailable", "maybe")
                seconds, micros = await seen.time()
                ends_ms = await seen.zscore("toolbus:nodes:leases", lease)
                assert ends_ms is not None
                assert ends_ms > seconds * 1000 + micros / 1000, "its lease had ended before"
                await (
                    far.holding.ended.wait()
                )  # no node can be notified of it, so the call was stopped
                error = await error_of(cut.invoke("near.add", {"a": 1, "b": 1}, retry=False))
                assert (error.code, error.executed) == ("unavailable", "no")
                assert await beside.call("far.add", a=1, b=1) == 2
                lost = await error_of(coming)
                assert isinstance(lost, HostLost)
                assert lost.executed == "maybe"
                await near.holding.ended.wait()  # of a caller that cannot be reached
                assert {each.name for each in await me.participants()} == {"host-of-near"}
                with pytest.raises(NoHost):
                    await me.invoke("far.add", {"a": 1, "b": 1}, retry=False)
                assert await beside.call("far.add", a=1, b=1) == 2
                await proxy.heal()
                await asyncio.gather(until_works(me, "far"), until_works(cut, "near"))
                names = {"host-of-near", "host-of-far", "beside"}
                for room in (me, cut):
                    await until_present(room, *names)
                    assert {each.name for each in await room.participants()} == names


@pytest.mark.parametrize(
    "lost_way", ["to_participant", pytest.param("to_server", marks=pytest.mark.soak)]
)
async def test_a_node_that_is_cut_off_in_one_direction_rejoins(lost_way: str) -> None:
    async with asyncio.timeout(TIME_S), redis_server() as redis, proxied(redis) as (proxy, url):
        async with joined_nodes(redis.url, url) as (here, there):
            kit = Kit(here, "kit")
            async with kit.hosted() as host, there.room("me") as me:
                await until_listed(me, "kit")
                call = asyncio.create_task(me.invoke("kit.hold", retry=False))
                await kit.holding.began.wait()
                setattr(proxy, lost_way, Faults(lost=True))
                error = await error_of(call)
                assert (error.code, error.executed) == ("unavailable", "maybe")
                await kit.holding.ended.wait()
                await proxy.heal()
                await until_works(me)
                await until_present(host, "me")


async def test_a_name_that_another_took_while_a_node_was_cut_off_is_that_others_everywhere() -> (
    None
):
    async with asyncio.timeout(TIME_S), redis_server() as redis, proxied(redis) as (proxy, url):
        async with joined_nodes(redis.url, url) as (here, there):
            here.server.hub.limits = replace(here.server.hub.limits, reservation_ms=50)
            async with here.room("new") as new, there.room("old") as old:
                kit = RemoteToolkit("kit", [add])
                await kit.start(old)
                await until_listed(new, "kit")
                async with old.events(["toolkits"]) as stream:
                    proxy.to_server = proxy.to_participant = Faults(lost=True)
                    await until_removed(new)
                    other = RemoteToolkit("kit", [add])
                    await until_started(other, new)
                    assert await old.call("kit.add", a=1, b=1) == 2
                    await proxy.heal()
                    async for event in stream:
                        if event.name == "toolkit_removed":
                            break
                    await until_listed(old, "kit")
                    await until_works(old)
                for room in (old, new):
                    owners = [each.owner async for each in room.toolkits() if each.name == "kit"]
                    assert owners == ["new"]


async def until_removed(room: RoomClient) -> None:
    """Wait until a toolkit's name is free again, as this node knows it."""
    async with room.events(["toolkits"]) as stream:
        if [each async for each in room.toolkits()]:
            async for event in stream:
                if event.name == "toolkit_removed":
                    return


async def until_started(kit: RemoteToolkit, room: RoomClient) -> None:
    """Host a toolkit as soon as its name is free."""
    while True:
        try:
            await kit.start(room)
        except AlreadyExists:
            await asyncio.sleep(0)
        else:
            return


async def test_a_node_whose_name_another_node_has_taken_serves_alone_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(TIME_S), redis_server() as redis, proxied(redis) as (proxy, url):
        async with joined_nodes(url, node="twin") as (first,), first.room("me") as me:
            async with me.host(Toolkit("kit", [add])), Redis.from_url(redis.url) as client:
                proxy.to_server = proxy.to_participant = Faults(lost=True)
                while await _living(client):
                    pass
                async with joined_nodes(redis.url, node="twin") as (second,):
                    await proxy.heal()
                    while "another server has the node name twin" not in caplog.text:
                        assert await me.call("kit.add", a=1, b=1) == 2
                    async with second.room("other") as other:
                        assert {each.name for each in await other.participants()} == {"other"}
                await node_of(first).is_joined.wait()


async def _living(client: Redis) -> list[Any]:
    """Name the nodes whose leases have not ended."""
    seconds, micros = await client.time()
    now_ms = seconds * 1000 + micros // 1000
    living: list[Any] = await client.zrangebyscore("toolbus:nodes:leases", now_ms, "+inf")
    return living
