"""What middlewares are written for elsewhere, in our form: order, logs, retries, rights."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.parts.wrapped_calls import execute, person
from toolbus.chunks.chunk_types import Chunk
from toolbus.errors import PermissionDenied
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.toolkit import Toolkit


async def say(text: str) -> AsyncIterator[str]:
    yield text


def around(number: int) -> Any:
    async def middleware(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        text = f"{call.arguments['text']}[pre{number}]"
        async for chunk in next(call.replace(arguments={"text": text})):
            yield f"{chunk.value}[post{number}]"

    return middleware


async def test_middlewares_are_layers_of_an_onion() -> None:
    kit = Toolkit("t", [say], middlewares=[around(1), around(2)])
    found = await execute(kit, {"text": "[ori]"})
    assert found.values == ["[ori][pre1][pre2][post2][post1]"]


async def test_logging_sees_name_arguments_chunks_and_the_end() -> None:
    lines: list[str] = []

    async def log(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        began_s = time.perf_counter()
        lines.append(f"calling {call.tool.name} with {dict(call.arguments)}")
        async for chunk in next(call):
            lines.append(f"chunk {chunk.value}")
            yield chunk
        lines.append("ended" if time.perf_counter() >= began_s else "")

    await execute(Toolkit("t", [say], middlewares=[log]), {"text": "x"})
    assert lines == ["calling t.say with {'text': 'x'}", "chunk x", "ended"]


async def test_a_retry_does_not_repeat_chunks_that_were_passed_on() -> None:
    runs = 0

    async def flaky(after_a_chunk: bool) -> AsyncIterator[str]:
        nonlocal runs
        runs += 1
        if after_a_chunk:
            yield "half"
        if runs == 1:
            raise ConnectionError
        yield "whole"

    async def retry(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        for attempt in range(3):
            try:
                async for chunk in next(call):
                    yield chunk
                return
            except ConnectionError:
                if attempt == 2:
                    raise

    kit = Toolkit("t", [flaky], middlewares=[retry])
    assert (await execute(kit, {"after_a_chunk": False})).values == ["whole"]
    runs = 0
    found = await execute(kit, {"after_a_chunk": True})
    assert (runs, found.values, found.code, found.executed) == (1, ["half"], "tool_failed", "yes")


async def test_authorisation_refuses_before_the_tool_runs() -> None:
    ran: list[str] = []

    async def delete(path: str) -> str:
        ran.append(path)
        return "gone"

    async def only_admins(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        if call.tool.destructive and call.context.caller.name != "admin":
            raise PermissionDenied(f"{call.context.caller.name} may not call {call.tool.name}")
        async for chunk in next(call):
            yield chunk

    tool = FunctionTool(delete, destructive=True, middlewares=[only_admins])
    kit = Toolkit("files", [tool])
    found = await execute(kit, {"path": "/a"}, caller=person("eve"))
    assert (found.code, found.executed, ran) == ("permission_denied", "no", [])
    assert str(found.error) == "eve may not call files.delete"
    assert (await execute(kit, {"path": "/a"}, caller=person("admin"))).values == ["gone"]


@pytest.mark.parametrize(("text", "values", "runs"), [("ping", ["pong"], 0), ("x", ["x"], 1)])
async def test_an_answer_without_next_spares_the_tool(text: str, values: Any, runs: int) -> None:
    seen: list[str] = []

    async def slow(text: str) -> str:
        seen.append(text)
        return text

    async def known(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        if call.arguments["text"] == "ping":
            yield "pong"
            return
        async for chunk in next(call):
            yield chunk

    found = await execute(Toolkit("t", [slow], middlewares=[known]), {"text": text})
    assert (found.values, len(seen)) == (values, runs)
