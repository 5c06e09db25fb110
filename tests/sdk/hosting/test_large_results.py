"""Large results of a host: in parts, as their caller gives credit, or whole."""

from __future__ import annotations

from typing import Any

import pytest

from support.parts.isolated_host import HostStage
from toolbus import tool
from toolbus.chunks.result_parts import LARGE_RESULT_BYTES, PART_BYTES
from toolbus.errors import Overloaded
from toolbus.hosting import fair_slots
from toolbus.wire import StreamChunk, pack_body, unpack_body


@tool(max_concurrency=1)
async def text(size: int) -> str:
    return "".join(chr(97 + number % 26) for number in range(size))


async def test_a_large_result_is_sent_in_parts_within_credit(host_stage: HostStage) -> None:
    """STREAM-11, STREAM-3."""
    server = host_stage.server(text, reads_parts=True)
    server.dispatch(1, "text", size=300_000)
    assert await server.fields_of(1) == [5, b""]
    assert await server.is_quiet()
    server.credit(1, 3, 2**30)
    parts = [(await server.fields_of(number))[1] for number in (2, 3)]
    assert await server.is_quiet()
    server.credit(1, 256, 2**30)
    parts += [(await server.fields_of(number))[1] for number in (4, 5)]
    parts.append(await server.answer())
    assert [len(part) for part in parts[:-1]] == [PART_BYTES] * 4
    assert unpack_body(b"".join(parts)) == [2, await text(300_000)]


@pytest.mark.parametrize(
    ("size", "header", "reads_parts"),
    [
        (LARGE_RESULT_BYTES - 10, {}, True),
        (500_000, {"whole": True}, True),
        (500_000, {"files_only": True}, True),
        (500_000, {"credit_chunks": 9, "credit_bytes": 9}, True),
        (500_000, {}, False),
    ],
)
async def test_a_result_is_whole_if_it_is_small_or_its_caller_reads_no_parts(
    host_stage: HostStage, size: int, header: dict[str, Any], reads_parts: bool
) -> None:
    """STREAM-11."""
    server = host_stage.server(text, reads_parts=reads_parts)
    server.dispatch(1, "text", size=size, header=header)
    assert len(await server.answer()) == size
    assert server.unread.empty()


async def test_a_result_that_waits_takes_no_place_and_its_cancelled_call_sends_nothing_more(
    host_stage: HostStage,
) -> None:
    """CALL-11, STREAM-11."""
    server = host_stage.server(text, max_in_flight=1, reads_parts=True)
    for number in (1, 2):  # neither the tool's own limit nor the host's is reached
        server.dispatch(number, "text", size=100_000)
        assert (await server.next_of(StreamChunk)).id == number
    server.cancel(1)
    server.credit(1, 256, 2**30)
    server.credit(2, 256, 2**30)
    assert (await server.next_of(StreamChunk)).id == 2
    assert len(await server.answer()) + PART_BYTES == len(pack_body([2, "x" * 100_000]))
    await server.idle()


async def test_a_caller_that_leaves_too_much_unread_gets_no_further_result(
    host_stage: HostStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STREAM-11: other callers do."""
    monkeypatch.setattr(fair_slots, "MAX_UNREAD_BYTES", 150_000)
    server = host_stage.server(text, reads_parts=True)
    for number in (1, 2):
        server.dispatch(number, "text", size=100_000)
        await server.next_of(StreamChunk)
    server.dispatch(3, "text", size=1)
    error = await server.error()
    assert (type(error), error.executed, error.retryable) == (Overloaded, "no", True)
    server.dispatch(4, "text", size=1, header={"caller": pack_body(["b", "bob", "user", "x"])})
    assert await server.answer() == "a"
    server.cancel(1)
    assert await server.is_quiet()
    server.dispatch(5, "text", size=1)
    assert await server.answer() == "a"
