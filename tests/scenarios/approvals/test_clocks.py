"""While a person thinks, every clock of the call and of all calls around it stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.rooms.approvals import Person, person_in
from toolbus import (
    HeldCall,
    RoomClient,
    TextChunk,
    ToolContext,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.middlewares import TimeLimit
from toolbus_server.testing import TestServer

THINKING_S = 2.5
"""Longer than every limit of the calls, which is a second and a half."""
_LIMIT_S = 1.5


class ThreeDeep:
    """Three hosts: `outer` calls `middle`, and that `inner`, whose tool waits for a person."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}
        limits: Any = {"middlewares": [TimeLimit(_LIMIT_S)]}
        self._toolkits = {
            "inner": Toolkit("inner", [self.write], **limits),
            "middle": Toolkit("middle", [self.pass_on], **limits),
            "outer": Toolkit("outer", [self.begin, self.lines, self.both, self.agent], **limits),
        }

    def note(self, context: ToolContext, name: str) -> None:
        assert context.deadline is not None
        self.deadlines[name] = context.deadline

    @tool(approval=True, timeout_s=_LIMIT_S)
    async def write(self, context: ToolContext, text: str) -> str:
        self.note(context, "inner")
        return f"wrote {text}"

    @tool(timeout_s=_LIMIT_S)
    async def pass_on(self, context: ToolContext, text: str) -> Any:
        value = await context.room.invoke(
            "inner.write", {"text": text}, timeout_s=_LIMIT_S, returns=str
        )
        self.note(context, "middle")
        return value

    @tool(timeout_s=_LIMIT_S)
    async def begin(self, context: ToolContext, text: str) -> Any:
        value = await context.room.call("middle.pass_on", text=text)
        self.note(context, "outer")
        return value

    @tool(timeout_s=_LIMIT_S)
    async def lines(self, context: ToolContext, text: str) -> AsyncIterator[str]:
        yield "first"
        yield await context.room.call("middle.pass_on", text=text)

    @tool(timeout_s=_LIMIT_S)
    async def both(self, context: ToolContext, text: str) -> list[Any]:
        room = context.room
        first = room.call("middle.pass_on", text=f"{text} 1")
        return [*await asyncio.gather(first, room.call("inner.write", text=f"{text} 2"))]

    @tool(timeout_s=_LIMIT_S)
    async def agent(self, context: ToolContext, text: str) -> str:
        async with Turn(context=context, required=["middle"], timeout_s=_LIMIT_S) as turn:
            (result,) = await turn.run([ToolUse("1", "middle.pass_on", {"text": text})])
            return result.text

    async def host(self, server: TestServer, stack: AsyncExitStack) -> None:
        for name, toolkit in self._toolkits.items():
            room = await stack.enter_async_context(server.room(name))
            await stack.enter_async_context(room.host(toolkit))


async def thinks(person: Person) -> None:
    """Approve the next call after a while."""
    hold = await person.asked()
    await asyncio.sleep(THINKING_S)
    await person.room.approve(hold)


async def by_call(ann: RoomClient, tool: str, seen: list[HeldCall]) -> Any:
    chunk = await ann.invoke(tool, {"text": "a"}, timeout_s=_LIMIT_S, on_held=seen.append)
    return chunk.value


async def by_stream(ann: RoomClient, tool: str, seen: list[HeldCall]) -> Any:
    stream = ann.stream(
        tool, {"text": "a"}, timeout_s=_LIMIT_S, stall_timeout_s=_LIMIT_S, on_held=seen.append
    )
    async with stream as chunks:
        *_, last = [chunk async for chunk in chunks]
    return last.value


async def by_turn(ann: RoomClient, tool: str, seen: list[HeldCall]) -> Any:
    limits = [TimeLimit(_LIMIT_S)]
    async with Turn(ann, required=["outer"], timeout_s=_LIMIT_S, middlewares=limits) as turn:
        chunk = await turn.invoke(tool, {"text": "a"})
    assert isinstance(chunk, TextChunk)
    return chunk.value


@pytest.mark.parametrize(
    ("way", "tool"),
    [
        (by_call, "outer.begin"),
        (by_stream, "outer.lines"),
        (by_turn, "outer.begin"),
        (by_call, "outer.agent"),
    ],
)
async def test_clocks_of_a_nested_call_three_deep_stand_still(
    server: TestServer, way: Any, tool: str
) -> None:
    """HOLD-6: those of the callers, of the hosts, of the tools, of middlewares and of turns."""
    parts, seen = ThreeDeep(), list[HeldCall]()
    async with AsyncExitStack() as stack:
        await parts.host(server, stack)
        ann = await stack.enter_async_context(server.room("ann"))
        # Who approves is whom the nested call is made for.
        person = await stack.enter_async_context(person_in(ann))
        thinking = asyncio.create_task(thinks(person))
        assert await way(ann, tool, seen) == "wrote a"
        await thinking
    assert all(0 < left_s < _LIMIT_S for left_s in parts.deadlines.values())
    if way is not by_turn:
        waits, goes_on = seen
        assert (waits.tool, waits.outcome, waits.may_settle) == ("inner.write", "open", True)
        assert (goes_on.id, goes_on.outcome) == (waits.id, "approved")


async def test_call_goes_on_when_the_last_of_two_within_it_does(server: TestServer) -> None:
    parts, seen = ThreeDeep(), list[HeldCall]()
    async with AsyncExitStack() as stack:
        await parts.host(server, stack)
        ann = await stack.enter_async_context(server.room("ann"))
        person = await stack.enter_async_context(person_in(ann))
        call = asyncio.create_task(by_call(ann, "outer.both", seen))
        holds = [await person.asked(), await person.asked()]
        for hold in holds:
            await asyncio.sleep(_LIMIT_S)
            await ann.approve(hold)
            assert (await person.settled()).id == hold.id
        assert await call == ["wrote a 1", "wrote a 2"]
    assert [held.outcome for held in seen] == ["open", "open", "approved", "approved"]


async def test_call_that_begins_within_one_that_waits_has_its_time_and_waits_with_it(
    server: TestServer,
) -> None:
    """HOLD-7."""
    released, seen = asyncio.Event(), list[Any]()

    @tool(approval=True)
    async def write() -> str:
        return "wrote"

    @tool
    async def slow() -> str:
        await asyncio.sleep(THINKING_S)
        return "slow"

    @tool(timeout_s=_LIMIT_S)
    async def both(context: ToolContext) -> list[Any]:
        room = context.room
        waiting = asyncio.create_task(room.call("work.write"))
        await released.wait()
        began = room.invoke("work.slow", timeout_s=30, on_held=seen.append, returns=str)
        return [await began, await waiting]

    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(Toolkit("work", [write, slow, both])),
        person_in(ann) as person,
    ):
        call = asyncio.create_task(ann.invoke("work.both", timeout_s=_LIMIT_S, returns=list))
        hold = await person.asked()
        released.set()
        await asyncio.sleep(2 * THINKING_S)
        await ann.approve(hold)
        assert await call == ["slow", "wrote"]
    assert seen == []  # it waits for no person itself
