"""Streams as their caller reads them, against a scripted server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.scripted_room import error_of, json_body, scripted_room, values
from toolbus import ChunkStream, TextChunk
from toolbus.errors import (
    ConnectionLost,
    InvalidArguments,
    InvalidResult,
    StreamBroken,
    StreamStalled,
    ToolFailed,
)
from toolbus.room.room import Room, connection_of
from toolbus.tools.tool_run import LocalRun
from toolbus.wire import Cancel, Credit, pack_body
from toolbus.wire.flow_control import WINDOW_BYTES


async def read(chunks: ChunkStream, count: int) -> None:
    for _ in range(count):
        await anext(chunks)


# Chunks and their end


async def test_chunks_are_read_in_order_until_the_empty_result() -> None:
    """STREAM-1."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail", {"n": 3}) as chunks:
        call = await scripted.call()
        assert call.timeout_ms is None
        assert call.options == {
            "credit_chunks": 256,
            "credit_bytes": WINDOW_BYTES,
            "idle_ms": 30_000,
        }
        await scripted.chunks(1, 2, 3)
        await scripted.end()
        assert await values(chunks) == [1, 2, 3]


async def test_result_that_is_not_empty_is_the_last_chunk() -> None:
    """STREAM-1."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(1)
        await scripted.end(pack_body([2, "the end"]))
        assert [chunk async for chunk in chunks][-1] == TextChunk("the end")


async def test_limits_of_a_stream_are_sent_unchanged() -> None:
    """STREAM-7."""
    async with scripted_room() as scripted:
        async with scripted.room.stream("t.x", timeout_s=5, stall_timeout_s=None):
            call = await scripted.call()
            assert call.timeout_ms is not None
            assert 0 < call.timeout_ms <= 5_000
            assert (call.options or {})["idle_ms"] == 0
        connection = connection_of(scripted.room)
        around = LocalRun(deadline_at=connection.loop.time() + 2, clock=connection.loop.time)
        bound = Room(connection, connection.caller, parent=9, call=around)
        async with bound.stream("t.x", stall_timeout_s=1.5):
            call = await scripted.call()
            assert call.timeout_ms is not None
            assert 0 < call.timeout_ms <= 2_000
            assert ((call.options or {})["idle_ms"], (call.options or {})["parent"]) == (1_500, 9)


async def test_failure_is_raised_after_earlier_chunks_and_counts_them() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(1, 2)
        await scripted.fail(ToolFailed("disk is gone", details={"disk": 3}))
        seen, error = await error_of(chunks)
        assert seen == [1, 2]
        assert isinstance(error, ToolFailed)
        assert error.details == {"disk": 3, "chunks": 2}
        assert error.executed == "yes"
        assert await scripted.received() == []


async def test_stalled_stream_ends_with_the_servers_error() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(1)
        await scripted.fail(StreamStalled("nothing came"))
        seen, error = await error_of(chunks)
        assert (seen, type(error), error.executed) == ([1], StreamStalled, "maybe")


async def test_lost_connection_is_raised_after_earlier_chunks() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(1, 2, 3)
        await read(chunks, 1)
        await scripted.connection.websocket.close()
        seen, error = await error_of(chunks)
        assert (seen, type(error), error.executed) == ([2, 3], ConnectionLost, "maybe")
        assert error.details["chunks"] == 3


async def test_invalid_chunk_ends_the_call() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunk(json_body(1))
        await scripted.chunk(pack_body({"no": "chunk"}))
        seen, error = await error_of(chunks)
        assert (seen, type(error), error.executed) == ([1], InvalidResult, "maybe")
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


# Credit


async def test_credit_is_sent_when_chunks_are_read_not_when_they_arrive() -> None:
    """STREAM-3."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(*range(256))
        assert await scripted.received() == []
        await read(chunks, 127)
        assert await scripted.received() == []
        await read(chunks, 1)
        size = sum(len(json_body(number)) for number in range(128))
        assert await scripted.received() == [Credit(scripted.id, False, 384, WINDOW_BYTES + size)]
        await scripted.chunks(*range(128))
        await scripted.end()
        assert len(await values(chunks)) == 256


