"""Results that arrive in parts: put together, broken, cancelled, late, lost and retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.scripted_room import ScriptedRoom, json_body, piece, scripted_room
from toolbus.errors import DeadlineExceeded, NoHost, StreamBroken
from toolbus.wire import MAX_FRAME_BYTES, Cancel, Credit, pack_body

VALUE = {"text": "äöü" * 500, "numbers": list(range(100))}


def part(data: bytes) -> bytes:
    return pack_body([5, data])


TOO_MUCH = part(bytes(MAX_FRAME_BYTES // 2))
"""Twice as much exceeds a frame, with a part before it."""


async def begin(scripted: ScriptedRoom, **options: Any) -> asyncio.Task[Any]:
    """Make a call, and let the first two parts of its result arrive."""
    calling = asyncio.create_task(scripted.room.invoke("logs.tail", {}, **options))
    await scripted.call()
    await scripted.chunk(part(b""))
    credit = (await scripted.received())[0]
    assert isinstance(credit, Credit)
    assert credit.chunks > 1
    await scripted.chunk(part(json_body(VALUE)[:1000]))
    assert not calling.done()
    return calling


@pytest.mark.parametrize("options", [{}, {"on_progress": print}])
async def test_parts_are_put_together(options: dict[str, Any]) -> None:
    """STREAM-11; also of a call with progress or an attachment."""
    async with scripted_room() as scripted:
        free = scripted.shares_left
        calling = await begin(scripted, **options)
        await scripted.end(part(json_body(VALUE)[1000:]))
        assert (await calling).value == VALUE
        assert scripted.shares_left == free


@pytest.mark.parametrize("body", [json_body(1), piece(b"x", more=True), TOO_MUCH])
@pytest.mark.parametrize("is_end", [False, True])
async def test_a_result_that_does_not_continue_is_broken(body: bytes, is_end: bool) -> None:
    """STREAM-11."""
    async with scripted_room() as scripted:
        calling = await begin(scripted)
        if body == TOO_MUCH:
            await scripted.chunk(body)
        await (scripted.end(body) if is_end else scripted.chunk(body))
        with pytest.raises(StreamBroken):
            await calling


async def test_a_call_is_cancelled_while_its_result_arrives() -> None:
    """CALL-10."""
    async with scripted_room() as scripted:
        calling = await begin(scripted)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert [type(frame) for frame in await scripted.received()] == [Cancel]
        assert scripted.id not in scripted.pending


async def test_the_deadline_covers_the_transfer() -> None:
    """RETRY-6."""
    async with scripted_room() as scripted:
        calling = await begin(scripted, timeout_s=0.3)
        with pytest.raises(DeadlineExceeded) as late:
            await calling
        assert late.value.executed == "maybe"


async def test_an_error_while_the_result_arrives_may_be_retried() -> None:
    """RETRY-1, RETRY-2: as if nothing had arrived."""
    async with scripted_room() as scripted:
        calling = await begin(scripted)
        await scripted.fail(NoHost())
        await scripted.call()
        await scripted.end(json_body(7))
        assert (await calling).value == 7
