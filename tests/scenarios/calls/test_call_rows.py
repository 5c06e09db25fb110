"""Calls that fail, over real sockets: what the caller gets, and what really ran."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.processes.host_process import host_process
from support.rooms.failures import error_of_call, late_in_its_tool
from toolbus import ToolContext, Toolkit, tool
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HostLost,
    InvalidArguments,
    Overloaded,
)
from toolbus_server.testing import TestServer


class BlockingTools:
    """Tools that a test can observe and block."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()
        self.runs = 0

    def toolkit(self) -> Toolkit:
        @tool
        async def echo(text: str, times: int = 1) -> str:
            self.runs += 1
            return text * times

        @tool(name="hold", max_concurrency=1)
        async def hold() -> str:
            self.runs += 1
            self.began.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "held"

        @tool
        async def ignores_cancel() -> str:
            self.began.set()
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
            return "at last"

        return Toolkit("t", [echo, hold, ignores_cancel])

    async def wait_began(self) -> None:
        async with asyncio.timeout(60):
            await self.began.wait()
        self.began.clear()


@pytest.mark.parametrize("value", [2**70, {1: 2}, {1, 2}, "\ud800", float("nan")], ids=str)
async def test_arguments_that_cannot_travel_are_refused_before_they_do(
    server: TestServer, value: Any
) -> None:
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()), server.room("a") as alice:
        error = await error_of_call(alice, "t.echo", timeout_s=10, text=value)
        assert (type(error), error.executed) == (InvalidArguments, "no")
        assert await alice.call("t.echo", text="still here") == "still here"


async def test_a_killed_host_leaves_maybe_and_a_tool_that_ran_once(
    server: TestServer, tmp_path: Path
) -> None:
    """Guarantee "host is killed"."""
    async with (
        server.room("alice") as alice,
        host_process(server, tmp_path / "one", hold=True) as one,
    ):
        call = asyncio.ensure_future(alice.call("work.wait"))
        await one.wrote("began wait")
        async with host_process(server, tmp_path / "two") as two:
            await one.kill()
            with pytest.raises(HostLost) as caught:
                await call
            assert (caught.value.executed, caught.value.retryable) == ("maybe", False)
            assert (one.count("began wait"), two.count("began wait")) == (1, 0)


async def test_a_killed_host_of_an_idempotent_tool_is_followed_by_another(
    server: TestServer, tmp_path: Path
) -> None:
    """Guarantee "host is killed"."""
    async with (
        server.room("alice") as alice,
        host_process(server, tmp_path / "one", hold=True) as one,
    ):
        again = asyncio.ensure_future(alice.call("work.wait_again"))
        refused = asyncio.ensure_future(error_of_call(alice, "work.wait_again", timeout_s=10))
        await one.wrote("began wait_again")
        async with host_process(server, tmp_path / "two") as two:
            await one.kill()
            assert await again == "free"
            assert isinstance(await refused, HostLost)
            assert two.count("ended wait_again") == 1


async def test_a_cancelled_call_is_stopped_at_its_host(server: TestServer) -> None:
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()), server.room("a") as alice:
        running, queued = (asyncio.ensure_future(alice.call("t.hold")) for _ in range(2))
        await tools.wait_began()
        queued.cancel()
        running.cancel()
        async with asyncio.timeout(60):
            for call in (queued, running):
                with pytest.raises(asyncio.CancelledError):
                    await call
            await tools.cancelled.wait()
        assert tools.runs == 1
        tools.gate.set()
        assert await alice.call("t.hold") == "held"


async def test_a_host_that_ignores_cancel_delays_no_caller(server: TestServer) -> None:
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()), server.room("a") as alice:
        error = await late_in_its_tool(
            lambda limit_s: alice.invoke("t.ignores_cancel", timeout_s=limit_s), tools.began.is_set
        )
        assert (type(error), error.executed) == (DeadlineExceeded, "maybe")
        async with asyncio.timeout(60):
            await tools.cancelled.wait()
        assert server.server.hub.router.in_flight == 0
        assert await alice.call("t.echo", text="on") == "on"
        tools.gate.set()


async def test_calls_of_a_caller_that_leaves_are_cancelled(server: TestServer) -> None:
    """Guarantee "caller is killed"."""
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()):
        async with server.room("alice") as alice:
            call = asyncio.ensure_future(alice.call("t.hold"))
            await tools.wait_began()
        async with asyncio.timeout(60):
            await tools.cancelled.wait()
            with pytest.raises(ConnectionLost) as caught:
                await call
        assert caught.value.executed == "maybe"
        assert server.server.hub.router.in_flight == 0


async def test_a_full_host_answers_overloaded_and_keeps_running(server: TestServer) -> None:
    """CALL-19."""
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()), server.room("a") as alice:
        async with asyncio.TaskGroup() as calls:
            held = [calls.create_task(alice.call("t.hold")) for _ in range(256)]
            await tools.wait_began()
            error = await error_of_call(alice, "t.echo", timeout_s=10, text="x")
            assert (type(error), error.executed, error.retryable) == (Overloaded, "no", True)
            assert error.retry_after_s > 0
            tools.gate.set()
        assert {call.result() for call in held} == {"held"}
    assert tools.runs == 256


async def test_a_context_has_deadline_and_caller(server: TestServer) -> None:
    @tool
    async def who(context: ToolContext) -> list[Any]:
        return [context.caller.name, 0 < (context.deadline or 0) <= 7, context.caller_context]

    async with (
        server.room("host") as host,
        host.host(Toolkit("t", [who])),
        server.room("alice") as alice,
    ):
        chunk = await alice.invoke("t.who", timeout_s=7, caller_context={"why": "because"})
        assert chunk.value == ["alice", True, {"why": "because"}]


LARGE = (1 << 20) - 4096


async def test_many_large_calls_at_once_do_not_cost_their_caller_the_connection(
    server: TestServer,
) -> None:
    tools = BlockingTools()
    async with server.room("host") as host, host.host(tools.toolkit()), server.room("me") as me:
        arguments = {"text": "x" * LARGE, "times": 0}
        calls = [me.invoke("t.echo", arguments, retry=False) for _ in range(24)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in ends if isinstance(each, Exception)]
        assert {type(each) for each in refused} <= {Overloaded}
        assert tools.runs == len(ends) - len(refused) > 0


async def test_many_large_answers_at_once_do_not_cost_their_host_the_connection(
    server: TestServer,
) -> None:
    gate, running = asyncio.Event(), asyncio.Semaphore(0)

    @tool
    async def much() -> str:
        running.release()
        await gate.wait()
        return "x" * LARGE

    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(server.room("host"))
        await stack.enter_async_context(host.host(Toolkit("t", [much])))
        rooms = [await stack.enter_async_context(server.room(f"caller-{n}")) for n in range(8)]
        calls = [
            asyncio.create_task(room.invoke("t.much", retry=False, timeout_s=30))
            for room in rooms * 3
        ]
        for _ in calls:
            await running.acquire()
        gate.set()
        for chunk in await asyncio.gather(*calls):
            assert chunk.value == "x" * LARGE