async def test_credit_is_sent_when_half_of_the_bytes_are_read() -> None:
    """STREAM-3."""
    body = pack_body([2, "x" * (WINDOW_BYTES // 4 - 16)])
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        for _ in range(4):
            await scripted.chunk(body)
        await read(chunks, 2)
        assert await scripted.received() == []
        await read(chunks, 1)
        assert await scripted.received() == [
            Credit(scripted.id, False, 259, WINDOW_BYTES + 3 * len(body))
        ]


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_chunk_with_another_number_breaks_the_stream(number: int) -> None:
    """STREAM-2, STREAM-5."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks("a")
        await scripted.chunk(json_body("b"), number=number)
        await scripted.chunk(json_body("c"), number=2)
        seen, error = await error_of(chunks)
        assert (seen, type(error), error.executed) == (["a"], StreamBroken, "maybe")
        assert error.details == {"chunks": 1}
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


async def test_chunk_beyond_its_credit_breaks_the_stream() -> None:
    """STREAM-5."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(*range(257))
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        seen, error = await error_of(chunks)
        assert (seen, type(error)) == ([*range(256)], StreamBroken)


async def test_chunk_that_is_too_large_breaks_the_stream() -> None:
    """STREAM-2."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunk(pack_body([2, "x" * 256 * 1024]))
        seen, error = await error_of(chunks)
        assert (seen, type(error)) == ([], StreamBroken)


async def test_ended_and_cancelled_streams_release_their_share() -> None:
    async with scripted_room() as scripted:
        for number in range(40):
            async with scripted.room.stream("logs.tail") as chunks:
                call = await scripted.call()
                assert (call.options or {})["credit_bytes"] == WINDOW_BYTES
                await scripted.chunks(1, 2)
                if number % 2:
                    await scripted.end()
                    assert await values(chunks) == [1, 2]
                else:
                    await read(chunks, 1)


# Cancelling


async def test_leaving_the_block_early_cancels_the_call() -> None:
    """CALL-10."""
    async with scripted_room() as scripted:
        async with scripted.room.stream("logs.tail") as chunks:
            await scripted.call()
            await scripted.chunks(1, 2)
            await read(chunks, 1)
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        assert scripted.id not in scripted.pending


async def test_leaving_after_the_end_sends_nothing() -> None:
    async with scripted_room() as scripted:
        async with scripted.room.stream("logs.tail") as chunks:
            await scripted.call()
            await scripted.chunks(1, 2)
            await scripted.end()
            await scripted.received()
            await read(chunks, 1)  # the rest has arrived and is unread
        assert await scripted.received() == []


async def test_cancelled_reader_cancels_the_call() -> None:
    async with scripted_room() as scripted:

        async def go_on() -> None:
            async with scripted.room.stream("logs.tail") as chunks:
                await values(chunks)

        task = asyncio.create_task(go_on())
        await scripted.call()
        await scripted.chunks(1)
        await scripted.received()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


async def test_cancelled_wait_loses_no_chunk() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        waiting = asyncio.create_task(anext(chunks))
        await scripted.received()
        waiting.cancel()
        await asyncio.wait([waiting])
        await scripted.chunks(1, 2)
        await scripted.end()
        assert await values(chunks) == [1, 2]


async def test_late_chunks_are_dropped_and_counted() -> None:
    """STREAM-6."""
    async with scripted_room() as scripted:
        async with scripted.room.stream("logs.tail"):
            await scripted.call()
        await scripted.chunks(1, 2)
        await scripted.progress(1)
        await scripted.want(1)
        await scripted.end()
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        assert scripted.dropped == 3


async def test_stream_is_entered_once_and_before_it_is_read() -> None:
    async with scripted_room() as scripted:
        chunks = scripted.room.stream("logs.tail")
        with pytest.raises(RuntimeError, match="enter the stream first"):
            await anext(chunks)
        async with chunks:
            with pytest.raises(RuntimeError, match="already entered"):
                await chunks.__aenter__()
        assert [chunk async for chunk in chunks] == []


async def test_second_reader_gets_an_error_and_the_first_continues() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        first = asyncio.create_task(anext(chunks))
        await scripted.received()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(chunks)
        await scripted.chunks(1)
        assert (await first).value == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"stall_timeout_s": 0},
        {"stall_timeout_s": True},
        {"stall_timeout_s": float("nan")},
        {"timeout_s": "5"},
        {"on_progress": 3},
        {"input": "text"},
        {"input": {"a": 1}},
        {"input": 7},
        {"input": [1], "attachment": b"a"},
        {"attachment": 7},
    ],
)
async def test_invalid_options_are_refused_before_anything_is_sent(
    wrong: dict[str, Any],
) -> None:
    async with scripted_room() as scripted:
        with pytest.raises(InvalidArguments) as caught:
            await scripted.room.stream("t.x", **wrong).__aenter__()
        assert caught.value.executed == "no"
        assert scripted.pending == set()
