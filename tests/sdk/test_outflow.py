"""The way out of one call's chunks: what each waits for, and what ends the waiting."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from support.lone_host import Wire
from toolbus.outflow import Outflow
from toolbus.wire import Frame, Input, RequestId, StreamChunk

MUCH = 2**40
CHUNK = partial(StreamChunk, RequestId(7))


class Way:
    """An outflow to a connection that keeps what it is given."""

    def __init__(self, chunks: int = 0, total_bytes: int = MUCH, frame: Any = CHUNK) -> None:
        self.sent: list[Frame] = []
        self.line = Wire(self.sent.append)
        self.outflow = Outflow(self.line, frame, chunks, total_bytes)

    async def put(self, *chunk: Any) -> None:
        await self.outflow.room()
        self.outflow.send(*chunk)


async def waits(running: asyncio.Task[None]) -> bool:
    """Let it run for some turns of the loop; tell whether it has not ended."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not running.done()


async def test_chunks_are_numbered_and_told_to_the_line_before_they_are_sent() -> None:
    """STREAM-2."""
    way = Way(2)
    await way.put(b"a")
    await way.put(b"b")
    assert way.sent == [StreamChunk(7, 1, b"a"), StreamChunk(7, 2, b"b")]
    assert way.line.gathered == 2


async def test_what_a_frame_says_besides_is_handed_on_and_no_body_counts_for_nothing() -> None:
    """INPUT-2."""
    way = Way(3, 1, partial(Input, RequestId(7)))
    await way.put(None, False)
    await way.put(b"ab", False)
    assert way.sent == [Input(7, 1, None, False), Input(7, 2, b"ab", False)]
    last = asyncio.create_task(way.put(None, True))
    assert await waits(last)
    way.outflow.give(3, 3)
    await last
    assert way.sent[2:] == [Input(7, 3, None, True)]


async def test_a_chunk_waits_for_credit_and_then_for_a_connection_that_fell_behind() -> None:
    """STREAM-3."""
    way = Way()
    running = asyncio.create_task(way.put(b"a"))
    assert await waits(running)
    way.line.fall_behind()
    way.outflow.give(1, 0)  # less in bytes than there was: nothing is taken back
    assert await waits(running)
    way.outflow.give(2, MUCH)  # credit alone does not open the connection
    assert await waits(running)
    way.line.catch_up()
    await running
    assert way.sent == [StreamChunk(7, 1, b"a")]


async def test_a_connection_that_is_behind_and_gone_holds_nobody_up() -> None:
    way = Way(1)
    way.line.fall_behind()
    way.line.is_open = False
    async with asyncio.timeout(5):
        await way.put(b"a")


@pytest.mark.parametrize("what", ["credit", "connection"])
async def test_stopping_cancels_who_waits_in_whichever_task(what: str) -> None:
    way = Way(0 if what == "credit" else 1)
    way.line.fall_behind()
    running = asyncio.create_task(way.put(b"a"))
    assert await waits(running)
    way.outflow.stop()
    async with asyncio.timeout(5):
        await asyncio.wait([running])
    assert running.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await way.put(b"b")
    assert (way.outflow.is_stopped, way.sent) == (True, [])


@pytest.mark.parametrize(("size", "most"), [(1, 32), (30_000, 3)])
async def test_others_have_their_turn_after_32_chunks_or_64_kib(size: int, most: int) -> None:
    way, seen = Way(100), list[int]()
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(way.sent)))
    for _ in range(50):
        await way.put(b"x" * size)
    assert seen == [most]


async def test_without_a_connection_all_is_dropped() -> None:
    outflow = Outflow(None, CHUNK, 1, 1)
    await outflow.room()
    outflow.send(b"a")
