"""Results that JSON cannot carry as they are, and results of several chunks: nothing is lost.

A tool elsewhere and one in the process of an agent give the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.rooms.turns import agent_and_host
from toolbus import (
    Chunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    RequiredToolkit,
    TextChunk,
    ToolCall,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.errors import InvalidArguments, RoomException, TooLarge
from toolbus.middlewares import OutputLimit
from toolbus.room.room_client import RoomClient
from toolbus.tools.middleware import CallNext
from toolbus.wire import MAX_FRAME_BYTES

LOST = {"wei": 10**30, "ratio": math.inf, "rows": [*range(9_999), math.nan], 7: "half \ud800"}
CARRIED = {
    "wei": "1" + "0" * 30,
    "ratio": "Infinity",
    "rows": [*range(9_999), "NaN"],
    "7": "half \ufffd",
}
PLACES = ("/wei", "/ratio", "/rows/9999", "/7")
PICTURE = FileChunk(bytes(3_000_000), "map.png", "image/png")


@tool
async def give() -> dict[Any, Any]:
    return LOST


@tool
def give_on_a_thread() -> Any:
    return LOST


@tool
async def report(context: ToolContext) -> str:
    context.emit({"wei": LOST["wei"], 1: math.nan})
    return "\ud800"


@tool
async def rows() -> AsyncIterator[Any]:
    yield LOST
    yield "\udfff"
    yield MixedChunk((TextChunk("a"), JsonChunk(2**64)))


@tool
async def fail() -> None:
    raise ToolFailed("no", details={"wei": 10**30})


@tool
async def picture(size: int = 3_000_000) -> MixedChunk:
    drawn = FileChunk(bytes(size), "map.png", "image/png")
    words = TextChunk("a map"), LinkChunk("https://example.org/map")
    return MixedChunk((JsonChunk({"zoom": 3}), drawn, *words))


@tool
async def book(size: int) -> MixedChunk:
    return MixedChunk((TextChunk("é" * size), JsonChunk("x" * size)))


TOOLS: list[Any] = [give, give_on_a_thread, report, rows, fail, picture, book]
PARTS = (JsonChunk({"zoom": 3}), PICTURE, TextChunk("a map"), LinkChunk("https://example.org/map"))


@pytest.fixture
async def turn() -> AsyncIterator[tuple[Turn, RoomClient]]:
    async with agent_and_host(Toolkit("far", TOOLS)) as (_, agent), asyncio.timeout(60):
        required = [RequiredToolkit("far")]
        async with Turn(agent, always=[Toolkit("near", TOOLS)], required=required) as turn:
            yield turn, agent


async def read_all(chunks: Any) -> list[Chunk]:
    """Read chunks, and files among them to their end."""
    found: list[Chunk] = []
    async for chunk in chunks:
        if isinstance(chunk, FileChunk):
            chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
        if isinstance(chunk, Chunk):
            found.append(chunk)
    return found


async def test_a_result_is_the_same_here_and_elsewhere(turn: tuple[Turn, RoomClient]) -> None:
    """BODY-7."""
    room = turn[1]
    for name in ("give", "give_on_a_thread"):
        assert await room.call(f"far.{name}") == CARRIED
        chunk = await room.invoke(f"far.{name}")
        assert chunk == JsonChunk(CARRIED, PLACES)
        for kit in ("near", "far"):
            assert await turn[0].invoke(f"{kit}.{name}") == chunk
    for kit in ("near", "far"):
        (result,) = await turn[0].run([ToolUse("1", f"{kit}.give")])
        assert (result.state, result.executed, result.chunks) == ("ok", "yes", (chunk,))
        seen: list[Any] = []
        text = await turn[0].invoke(f"{kit}.report", on_progress=seen.append)
        assert text == TextChunk("\ufffd", ("",))
        assert seen == [{"wei": CARRIED["wei"], "1": "NaN"}]
        with pytest.raises(ToolFailed) as failed:
            await turn[0].call(f"{kit}.fail")
        assert failed.value.details == {"wei": "1" + "0" * 30}


async def test_items_of_a_stream_are_carried_too(turn: tuple[Turn, RoomClient]) -> None:
    items = [
        JsonChunk(CARRIED, PLACES),
        TextChunk("\ufffd", ("",)),
        TextChunk("a"),
        JsonChunk(str(2**64), ("",)),
    ]
    async with turn[1].stream("far.rows") as chunks:
        assert await read_all(chunks) == items
    for kit in ("near", "far"):
        (result,) = await turn[0].run([ToolUse("1", f"{kit}.rows")])
        assert result.chunks == tuple(items)
        one = await turn[0].invoke(f"{kit}.rows")
        assert one.as_text == (*(f"/0{place}" for place in PLACES), "/1", "/3")


async def test_arguments_are_refused_as_before(turn: tuple[Turn, RoomClient]) -> None:
    for value in (10**30, math.nan, "\ud800", {1: 2}):
        for call in (turn[1].invoke, turn[0].invoke):
            with pytest.raises(InvalidArguments) as refused:
                await call("far.picture", {"size": value})
            assert refused.value.executed == "no"


async def test_the_host_logs_it_once_for_each_tool(
    turn: tuple[Turn, RoomClient], caplog: pytest.LogCaptureFixture
) -> None:
    kit = Toolkit("mine", [give])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await kit.execute(ToolContext(), "give", {})
    (record,) = caplog.records
    assert record.getMessage().startswith("tool give: /wei of a result is text")
    assert "3 further places" in record.getMessage()


async def test_every_chunk_of_a_result_arrives(turn: tuple[Turn, RoomClient]) -> None:
    """BODY-6, STREAM-11: 3 MB beside a text travel in parts."""
    room = turn[1]
    assert await room.invoke("far.picture") == MixedChunk(PARTS)
    assert await room.call("far.picture") == [part.value for part in PARTS]
    assert await room.invoke("far.picture", returns=dict) == {"zoom": 3}
    async with room.stream("far.picture") as chunks:
        assert await read_all(chunks) == [*PARTS]
    for kit in ("near", "far"):
        assert await turn[0].invoke(f"{kit}.picture") == MixedChunk(PARTS)
        (result,) = await turn[0].run([ToolUse("1", f"{kit}.picture")])
        assert result.chunks == PARTS
        assert result.value == [part.value for part in PARTS]
        assert result.text.splitlines()[0] == json.dumps({"zoom": 3})
        got = await read_all(turn[0].stream(ToolUse("2", f"{kit}.picture")))
        assert got == [*PARTS]


async def test_a_large_text_of_a_stream_is_a_file(turn: tuple[Turn, RoomClient]) -> None:
    """STREAM-2: a chunk of a stream has at most 256 KiB."""
    async with turn[1].stream("far.book", {"size": 200_000}) as chunks:
        text, value = await read_all(chunks)
    assert isinstance(text, FileChunk)
    assert text.data.decode() == "é" * 200_000
    assert value == JsonChunk("x" * 200_000)


async def test_a_result_of_several_chunks_has_a_limit(turn: tuple[Turn, RoomClient]) -> None:
    limit = 16 * MAX_FRAME_BYTES
    for kit in ("near", "far"):
        values = await turn[0].call(f"{kit}.picture", {"size": limit - 200})
        assert len(values[1].data) == limit - 200
        with pytest.raises(TooLarge) as refused:
            await turn[0].call(f"{kit}.picture", {"size": limit})
        assert refused.value.executed == "yes"


async def test_what_is_no_file_has_to_fit_a_frame(turn: tuple[Turn, RoomClient]) -> None:
    """BODY-6."""
    for kit in ("near", "far"):
        assert len((await turn[0].call(f"{kit}.book", {"size": 340_000}))[0]) == 340_000
        with pytest.raises(TooLarge) as refused:
            await turn[0].call(f"{kit}.book", {"size": 350_000})
        assert refused.value.executed == "yes"


async def test_middlewares_see_a_result_of_several_chunks_as_one() -> None:
    seen: list[Chunk] = []

    async def look(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        async for chunk in next(call):
            seen.append(chunk)
            yield chunk

    limit = OutputLimit(1_000)
    kits = [
        Toolkit("a", [picture], middlewares=[look]),
        Toolkit("b", [picture], middlewares=[limit]),
    ]
    async with agent_and_host(*kits) as (_, agent), asyncio.timeout(60):
        assert await agent.invoke("a.picture") == MixedChunk(PARTS)
        assert seen == [MixedChunk(PARTS)]
        with pytest.raises(RoomException) as refused:
            await agent.invoke("b.picture")
        assert (refused.value.code, refused.value.executed) == ("too_large", "yes")
