"""A room in which a call has waited for a person ends, and nothing of it stays in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from weakref import ref

import pytest

from support.nodes.cluster import nodes, until_listed, until_present
from support.patience import PATIENCE_S
from support.redis.server import any_redis
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
