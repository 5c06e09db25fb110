"""Nodes of two releases at one Redis: only those that came first have it, and the others wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.clients.plain_http import read
from support.deploy.balancer import balancer
from support.nodes.cluster import nodes
from support.nodes.kits import until_works
from support.nodes.relayed import node_of
from support.nodes.releases import BEFORE_VERSIONS, earlier_release, program
from support.nodes.tools import add
from support.processes.server_process import ServerProcess, server_process
from support.redis.server import RedisServer
from support.rooms.events import until
from toolbus import RoomClient, Toolkit
from toolbus.cli.commands.doctor import check_room
from toolbus.cli.room_options import RoomOptions
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.exchange import EXCHANGE_KEY, LEASES_KEY
from toolbus_server.cluster.isolation import ALONE_TEXT, READY_TEXT
from toolbus_server.cluster.lease import _SCRIPTS
from toolbus_server.cluster.standby import STANDBY_TEXT
from toolbus_server.testing import TestServer, running_server
from toolbus_server.websocket import leaving

TIME_S = 60
OTHER = "other 1"


@pytest.fixture
async def client(redis: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis.url) as client:
        yield client


async def readiness(url: str) -> tuple[int, str]:
    answer = await read(url, "/readyz")
    return answer.status, answer.body


async def rooms_in_redis(client: Redis) -> dict[Any, Any]:
    """Read all that nodes store about rooms."""
    keys = [*await client.keys("toolbus:rooms*"), *await client.keys("toolbus:{r:*")]
    return {key: await client.dump(key) for key in keys}


async def until_a_node_has_tried_again(client: Redis) -> None:
    """Wait until a node has tried twice to join: each time it loads all scripts."""

    async def loaded() -> int:
        stats = await client.info("commandstats")
        return int(stats["cmdstat_script|load"]["calls"])

    before = await loaded()
    while await loaded() < before + 2 * len(_SCRIPTS):  # noqa: ASYNC110 - Redis has no event for it
        await asyncio.sleep(0.02)


async def check_roll(
    first: ServerProcess, second: ServerProcess, client: Redis, waiting: tuple[int, str]
) -> None:
    """Start a server of another release beside one that serves, then end the one that was first."""
    async with balancer() as address:
        address.lead_to(first.url)

        def room(name: str) -> RoomClient:
            return RoomClient(address.url, room="lab", token=first.token(name))

        async with room("host") as host, host.host(Toolkit("kit", [add])), room("me") as me:
            await until_works(me)
            before = await rooms_in_redis(client)
            await second.start()
            await until_a_node_has_tried_again(client)
            assert await readiness(second.url) == waiting
            assert await readiness(first.url) == (200, READY_TEXT)
            assert await me.call("kit.add", a=1, b=2) == 3
            assert await rooms_in_redis(client) == before
            address.lead_to(first.url, second.url)
            assert await first.end(signal.SIGTERM) == 0
            while await readiness(second.url) != (200, READY_TEXT):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
            await until_works(me)


THIS, NEXT, EARLIER = "this", "next", "earlier"


def program_of(release: str, folder: Path) -> tuple[str, str]:
    """Return the program of a release; that of an earlier one is written into a folder."""
    if release == EARLIER:
        return program(*earlier_release(BEFORE_VERSIONS, folder / release))
    return program(exchange_version=1_000 if release == NEXT else None)


@pytest.mark.parametrize(
    ("releases", "waiting"),
    [
        ((THIS, NEXT), (404, STANDBY_TEXT)),
        ((EARLIER, THIS), (404, STANDBY_TEXT)),
        # It finds no leases that it can read: it serves alone, as without Redis.
        ((THIS, EARLIER), (200, ALONE_TEXT)),
    ],
)
async def test_servers_of_two_releases_never_share_a_redis_and_the_second_joins_after_the_first(
    redis: RedisServer,
    client: Redis,
    tmp_path: Path,
    releases: tuple[str, str],
    waiting: tuple[int, str],
) -> None:
    flags, programs = ("--redis", redis.url), [program_of(each, tmp_path) for each in releases]
    async with (
        asyncio.timeout(TIME_S),
        server_process(tmp_path, *flags, program=programs[0]) as first,
    ):
        second = ServerProcess(tmp_path, *flags, program=programs[1])
        try:
            await check_roll(first, second, client, waiting)
        finally:
            await second.end(signal.SIGKILL)


async def call_as_newcomer(server: TestServer) -> object:
    """Join, however long that takes, and call."""
    token = server.token("newcomer")
    async with RoomClient(server.url, room="lab", token=token, wait=TIME_S) as room:
        return await room.call("kit.add", a=1, b=2)


async def doctor_finding(url: str, token: str) -> tuple[str, str]:
    """Return status and text of the doctor's check `ready`."""
    findings = await check_room(RoomOptions(url=url, room="lab", token=token))
    return next((each.status, each.found) for each in findings if each.check == "ready")


async def test_node_that_finds_another_release_moves_its_participants_and_admits_no_others(
    redis: RedisServer,
    client: Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONN-5, LEAVE-11: as after a time without Redis, in which the others joined."""
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(node_module, "RETRY_S", 0.1)
    monkeypatch.setattr(leaving, "_AGAIN_S", 0.1)
    async with (
        asyncio.timeout(TIME_S),
        balancer() as address,
        nodes(redis, count=1) as (here,),
        running_server(key=here.key) as there,
        here.room("me") as me,
        me.host(Toolkit("kit", [add])),
    ):
        node, refused = node_of(here), here.server.admission.refused
        address.lead_to(here.url)
        async with RoomClient(address.url, room="lab", token=here.token("mover")):
            async with client.pipeline() as others:
                own: Any = await client.zscore(LEASES_KEY, node.node_id)
                others.zrem(LEASES_KEY, node.node_id)
                others.zadd(LEASES_KEY, {OTHER: own})
                others.set(EXCHANGE_KEY, "another")
                await others.execute()
            await until(lambda: node.standby.is_active)
            assert await readiness(here.url) == (404, STANDBY_TEXT)
            assert await doctor_finding(here.url, here.token("d")) == ("warn", STANDBY_TEXT.strip())
            newcomer = asyncio.create_task(call_as_newcomer(here))
            await until(lambda: refused["standby"] > 2)
            address.lead_to(there.url)
            await until(lambda: bool(there.server.hub.rooms))
        assert await me.call("kit.add", a=1, b=2) == 3
        assert not newcomer.done()
        await client.zrem(LEASES_KEY, OTHER)
        assert await newcomer == 3
    lines = [each.getMessage() for each in caplog.records if "not ready" in each.getMessage()]
    assert len(lines) == 1
    assert f"the live node {OTHER} has version another." in lines[0]
    assert f"node {node.name} joins" in caplog.text
