"""Calls that wait for a person take no place of their host, and queue for one again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.parts.isolated_host import HostStage, ScriptedPeer, echo, hold
from toolbus import tool
from toolbus.errors import QuotaExceeded
from toolbus.wire import pack_body

BOB = {"caller": pack_body(["p2", "bob", "user", "acme"])}


class Gated:
    """Makes tools that want approval and end when the test says so."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[int] = asyncio.Queue()
        self.gate = asyncio.Semaphore(0)

    def tool(self, **options: Any) -> Callable[..., Any]:
        @tool(name="write", approval=True, **options)
        async def write(number: int) -> int:
            self.began.put_nowait(number)
            await self.gate.acquire()
            return number

        return write


async def until_asked(server: ScriptedPeer, *numbers: int) -> None:
    async with asyncio.timeout(60):
        while set(server.asked) != set(numbers):  # noqa: ASYNC110 - each takes some steps
            await asyncio.sleep(0)


async def test_slot_of_a_call_that_waits_is_free_and_it_queues_for_one_again(
    host_stage: HostStage,
) -> None:
    gated = Gated()
    server = host_stage.server(gated.tool(max_concurrency=1))
    for number in (1, 2, 3):
        server.dispatch(number, "write", number=number)
    await until_asked(server, 1, 2, 3)
    server.approve(2, 3)
    assert await gated.began.get() == 2
    server.approve(1)
    assert await server.is_quiet()
    assert gated.began.empty()
    for number in (2, 3, 1):
        gated.gate.release()
        assert await server.answer() == number


async def test_sync_tool_that_runs_alone_waits_for_persons_side_by_side(
    host_stage: HostStage,
) -> None:
    running: list[int] = []
    most: list[int] = []

    @tool(approval=True, concurrency_safe=False)
    def write(number: int) -> int:
        running.append(number)
        most.append(len(running))
        running.pop()
        return number

    server = host_stage.server(write)
    for number in range(1, 6):
        server.dispatch(number, "write", number=number)
    await until_asked(server, *range(1, 6))
    server.approve(*range(1, 6))
    assert sorted([await server.answer() for _ in range(5)]) == [1, 2, 3, 4, 5]
    assert most == [1] * 5


async def test_a_thousand_calls_that_wait_leave_the_host_free_and_then_share_its_places(
    host_stage: HostStage,
) -> None:
    gated = Gated()
    server = host_stage.server(gated.tool(), echo, max_in_flight=4)
    for number in range(1_000):
        server.dispatch(number, "write", number=number)
        await until_asked(server, *range(number + 1))
    for number, header in ((1_000, {}), (1_001, BOB)):
        server.dispatch(number, "echo", text="free", header=header)
        assert await server.answer() == "free"
    server.approve(*range(1_000))
    ended = []
    async with asyncio.timeout(60):
        for _ in range(1_000):
            await gated.began.get()
            assert gated.began.qsize() < 6  # four for all, two more for who holds few
            gated.gate.release()
            ended.append(await server.answer())
    assert sorted(ended) == list(range(1_000))


async def crowded(host_stage: HostStage, **options: Any) -> tuple[ScriptedPeer, Gated]:
    """Return a host whose one place a call took while two others waited: 1, and 2 of another."""
    gated = Gated()
    server = host_stage.server(gated.tool(**options), hold(host_stage), max_in_flight=1)
    server.dispatch(1, "write", number=1)
    server.dispatch(2, "write", number=2, header=BOB)
    await until_asked(server, 1, 2)
    server.dispatch(3, "hold")
    await host_stage.wait_entered()
    return server, gated


async def test_call_that_was_approved_waits_for_a_place_and_holds_up_no_other_caller(
    host_stage: HostStage,
) -> None:
    server, gated = await crowded(host_stage)
    server.approve(1)
    assert await server.is_quiet()
    server.approve(2)
    assert await gated.began.get() == 2
    gated.gate.release()
    assert await server.answer() == 2
    assert gated.began.empty()
    server.cancel(3)
    assert await gated.began.get() == 1
    gated.gate.release()
    assert await server.answer() == 1


@pytest.mark.parametrize("is_approved", [True, False])
async def test_call_that_is_cancelled_while_it_waits_leaves_nothing(
    host_stage: HostStage, is_approved: bool
) -> None:
    """For a person, or for a place."""
    server, gated = await crowded(host_stage)
    if is_approved:
        server.approve(1)
        assert await server.is_quiet()
    server.cancel(1)
    server.approve(2)
    assert await gated.began.get() == 2
    gated.gate.release()
    assert await server.answer() == 2
    server.cancel(3)
    await server.idle()
    assert server.asked == {}
    assert gated.began.empty()


async def test_time_of_the_tool_stands_still_until_its_call_has_a_place(
    host_stage: HostStage,
) -> None:
    limit_s = 0.3
    server, gated = await crowded(host_stage, timeout_s=limit_s)
    gated.gate.release()
    asyncio.get_running_loop().call_later(2 * limit_s, server.approve, 1)
    asyncio.get_running_loop().call_later(4 * limit_s, server.cancel, 3)
    assert await server.answer() == 1
    server.cancel(2)


async def test_host_that_drains_waits_for_calls_that_run_and_not_for_persons(
    host_stage: HostStage,
) -> None:
    """HOLD-18."""
    gated = Gated()
    server = host_stage.server(gated.tool())
    server.dispatch(1, "write", number=1)
    server.dispatch(2, "write", number=2)
    await until_asked(server, 1, 2)
    async with asyncio.timeout(60):
        await server.runner.idle()
    server.approve(1)
    assert await gated.began.get() == 1
    draining = asyncio.create_task(server.runner.idle())
    assert await server.is_quiet()
    assert not draining.done()
    gated.gate.release()
    await draining
    assert await server.answer() == 1
    server.cancel(2)


async def test_what_cannot_be_asked_ends_the_call_and_gives_its_place_back(
    host_stage: HostStage,
) -> None:
    gated = Gated()
    server = host_stage.server(gated.tool(), max_in_flight=1)
    server.dispatch(1, "write", number=1)
    await until_asked(server, 1)
    server.asked[1].set_exception(QuotaExceeded("64 wait already", executed="no"))
    error = await server.error()
    assert (error.code, error.executed) == ("quota_exceeded", "no")
    await server.idle()
