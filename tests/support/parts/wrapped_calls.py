"""Calls of tools inside middlewares, and their outcomes: of a toolkit, and of a chain alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from toolbus.chunks.chunk_types import Chunk
from toolbus.errors import RoomException
from toolbus.tools.chain import MiddlewareChain
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit

REMOTE = ToolInfo("far.away", "", {}, "far", "away", owner="main", digest="d1")


class Outcome(NamedTuple):
    """What the caller of a call gets."""

    values: list[Any]
    error: RoomException | None = None

    @property
    def code(self) -> str:
        return "ok" if self.error is None else self.error.code

    @property
    def executed(self) -> str:
        return "" if self.error is None else self.error.executed


def person(name: str, issuer: str = "") -> Participant:
    return Participant(name, name, issuer=issuer)


async def execute(
    kit: Toolkit, arguments: Mapping[str, Any] | None = None, **facts: Any
) -> Outcome:
    """Call the only tool of a toolkit."""
    [tool] = kit.tools
    values: list[Any] = []

    async def take(chunk: Chunk) -> None:
        values.append(chunk.value)

    context = ToolContext(on_chunk=take if tool.streaming else None, **facts)
    try:
        chunk = await kit.execute(context, tool.name, dict(arguments or {}))
    except RoomException as error:
        return Outcome(values, error)
    return Outcome(values if tool.streaming else [chunk.value])


async def run_chain(
    middlewares: list[Any], innermost: CallNext, tool: ToolInfo = REMOTE, **facts: Any
) -> Outcome:
    """Run a chain alone, around a call that runs elsewhere."""
    values: list[Any] = []
    chain = MiddlewareChain(middlewares, innermost)
    try:
        async for chunk in chain.run(ToolCall(tool, {}, ToolContext(**facts), "c1")):
            values.append(chunk.value)
    except RoomException as error:
        return Outcome(values, error)
    assert chain.opened == []
    return Outcome(values)


class Scripted:
    """An innermost function: each attempt raises or yields its step, the last one forever."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.attempts = 0

    async def __call__(self, call: ToolCall) -> AsyncIterator[Any]:
        self.attempts += 1
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, Exception):
            raise step
        for value in step:
            if isinstance(value, Exception):
                raise value
            yield value
