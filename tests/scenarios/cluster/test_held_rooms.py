"""A room in which a call has waited for a person ends, and nothing of it stays in memory."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from weakref import ref

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import nodes, until_listed, until_present
from support.nodes.processes import SHORT_LEASES, node_processes
from support.patience import PATIENCE_S
from support.redis.server import RedisPlace, any_redis
from support.rooms.approvals import person_in
from toolbus import Toolkit, tool
from toolbus.auth.keys import KeyRing
from toolbus.errors import RoomException
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.redis)], ids=["alone", "nodes"])
async def servers(request: pytest.FixtureRequest) -> AsyncIterator[list[TestServer]]:
    if request.param == 1:
        async with running_server(settings=ServerSettings(keys=KeyRing([]), port=0)) as server:
            yield [server]
    else:
        async with any_redis() as redis, nodes(redis, 2) as running:
            yield running


@pytest.mark.parametrize("decision", ["approved", "cancelled"])
async def test_room_in_which_a_call_waited_ends_with_its_participants(
    servers: list[TestServer], decision: str
) -> None:
    @tool(approval=True)
    async def write() -> str:
        return "done"

    async with (
        asyncio.timeout(PATIENCE_S),
        servers[0].room("host") as host,
        servers[-1].room("ann") as ann,
        host.host(Toolkit("files", [write])),
    ):
        await until_listed(ann, "files")
        await until_present(host, "ann")
        async with person_in(ann) as person:
            call = asyncio.create_task(ann.invoke("files.write", approval_timeout_s=86_400))
            hold = await person.asked()
            if decision == "approved":
                await ann.approve(hold)
                await call
            else:
                call.cancel()
                with pytest.raises((asyncio.CancelledError, RoomException)):
                    await call
            await person.settled()
        rooms = [ref(server.server.hub.rooms["lab"].hold_requests) for server in servers]
    del host, ann, call, hold, person
    async with asyncio.timeout(PATIENCE_S):
        while any(room() is not None for room in rooms):
            await asyncio.sleep(0)
            gc.collect()


@pytest.mark.redis
async def test_node_that_was_killed_is_not_sent_to_without_a_pause(tmp_path: Path) -> None:
    """Until its lease ends, nobody receives what is sent there: some thousands each second."""

    @tool(approval=True)
    async def write() -> None: ...

    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(any_redis())
        running = node_processes(tmp_path, redis.url, redis.url, program=SHORT_LEASES)
        here, there = await stack.enter_async_context(running)
        host = await stack.enter_async_context(here.room("host"))
        await stack.enter_async_context(host.host(Toolkit("files", [write])))
        ann = await stack.enter_async_context(here.room("ann"))
        await stack.enter_async_context(there.room("away"))
        await until_present(ann, "away")
        people = await stack.enter_async_context(ann.events(["participants"]))
        await there.end(signal.SIGKILL)
        before = await published(redis)
        call = asyncio.create_task(ann.invoke("files.write"))
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(aiter(people))).name != "participant_left":
                pass
        assert await published(redis) - before < 200
        call.cancel()
        await asyncio.wait([call])


async def published(redis: RedisPlace) -> int:
    async with Redis.from_url(redis.url) as client:
        return int((await client.info("commandstats"))["cmdstat_publish"]["calls"])
