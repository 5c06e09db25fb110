"""PROTOCOL.md, HOLD-19, over nodes: the host at one, its caller at another, which comes back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.nodes.cluster import nodes, until_listed, until_present
from support.nodes.processes import SHORT_LEASES, node_processes
from support.redis.server import RedisPlace, any_redis
from support.rooms.approvals import person_in
from toolbus import RoomClient, Toolkit, tool
from toolbus.errors import ConnectionLost
from toolbus.room.room import room_of_call
from toolbus_server.testing import FaultProxy

pytestmark = pytest.mark.redis


class Files:
    """A toolkit that keeps what it wrote."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.toolkit = Toolkit("files", [self.write])

    @tool(approval=True)
    async def write(self, path: str) -> str:
        self.wrote.append(path)
        return path


def writing(room: RoomClient, call_id: str = "") -> asyncio.Task[str]:
    caller = room_of_call(room, call_id) if call_id else room
    call = caller.invoke("files.write", {"path": "a"}, returns=str, retry=False)
    return asyncio.create_task(call)


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


async def test_decision_is_used_when_the_caller_is_back_at_another_node(redis: RedisPlace) -> None:
    files = Files()
    async with (
        asyncio.timeout(60),
        nodes(redis, 3) as (first, second, third),
        FaultProxy(second.url) as line,
        first.room("host") as host,
        host.host(files.toolkit),
        second.room("ann", via=line) as ann,
        second.room("stays"),
        third.room("ann") as back,
        AsyncExitStack() as stack,
    ):
        await until_listed(ann, "files")
        await until_listed(back, "files")
        await until_present(host, "ann", "stays")
        await until_present(back, "host", "stays")
        person = await stack.enter_async_context(person_in(back))
        call = writing(ann)
        hold = await person.asked()
        await line.refuse()
        line.reset()
        with pytest.raises(ConnectionLost):
            await call
        assert (await person.added()).is_away
        assert [listed.is_away for listed in await back.holds()] == [True]
        await back.approve(hold)
        assert (await person.settled()).outcome == "approved"
        assert files.wrote == []
        assert await writing(back, hold.call_id) == "a"
        assert files.wrote == ["a"]
        assert (await person.added()).replaces == hold.id
        await person.settled()
        again = writing(back, hold.call_id)  # it was used
        assert (await person.asked()).outcome == "open"
        again.cancel()


async def test_decision_is_used_after_the_node_of_the_caller_was_killed(
    redis: RedisPlace, tmp_path: Path
) -> None:
    files = Files()
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        running = node_processes(tmp_path, redis.url, redis.url, program=SHORT_LEASES)
        here, there = await stack.enter_async_context(running)
        ann = await stack.enter_async_context(there.room("ann"))
        host = await stack.enter_async_context(here.room("host"))
        await stack.enter_async_context(host.host(files.toolkit))
        back = await stack.enter_async_context(here.room("ann"))
        person = await stack.enter_async_context(person_in(back))
        await until_listed(ann, "files")
        call = writing(ann)
        hold = await person.asked()
        await there.end(signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            await call
        assert (await person.added()).is_away
        await back.approve(hold)
        assert files.wrote == []
        assert await writing(back, hold.call_id) == "a"
        assert files.wrote == ["a"]


async def test_host_at_another_node_asks_anew_in_place_of_the_former(redis: RedisPlace) -> None:
    files, replica = Files(), Files()
    async with (
        asyncio.timeout(60),
        nodes(redis, 2) as (first, second),
        FaultProxy(second.url) as line,
        first.room("host") as host,
        second.room("host") as other,
        second.room("ann", via=line) as ann,
        second.room("ann") as back,
        AsyncExitStack() as stack,
    ):
        async with host.host(files.toolkit):
            await until_listed(ann, "files")
            await until_present(host, "ann")
            person = await stack.enter_async_context(person_in(back))
            call = writing(ann)
            former = await person.asked()
            await line.refuse()
            line.reset()
            with pytest.raises(ConnectionLost):
                await call
            assert (await person.added()).is_away
        async with other.host(replica.toolkit):
            again = writing(back, former.call_id)
            hold = await person.asked()
            assert (await person.settled()).id == former.id
            assert [listed.id for listed in await back.holds()] == [hold.id]
            await back.approve(hold)
            assert await again == "a"
    assert (files.wrote, replica.wrote) == ([], ["a"])
