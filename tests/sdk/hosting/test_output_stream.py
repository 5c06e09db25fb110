"""The stream of a host: its chunks, its credit, and what ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.parts.isolated_host import PLENTY, HostStage
from support.patience import PATIENCE_S
from toolbus import InputStream, ToolContext, tool
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.context import run_of
from toolbus.wire import Credit, StreamChunk
from toolbus.wire.flow_control import MAX_CHUNK_BYTES


@tool
async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number


@tool(name="count")
def count_sync(upto: int) -> Iterator[int]:
    yield from range(upto)


def credit(chunks: int, total_bytes: int = 2**40) -> dict[str, Any]:
    return {"credit_chunks": chunks, "credit_bytes": total_bytes}


# Credit


@pytest.mark.parametrize("made", [count, count_sync], ids=["async", "sync"])
async def test_chunks_are_numbered_and_an_empty_result_ends_them(
    host_stage: HostStage, made: Any
) -> None:
    """STREAM-1 and STREAM-2: numbers count from 1, and `[0]` ends the stream."""
    server = host_stage.server(made)
    server.dispatch(1, "count", upto=3, header=PLENTY)
    assert [await server.fields_of(number) for number in (1, 2, 3)] == [[1, 0], [1, 1], [1, 2]]
    assert await server.answer() == 0


@pytest.mark.parametrize("made", [count, count_sync], ids=["async", "sync"])
async def test_host_sends_no_chunk_beyond_its_credit(host_stage: HostStage, made: Any) -> None:
    """STREAM-3: credit is in totals; the greatest value of each of the two counts."""
    server = host_stage.server(made)
    server.dispatch(1, "count", upto=5, header=credit(2))
    assert [await server.fields_of(number) for number in (1, 2)] == [[1, 0], [1, 1]]
    assert await server.is_quiet()
    server.credit(1, 1, 2**41)
    assert await server.is_quiet()
    server.credit(1, 3, 0)
    assert await server.fields_of(3) == [1, 2]
    assert await server.is_quiet()
    server.credit(1, 100, 0)
    assert [await server.fields_of(number) for number in (4, 5)] == [[1, 3], [1, 4]]
    assert await server.answer() == 0


async def test_bytes_are_counted_too_and_the_last_chunk_may_go_beyond_them(
    host_stage: HostStage,
) -> None:
    """STREAM-3: while fewer bytes were sent than granted, one more chunk of any size may go."""

    @tool
    async def texts() -> AsyncIterator[str]:
        for _ in range(4):
            yield "x" * 1000

    server = host_stage.server(texts)
    server.dispatch(1, "texts", header=credit(100, 1500))
    sizes = [len((await server.fields_of(number))[1]) for number in (1, 2)]
    assert sizes == [1000, 1000]
    assert await server.is_quiet()
    server.credit(1, 100, 2010)  # a packed text of 1000 has 1005 bytes
    assert await server.is_quiet()
    server.credit(1, 100, 2011)
    await server.fields_of(3)
    assert await server.is_quiet()


async def test_chunks_of_one_loop_iteration_may_share_one_write(host_stage: HostStage) -> None:
    @tool
    async def rows() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    server = host_stage.server(rows)
    server.dispatch(1, "rows", header=credit(100))
    await server.answer()
    assert server.wire.gathered == server.unread.qsize() == 3
    while not server.unread.empty():
        server.unread.get_nowait()


async def test_credit_received_before_the_tool_is_entered_counts(host_stage: HostStage) -> None:
    @tool(max_concurrency=1)
    async def rows(number: int) -> AsyncIterator[int]:
        yield number
        yield number

    server = host_stage.server(rows)
    server.dispatch(7, "rows", number=7, header=credit(1))
    server.dispatch(1, "rows", number=1, header=credit(1))
    server.credit(1, 2, 0)
    assert (await server.next_of(StreamChunk)).id == 7
    assert await server.is_quiet()
    server.cancel(7)
    assert [await server.fields_of(number) for number in (1, 2)] == [[1, 1], [1, 1]]
    assert await server.answer() == 0


async def test_credit_for_an_ended_or_unary_call_is_dropped(host_stage: HostStage) -> None:
    """STREAM-6: credit for a call that is not in flight, or not a stream, is dropped."""

    @tool
    async def plain() -> str:
        host_stage.enter()
        await asyncio.Event().wait()
        return ""

    server = host_stage.server(plain, count)
    server.credit(9, 1, 1)
    server.dispatch(1, "plain")
    await host_stage.wait_entered()
    server.credit(1, 1, 1)
    server.input(1, 1, 2, "x")
    server.cancel(1)
    server.credit(1, 1, 1)
    await server.idle()
    server.dispatch(1, "count", upto=1, header=credit(1))
    await server.fields_of(1)
    assert await server.answer() == 0


async def test_host_waits_for_a_congested_connection(host_stage: HostStage) -> None:
    server = host_stage.server(count)
    server.wire.fall_behind()
    server.dispatch(1, "count", upto=2, header=PLENTY)
    assert await server.is_quiet()
    server.wire.catch_up()
    assert [await server.fields_of(number) for number in (1, 2)] == [[1, 0], [1, 1]]
    assert await server.answer() == 0


async def test_stream_that_never_waits_yields_to_other_tasks(host_stage: HostStage) -> None:
    """A tool that yields without waiting blocks others for at most 32 chunks."""

    @tool
    async def endless() -> AsyncIterator[int]:
        while True:
            yield 1

    server = host_stage.server(endless, count)
    server.dispatch(1, "endless", header=PLENTY)
    server.dispatch(2, "count", upto=1, header=PLENTY)
    async with asyncio.timeout(60):
        frames = [await server.unread.get() for _ in range(100)]
    others = [place for place, frame in enumerate(frames) if frame.id == 2]
    assert others
    assert others[0] <= 33
    server.cancel(1)
    assert await server.answer() == 0
    while not server.unread.empty():
        server.unread.get_nowait()


async def test_tool_that_reads_its_input_yields_to_other_tasks(host_stage: HostStage) -> None:
    """However much input is buffered."""
    taken, seen = 0, 0

    @tool
    async def take(rows: InputStream[int]) -> int:
        nonlocal taken
        async for _ in rows:
            taken += 1
        return taken

    @tool
    async def look() -> str:
        nonlocal seen
        seen = taken
        return "looked"

    server = host_stage.server(take, look)
    server.dispatch(1, "take", header={"input": True})
    await server.next_of(Credit)
    for number in range(1, 201):
        server.input(1, number, 1, number, last=number == 200)
    server.dispatch(2, "look")
    assert await server.answer() == "looked"
    assert await server.answer() == 200
    assert seen < 100


async def test_stream_of_large_chunks_yields_after_64_kib(host_stage: HostStage) -> None:
    @tool
    async def endless() -> AsyncIterator[str]:
        while True:
            yield "x" * 40_000

    server = host_stage.server(endless, count)
    server.dispatch(1, "endless", header=PLENTY)
    server.dispatch(2, "count", upto=1, header=PLENTY)
    async with asyncio.timeout(60):
        frames = [await server.unread.get() for _ in range(10)]
    assert 2 in [frame.id for frame in frames[:3]]
    server.cancel(1)
    assert await server.answer() == 0


# Ends


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("waits_for", ["credit", "connection"])
@pytest.mark.parametrize("how", ["cancel", "loss"])
async def test_cancelled_stream_stops_waiting_and_closes_its_generator(
    host_stage: HostStage, sync: bool, waits_for: str, how: str
) -> None:
    closed = threading.Event()

    @tool(name="rows")
    async def rows() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    @tool(name="rows")
    def rows_sync() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    server = host_stage.server(rows_sync if sync else rows)
    if waits_for == "connection":
        server.wire.fall_behind()
    server.dispatch(1, "rows", header=credit(1 if waits_for == "credit" else 100))
    if waits_for == "credit":
        await server.fields_of(1)
    assert await server.is_quiet()
    if how == "cancel":
        server.cancel(1)
    else:
        server.runner.cancel_all()
    await server.idle()
    assert await asyncio.to_thread(closed.wait, 5)
    assert server.unread.empty()


@pytest.mark.parametrize("made", [count, count_sync], ids=["async", "sync"])
async def test_tools_own_time_limit_ends_a_waiting_stream(host_stage: HostStage, made: Any) -> None:
    limited = tool(name="count", timeout_s=0.5)(made)
    server = host_stage.server(limited)
    server.dispatch(1, "count", upto=100, header=credit(1))
    await server.fields_of(1)
    error = await server.error()
    assert (error.code, error.executed) == ("deadline_exceeded", "yes")
    tool(name="count")(made)


async def test_thread_that_ignores_cancel_keeps_its_slot_until_its_stream_ends(
    host_stage: HostStage,
) -> None:
    @tool(name="rows", concurrency_safe=False)
    def rows(number: int) -> Iterator[int]:
        yield number
        host_stage.enter()
        host_stage.gate.wait(PATIENCE_S)
        host_stage.ended.append("went on")
        yield number

    server = host_stage.server(rows)
    server.dispatch(1, "rows", number=1, header=PLENTY)
    await server.fields_of(1)
    await host_stage.wait_entered()
    server.cancel(1)
    server.dispatch(2, "rows", number=2, header=PLENTY)
    assert await server.is_quiet()
    host_stage.gate.set()
    async with asyncio.timeout(60):
        frames = [await server.unread.get() for _ in range(2)]
    assert [frame.id for frame in frames] == [2, 2]
    assert await server.answer() == 0
    assert host_stage.ended == ["went on"] * 2


async def test_error_within_a_stream_is_tool_failed_after_the_sent_chunks(
    host_stage: HostStage,
) -> None:
    @tool
    async def rows() -> AsyncIterator[int]:
        yield 1
        raise KeyError("secret")

    server = host_stage.server(rows)
    server.dispatch(1, "rows", header=PLENTY)
    await server.fields_of(1)
    error = await server.error()
    assert (error.code, error.executed, error.details["cause"]) == (
        "tool_failed",
        "yes",
        "KeyError",
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [("x" * MAX_CHUNK_BYTES, "too_large"), (object(), "invalid_result")],
    ids=["size", "object"],
)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_item_that_cannot_be_sent_closes_the_generator_and_fails_the_call(
    host_stage: HostStage, value: Any, code: str, sync: bool
) -> None:
    """STREAM-2: the body of a chunk has at most 256 KiB."""

    @tool(name="rows")
    async def rows() -> AsyncIterator[Any]:
        try:
            yield "x" * (MAX_CHUNK_BYTES - 7)  # exactly the limit, with its head
            yield value
        finally:
            host_stage.ended.append("closed")

    @tool(name="rows")
    def rows_sync() -> Iterator[Any]:
        try:
            yield "x" * (MAX_CHUNK_BYTES - 7)
            yield value
        finally:
            host_stage.ended.append("closed")

    server = host_stage.server(rows_sync if sync else rows)
    server.dispatch(1, "rows", header=PLENTY)
    await server.fields_of(1)
    error = await server.error()
    assert (error.code, error.retryable) == (code, False)
    assert error.executed != "no"
    assert host_stage.ended == ["closed"]


async def test_streaming_tool_called_as_unary_is_refused(host_stage: HostStage) -> None:
    """STREAM-1: a streaming tool refuses any other call with invalid_arguments."""
    server = host_stage.server(count)
    server.dispatch(1, "count", upto=1)
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_arguments", "no")
    assert "call it with room.stream" in str(error)


async def test_unary_tool_called_as_a_stream_returns_one_chunk(host_stage: HostStage) -> None:
    """STREAM-1: any tool may be called as a stream; another result is itself the last chunk."""

    @tool
    async def one(context: ToolContext) -> str:
        return f"streams: {run_of(context).streams}"

    server = host_stage.server(one)
    server.dispatch(1, "one", header=credit(1))
    assert await server.answer() == "streams: True"
    assert server.unread.empty()


async def test_the_spans_of_a_stream_end_when_it_ends(host_stage: HostStage) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = host_stage.server(count, tracing=Tracing(provider))
    server.dispatch(1, "count", upto=2, header=credit(1))
    await server.fields_of(1)
    assert await server.is_quiet()
    assert exporter.get_finished_spans() == ()
    server.credit(1, 2, 0)
    await server.fields_of(2)
    assert await server.answer() == 0
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["execute_tool count", "t.count"]
    provider.shutdown()
