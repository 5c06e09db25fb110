"""Progress of a running call, sent to a caller that requested it."""

from __future__ import annotations

import asyncio

from support.parts.isolated_host import HostStage
from toolbus import ToolContext, tool
from toolbus.wire import Progress, unpack_body


async def test_progress_is_sent_to_a_caller_that_requested_it(host_stage: HostStage) -> None:
    """PROGRESS-1: if the caller set `progress`, without any credit."""

    @tool
    async def work(context: ToolContext) -> str:
        context.emit({"done": 1})
        await asyncio.sleep(0)  # the loop sends it before this task continues
        await asyncio.to_thread(context.emit, "from a thread")
        await asyncio.sleep(0)
        context.emit("last")
        return f"wanted: {context.wants_progress}"

    server = host_stage.server(work)
    server.dispatch(1, "work")
    assert await server.answer() == "wanted: False"
    assert server.unread.empty()
    server.dispatch(1, "work", header={"progress": True})
    bodies = [unpack_body((await server.next_of(Progress)).body) for _ in range(3)]
    assert bodies == [[1, {"done": 1}], [2, "from a thread"], [2, "last"]]
    assert await server.answer() == "wanted: True"


async def test_only_the_latest_waiting_progress_is_sent(host_stage: HostStage) -> None:
    """PROGRESS-1: it is dropped if the connection is congested; it never waits or piles up."""
    more = asyncio.Event()

    @tool
    async def work(context: ToolContext) -> str:
        for number in range(1000):
            context.emit(number)
            if number % 100 == 0:
                await asyncio.sleep(0)
        host_stage.enter()
        await more.wait()
        context.emit("x" * 20_000)
        return "ended"

    server = host_stage.server(work)
    server.wire.fall_behind()
    server.dispatch(1, "work", header={"progress": True})
    await host_stage.wait_entered()
    assert await server.is_quiet()
    server.wire.catch_up()
    assert unpack_body((await server.next_of(Progress)).body) == [1, 999]
    more.set()
    assert await server.answer() == "ended"
    assert server.unread.empty()


async def test_progress_after_the_end_of_a_call_is_dropped(host_stage: HostStage) -> None:
    contexts: list[ToolContext] = []

    @tool
    async def work(context: ToolContext) -> str:
        contexts.append(context)
        return "ended"

    server = host_stage.server(work)
    server.dispatch(1, "work", header={"progress": True})
    assert await server.answer() == "ended"
    contexts[0].emit(1)
    assert await server.is_quiet()
