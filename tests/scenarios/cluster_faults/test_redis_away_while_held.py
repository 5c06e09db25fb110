"""Redis is away while calls wait for a person, and comes back: which end, and what is listed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.nodes.cluster import until_listed
from support.nodes.kits import error_of
from support.nodes.processes import SHORT_LEASES, node_processes
from support.redis.server import RedisServer
from support.rooms.approvals import person_in
from toolbus import Toolkit, tool

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("how", ["killed", "suspended"])
async def test_calls_within_a_node_wait_on_without_redis_and_are_listed_again(
    redis: RedisServer, tmp_path: Path, how: str
) -> None:
    wrote: list[str] = []

    @tool(approval=True)
    async def write(text: str) -> str:
        wrote.append(text)
        return text

    async with asyncio.timeout(60), AsyncExitStack() as stack:
        enter = stack.enter_async_context
        running = await enter(node_processes(tmp_path, *[redis.url] * 3, program=SHORT_LEASES))
        host = await enter(running[0].room("host"))
        await enter(host.host(Toolkit("files", [write])))
        rooms = [await enter(node.room("ann")) for node in running]
        for room in rooms:
            await until_listed(room, "files")
        near, far, last = people = [await enter(person_in(room)) for room in rooms]
        holds, calls = {}, {}
        for text, person in (("soon", near), ("later", near), ("between", far)):
            call = person.room.invoke("files.write", {"text": text}, retry=False, returns=str)
            calls[text] = asyncio.create_task(call)
            (holds[text],) = {(await person.added()).id for person in people}

        await (redis.kill() if how == "killed" else asyncio.to_thread(redis.freeze))
        error = await error_of(calls["between"])
        assert (error.code, error.executed, error.retryable) == ("unavailable", "no", True)
        away = await near.added()  # as of any caller that cannot be reached
        assert (away.id, away.is_away) == (holds["between"], True)
        await near.room.deny(away)
        ended = await near.settled()
        assert (ended.id, ended.outcome) == (holds["between"], "denied")
        assert [hold.id for hold in await near.room.holds()] == [holds["soon"], holds["later"]]
        for person in (far, last):
            lost = [await person.settled() for _ in holds]
            assert {(hold.id, hold.outcome) for hold in lost} == {
                (hold_id, "lost") for hold_id in holds.values()
            }
            assert await person.room.holds() == []
        await near.room.approve(holds["soon"])
        assert await calls["soon"] == "soon"
        assert (await near.settled()).id == holds["soon"]

        await (redis.start() if how == "killed" else asyncio.to_thread(redis.thaw))
        for person in (far, last):
            assert (await person.added()).id == holds["later"]
        for person in people:
            assert [hold.id for hold in await person.room.holds()] == [holds["later"]]
        await last.room.approve(holds["later"])
        assert await calls["later"] == "later"
        for person in people:
            assert (await person.settled()).outcome == "approved"
            assert await person.room.holds() == []
    assert wrote == ["soon", "later"]
