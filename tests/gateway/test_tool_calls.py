"""A call through the gateway: its result, its error, its progress, its cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as types
import pytest

from gateway.conftest import REVISIONS, Door
from toolbus import FileChunk, ToolContext, ToolFailed, Toolkit, tool

PIXEL = b"\x89PNG\r\n\x1a\n"


@tool
async def add(a: int, b: int) -> int:
    return a + b


@tool
async def picture() -> FileChunk:
    return FileChunk(PIXEL, "dot.png", "image/png")


@tool
async def fail() -> str:
    raise ToolFailed("no such account")


@tool
async def lines(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield f"line {number}"


def words(*more: Any) -> Toolkit:
    return Toolkit("words", [add, picture, fail, lines, *more])


@pytest.mark.parametrize("mode", REVISIONS)
async def test_tools_of_a_room_are_called_by_listed_names(door: Door, mode: str) -> None:
    async with door.server.room("host") as host, host.host(words()), door.client(mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == [
            "words__add",
            "words__fail",
            "words__lines",
            "words__picture",
        ]
        added = await client.call_tool("words__add", {"a": 1, "b": 2})
        assert added.structured_content == {"result": 3}
        drawn = await client.call_tool("words__picture", {})
        assert isinstance(drawn.content[0], types.ImageContent)
        streamed = await client.call_tool("words__lines", {"count": 2})
        assert [getattr(block, "text", "") for block in streamed.content] == ["line 0", "line 1"]
        failed = await client.call_tool("words__fail", {})
        assert failed.is_error
        assert failed.meta is not None
        assert failed.meta["toolbus/error"]["executed"] == "yes"
        (words_of_error,) = (await client.call_tool("words__add", {"a": "x"})).content
        assert isinstance(words_of_error, types.TextContent)
        first, second = words_of_error.text.splitlines()  # a model mends both at once
        assert "(invalid_arguments; executed: no)" in first
        assert second.startswith("also: ")


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_client_that_cancels_ends_the_tool(door: Door, mode: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait(context: ToolContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with (
        door.server.room("host") as host,
        host.host(words(wait)),
        door.client(mode) as client,
    ):
        call = asyncio.create_task(client.call_tool("words__wait", {}))
        async with asyncio.timeout(60):
            await started.wait()
            call.cancel()
            await ended.wait()


@pytest.mark.parametrize("mode", REVISIONS)
async def test_progress_just_before_the_result_is_sent(door: Door, mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    @tool
    async def last_step(context: ToolContext) -> None:
        context.emit({"progress": 2, "total": 2, "message": "last"})

    async def record(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        door.server.room("host") as host,
        host.host(words(last_step)),
        door.client(mode) as client,
    ):
        await client.call_tool("words__last_step", {}, progress_callback=record)
    assert seen == [(2, 2, "last")]
