"""Sync tools that call other tools: `context.call_sync`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from toolbus import ToolContext, Toolkit, Turn, tool
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    NotFound,
    PermissionDenied,
    RoomException,
    ToolFailed,
)
from toolbus_server.testing import TestServer, room_of


@tool
async def who(context: ToolContext) -> list[Any]:
    """Return the caller, the principal and the time that is left."""
    behalf = context.on_behalf_of
    return [context.caller.name, behalf and behalf.name, context.deadline]


@tool
def outer(context: ToolContext) -> Any:
    """Return what `who` returns, and what it returns on another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(context.call_sync("kit.who", {})))
    thread.start()
    thread.join()
    return [context.call_sync("kit.who"), *found]


@tool
def pieces(context: ToolContext) -> Iterator[str]:
    """Return who called, in pieces."""
    for _ in range(2):
        yield context.call_sync("kit.who")[0]


@tool
def missing(context: ToolContext) -> None:
    """Call a tool that does not exist."""
    context.call_sync("kit.nothing", text="a")


@tool
async def on_loop(context: ToolContext) -> None:
    """Wait on the loop."""
    context.call_sync("kit.who")


class Kit:
    """Tools that call each other, and what they saw."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended: list[BaseException] = []
        self.inner_ended = asyncio.Event()
        self.thread_ended = threading.Event()

    def toolkit(self, name: str = "kit", **limits: Any) -> Toolkit:
        @tool
        async def hold() -> None:
            """Wait until the call is cancelled."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.inner_ended.set()

        @tool(**limits)
        def waits(context: ToolContext) -> None:
            """Wait for `hold`, and try again."""
            for _ in range(2):
                try:
                    context.call_sync("kit.hold")
                except RoomException as error:
                    self.ended.append(error)
            self.thread_ended.set()

        return Toolkit(name, [who, outer, pieces, hold, waits, missing, on_loop])


async def test_sync_tool_calls_with_the_principal_and_deadline_of_its_call(
    server: TestServer,
) -> None:
    async with (
        server.room("host") as host,
        host.host(Kit().toolkit()),
        server.room("ann") as ann,
    ):
        for caller, behalf, left_s in (await ann.invoke("kit.outer", timeout_s=20)).value:
            assert (caller, behalf) == ("host", "ann")
            assert 0 < left_s <= 20.002
        async with ann.stream("kit.pieces") as chunks:
            assert [chunk.value async for chunk in chunks] == ["host", "host"]
        with pytest.raises(ToolFailed) as failed:
            await ann.call("kit.missing")
        assert failed.value.executed == "yes"
        with pytest.raises(ToolFailed):
            await ann.call("kit.on_loop")
        assert (await ann.call("kit.who"))[0] == "ann"  # the loop was not blocked


@pytest.mark.parametrize("ended_by", ["cancel", "deadline", "limit"])
async def test_nested_call_of_a_thread_ends_with_the_call_of_its_tool(
    server: TestServer, ended_by: str
) -> None:
    """The thread goes on at once, and its next nested call is refused."""
    kit = Kit()
    limits: dict[str, Any] = {"timeout_s": 0.5} if ended_by == "limit" else {}
    async with (
        server.room("host") as host,
        host.host(kit.toolkit(**limits)),
        server.room("ann") as ann,
    ):
        timeout_s = 0.5 if ended_by == "deadline" else 30
        call = asyncio.create_task(ann.invoke("kit.waits", timeout_s=timeout_s))
        await kit.begun.wait()
        if ended_by == "cancel":
            call.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineExceeded)):
            await call
        await kit.inner_ended.wait()
        assert await asyncio.to_thread(kit.thread_ended.wait, 30)
    first, second = map(type, kit.ended)
    assert first in (Cancelled, DeadlineExceeded)
    # The server refuses the second, if it arrives there before the thread has seen the end.
    assert second in (Cancelled, DeadlineExceeded, PermissionDenied)


async def test_nested_call_of_a_thread_ends_with_the_call_of_a_turn() -> None:
    near, far = Kit(), Kit()
    async with room_of("host", "agent") as (host, agent), host.host(far.toolkit()):
        async with Turn(agent, always=[near.toolkit("near")]) as turn:
            call = asyncio.create_task(turn.call("near.waits"))
            await far.begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await far.inner_ended.wait()
            assert await asyncio.to_thread(near.thread_ended.wait, 30)
    assert [type(each) for each in near.ended] == [Cancelled, Cancelled]


async def test_call_sync_outside_a_host_is_as_in_one() -> None:
    class Room:
        async def call(self, name: str, arguments: Any = None, /, **named: Any) -> Any:
            if name == "kit.nothing":
                raise NotFound("no such tool")
            return [name, arguments, named]

    kit = Kit().toolkit()
    context = ToolContext(room=Room())  # type: ignore[arg-type]  # what the tools use
    expected: list[Any] = ["kit.who", None, {}]
    with pytest.raises(RuntimeError, match=r"await context\.room\.call"):
        context.call_sync("kit.who")
    assert await asyncio.to_thread(context.call_sync, "kit.who") == expected  # a unit test
    chunk = await kit.execute(context, "outer", {})
    assert chunk.value == [expected, ["kit.who", {}, {}]]
    with pytest.raises(NotFound):
        await asyncio.to_thread(context.call_sync, "kit.nothing", text="a")
