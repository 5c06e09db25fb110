"""Streaming tools: how they are recognised, and how one runs to its end."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from toolbus import (
    Chunk,
    FunctionTool,
    InvalidArguments,
    InvalidResult,
    JsonChunk,
    MixedChunk,
    TextChunk,
    Tool,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)
from toolbus.tools.context import run_of
from toolbus.tools.function_tool import ITEMS_AHEAD
from toolbus.tools.options import ToolOptions


class Row(BaseModel):
    number: int


class Taker:
    """A caller that records all chunks, and accepts as many as a test allows."""

    def __init__(self, room_for: int | None = None) -> None:
        self.values: list[Any] = []
        self.full = asyncio.Event()
        self._room_for = room_for
        self.context = ToolContext(on_chunk=self._take)

    async def _take(self, chunk: Chunk) -> None:
        self.values.append(chunk.value)
        if self._room_for is not None and len(self.values) >= self._room_for:
            self.full.set()
            await asyncio.Event().wait()


async def run(made: Any, taker: Taker, **arguments: Any) -> Any:
    kit = Toolkit("t", [made])
    async with asyncio.timeout(60):
        chunk = await kit.execute(taker.context, kit.tools[0].name, arguments)
    return chunk.value


# Which tools are streaming tools


async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number


def count_sync(upto: int) -> Iterator[int]:
    yield from range(upto)


class Counter:
    async def method(self, upto: int) -> AsyncIterator[int]:
        async for number in count(upto):
            yield number

    def __call__(self, upto: int) -> Iterator[int]:
        yield from range(upto)


class Count(Tool):
    name = "count"
    input_schema = {"properties": {"upto": {"type": "integer"}}}  # noqa: RUF012

    async def execute(self, context: ToolContext, /, upto: int) -> Any:
        for number in range(upto):
            yield number


@pytest.mark.parametrize(
    "made",
    [
        count,
        count_sync,
        Counter().method,
        FunctionTool(Counter(), ToolOptions(name="it")),
        functools.partial(count),
        functools.partial(functools.partial(count_sync)),
        Count(),
        Count(streaming=True),
    ],
    ids=["async", "sync", "method", "object", "partial", "partial_sync", "class", "declared"],
)
async def test_every_generator_is_a_streaming_tool_and_its_items_are_sent_one_by_one(
    made: Any,
) -> None:
    """STREAM-1: the manifest has `streaming`, and the result is empty."""
    kit = Toolkit("t", [made])
    assert [tool.streaming for tool in kit.manifest().tools] == [True]
    taker = Taker()
    assert await run(made, taker, upto=3) is None
    assert taker.values == [0, 1, 2]


async def test_streaming_option_must_match_the_function() -> None:
    class Silent(Tool):
        name = "silent"
        input_schema: dict[str, Any] = {}  # noqa: RUF012
        streaming = True

        async def execute(self, context: ToolContext, /) -> Any:
            return None

    class Declared(Count):
        streaming = False

    for made in (Silent(), Declared(), Count(streaming=False)):
        with pytest.raises(ValueError, match="streaming is"):
            made.manifest()


async def test_wrapped_generator_that_cannot_be_recognised_is_refused() -> None:
    @functools.wraps(count)
    def wrapped(*args: Any, **named: Any) -> Any:
        return count(*args, **named)

    with pytest.raises(ValueError, match="the wrapper must yield"):
        FunctionTool(wrapped)

    class Sync(Tool):
        name = "sync"
        input_schema: dict[str, Any] = {}  # noqa: RUF012

        def execute(self, context: ToolContext, /) -> Any:
            yield 1

    with pytest.raises(TypeError, match="must be async"):
        Sync().manifest()


async def test_override_may_collect_what_a_function_yields_or_yield_what_it_returns() -> None:
    async def rows() -> AsyncIterator[Row]:
        yield Row(number=1)

    async def row() -> Row:
        return Row(number=2)

    class Gathering(FunctionTool):
        async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
            return [item async for item in super().execute(context, **arguments)]

    class Repeating(FunctionTool):
        async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
            for _ in range(2):
                yield await super().execute(context, **arguments)

    gathering, repeating, taker = Gathering(rows), Repeating(row), Taker()
    assert (gathering.manifest().streaming, repeating.manifest().streaming) == (False, True)
    assert await run(gathering, taker) == [{"number": 1}]
    assert await run(repeating, taker) is None
    assert taker.values == [{"number": 2}] * 2


# Items


@pytest.mark.parametrize(
    "annotation",
    [
        AsyncIterator[Row],
        AsyncGenerator[Row, None],
        Iterator[Row],
        Iterable[Row],
        Generator[Row, None, None],
        Annotated[AsyncIterator[Row], "doc"],
    ],
    ids=str,
)
def test_the_output_schema_is_that_of_an_item(annotation: Any) -> None:
    async def rows() -> Any:
        yield Row(number=1)

    rows.__annotations__["return"] = annotation
    schema = FunctionTool(rows).manifest().output_schema
    assert schema is not None
    assert schema["properties"] == {"number": {"type": "integer"}}


def test_items_without_structure_have_no_output_schema() -> None:
    assert FunctionTool(count).manifest().output_schema is None


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_item_that_breaks_the_schema_ends_the_stream_after_the_previous_items(
    sync: bool,
) -> None:
    closed: list[str] = []

    @tool(name="rows")
    async def rows() -> AsyncIterator[Row]:
        try:
            yield Row(number=1)
            yield {"number": "x"}  # type: ignore[misc]  # what people write
            yield Row(number=3)
        finally:
            await asyncio.sleep(0)
            closed.append(threading.current_thread().name)

    @tool(name="rows")
    def rows_sync() -> Iterator[Row]:
        try:
            yield Row(number=1)
            yield {"number": "x"}  # type: ignore[misc]  # what people write
            yield from (Row(number=number) for number in range(10 * ITEMS_AHEAD))
        finally:
            closed.append(threading.current_thread().name)

    taker = Taker()
    with pytest.raises(InvalidResult) as raised:
        await run(rows_sync if sync else rows, taker)
    assert taker.values == [{"number": 1}]
    assert raised.value.executed == "yes"
    assert len(closed) == 1
    assert (closed[0] == threading.current_thread().name) is not sync


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("cause", [ValueError, SystemExit, StopAsyncIteration, ToolFailed])
async def test_error_within_a_stream_follows_the_previous_items(
    sync: bool, cause: type[BaseException]
) -> None:
    @tool(name="rows")
    async def rows() -> AsyncIterator[int]:
        yield 1
        raise cause("secret")

    @tool(name="rows")
    def rows_sync() -> Iterator[int]:
        yield 1
        raise cause("secret")

    taker = Taker()
    with pytest.raises(ToolFailed) as raised:
        await run(rows_sync if sync else rows, taker)
    error = raised.value
    assert error.executed == "yes"
    assert ("secret" in str(error)) is (cause is ToolFailed)
    assert taker.values == [1]


@pytest.mark.parametrize("made", [count, count_sync, Count()], ids=["async", "sync", "class"])
async def test_caller_that_accepts_no_chunks_is_refused_and_nothing_runs(made: Any) -> None:
    """STREAM-1: a tool whose `streaming` is set answers any other call with invalid_arguments."""
    kit, context = Toolkit("t", [made]), ToolContext()
    name = kit.tools[0].name
    with pytest.raises(InvalidArguments, match=f"{name} returns a stream: call it") as raised:
        await kit.execute(context, name, {"upto": 1})
    assert raised.value.executed == "no"
    with pytest.raises(RuntimeError, match="accepts no chunks"):
        await run_of(context).put(JsonChunk(1))


# Sync generators


async def test_a_sync_generator_runs_on_one_thread_from_its_first_step_to_its_last() -> None:
    def threads(context: ToolContext) -> Iterator[list[Any]]:
        for _ in range(3):
            yield [threading.get_ident(), run_of(context).entered]

    taker = Taker()
    await run(threads, taker)
    assert len({ident for ident, _ in taker.values}) == 1
    assert taker.values[0] != [threading.get_ident(), True]
    assert all(entered for _, entered in taker.values)


async def test_sync_generator_is_at_most_a_few_items_ahead_of_a_slow_caller() -> None:
    made, waits = list[int](), threading.Event()

    def endless() -> Iterator[int]:
        for number in range(10_000):
            made.append(number)
            if len(made) == ITEMS_AHEAD + 1:
                waits.set()
            yield number

    taker = Taker(room_for=1)
    running = asyncio.ensure_future(run(endless, taker))
    await asyncio.to_thread(waits.wait, 5)
    await taker.full.wait()
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done
    assert len(made) == ITEMS_AHEAD + 1  # one is taken
    running.cancel()
    await asyncio.wait([running])


async def test_abandoned_sync_generator_is_closed_on_its_thread() -> None:
    closed, where = threading.Event(), list[int]()

    def rows() -> Iterator[int]:
        where.append(threading.get_ident())
        try:
            yield from range(10_000)
        finally:
            where.append(threading.get_ident())
            closed.set()

    taker = Taker(room_for=3)
    running = asyncio.ensure_future(run(rows, taker))
    await taker.full.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert await asyncio.to_thread(closed.wait, 5)
    assert where[0] == where[1] != threading.get_ident()


async def test_abandoned_async_generator_is_closed_and_awaited() -> None:
    ended: list[str] = []

    async def rows() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            ended.append("awaited")

    taker = Taker(room_for=2)
    running = asyncio.ensure_future(run(rows, taker))
    await taker.full.wait()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert ended == ["awaited"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_error_while_closing_an_abandoned_stream_is_logged_and_hides_nothing(
    sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def rows() -> AsyncIterator[Any]:
        try:
            yield object()
        finally:
            raise OSError("at the end")

    def rows_sync() -> Iterator[Any]:
        try:
            yield object()
            yield 1
        finally:
            raise OSError("at the end")

    with caplog.at_level(logging.ERROR), pytest.raises(InvalidResult):
        await run(rows_sync if sync else rows, Taker())
    assert ["at the end" in (r.exc_text or "") for r in caplog.records] == [True]


# Progress


async def test_progress_reaches_only_a_local_listener() -> None:
    received: list[Any] = []
    row: Callable[..., Any] = functools.partial(Row, number=1)

    @tool
    async def work(context: ToolContext) -> None:
        context.emit(0.5)
        context.emit(row())
        await run_of(context).run_sync(lambda: context.emit("from a thread"))

    kit = Toolkit("t", [work])
    await kit.execute(ToolContext(), "work", {})
    await kit.execute(ToolContext(on_progress=received.append), "work", {})
    assert received == [0.5, {"number": 1}, "from a thread"]


@pytest.mark.parametrize(
    "value",
    [object(), b"a file", MixedChunk((TextChunk("a"),))],
    ids=["object", "file", "mixed"],
)
def test_progress_that_cannot_be_sent_is_refused_with_or_without_a_listener(
    value: Any,
) -> None:
    for context in (ToolContext(), ToolContext(on_progress=lambda _: None)):
        with pytest.raises(InvalidResult):
            context.emit(value)
