"""Sending the chunks of one call: what each waits for, and what ends the wait."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from support.parts.isolated_host import Wire
from toolbus.chunks.chunk_sender import ChunkSender
from toolbus.wire import Frame, Input, RequestId, StreamChunk

MUCH = 2**40
CHUNK = partial(StreamChunk, RequestId(7))


class SenderUnderTest:
    """A sender on a connection that records its frames."""

    def __init__(self, chunks: int = 0, total_bytes: int = MUCH, frame: Any = CHUNK) -> None:
        self.sent: list[Frame] = []
        self.line = Wire(self.sent.append)
        self.sender = ChunkSender(self.line, frame, chunks, total_bytes)

    async def put(self, *chunk: Any) -> None:
        await self.sender.ready()
        self.sender.send(*chunk)


async def waits(running: asyncio.Task[None]) -> bool:
    """Let the task run for some loop iterations; return whether it has not ended."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not running.done()


async def test_chunks_are_numbered_and_gathered_before_they_are_sent() -> None:
    """STREAM-2."""
    tested = SenderUnderTest(2)
    await tested.put(b"a")
    await tested.put(b"b")
    assert tested.sent == [StreamChunk(7, 1, b"a"), StreamChunk(7, 2, b"b")]
    assert tested.line.gathered == 2


async def test_further_fields_are_passed_on_and_a_missing_body_is_free() -> None:
    """INPUT-2."""
    tested = SenderUnderTest(3, 1, partial(Input, RequestId(7)))
    await tested.put(None, False)
    await tested.put(b"ab", False)
    assert tested.sent == [Input(7, 1, None, False), Input(7, 2, b"ab", False)]
    last = asyncio.create_task(tested.put(None, True))
    assert await waits(last)
    tested.sender.add_credit(3, 3)
    await last
    assert tested.sent[2:] == [Input(7, 3, None, True)]


async def test_chunk_waits_for_credit_and_then_for_a_congested_connection() -> None:
    """STREAM-3."""
    tested = SenderUnderTest()
    running = asyncio.create_task(tested.put(b"a"))
    assert await waits(running)
    tested.line.fall_behind()
    tested.sender.add_credit(1, 0)  # fewer bytes than before: credit is never taken back
    assert await waits(running)
    tested.sender.add_credit(2, MUCH)  # credit does not help a congested connection
    assert await waits(running)
    tested.line.catch_up()
    await running
    assert tested.sent == [StreamChunk(7, 1, b"a")]


async def test_closed_connection_does_not_block_chunks() -> None:
    tested = SenderUnderTest(1)
    tested.line.fall_behind()
    tested.line.is_open = False
    async with asyncio.timeout(60):
        await tested.put(b"a")


@pytest.mark.parametrize("what", ["credit", "connection"])
async def test_stopping_cancels_waiting_tasks(what: str) -> None:
    tested = SenderUnderTest(0 if what == "credit" else 1)
    tested.line.fall_behind()
    running = asyncio.create_task(tested.put(b"a"))
    assert await waits(running)
    tested.sender.stop()
    async with asyncio.timeout(60):
        await asyncio.wait([running])
    assert running.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await tested.put(b"b")
    assert (tested.sender.is_stopped, tested.sent) == (True, [])


@pytest.mark.parametrize(("size", "most"), [(1, 32), (30_000, 3)])
async def test_sender_yields_after_32_chunks_or_64_kib(size: int, most: int) -> None:
    tested, seen = SenderUnderTest(100), list[int]()
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(tested.sent)))
    for _ in range(50):
        await tested.put(b"x" * size)
    assert seen == [most]


async def test_without_a_connection_chunks_are_dropped() -> None:
    sender = ChunkSender(None, CHUNK, 1, 1)
    await sender.ready()
    sender.send(b"a")
