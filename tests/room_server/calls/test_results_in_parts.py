"""Results in parts, and replies to callers that read slowly, at a router without sockets."""

from __future__ import annotations

import pytest

from support.parts.router_harness import RouterHarness, phase, port_of
from toolbus.errors import ToolFailed
from toolbus.wire import Cancel, Credit, Failed, RequestId, Result, StreamChunk, failed, pack_body
from toolbus_server.calls.call_state import Connection
from toolbus_server.calls.router import MAX_WAITING_REPLY_BYTES
from toolbus_server.limits import Limits

ASKS = pack_body([5, b""])
PART = pack_body([5, bytes(1000)])
MIB = bytes(2**20)


@pytest.fixture
def harness() -> RouterHarness:
    return RouterHarness(Limits(max_streams=1))


def begun(harness: RouterHarness, count: int) -> tuple[Connection, Connection, list[int]]:
    """Let alice make calls whose results begin in parts; return the dispatch ids too."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    ids = []
    for number in range(1, count + 1):
        harness.call(alice, number)
        ids.append(port_of(host).take_dispatch().id)
        harness.router.streams.chunk(host, StreamChunk(ids[-1], 1, ASKS))
        assert port_of(alice).take(StreamChunk) == StreamChunk(number, 1, ASKS)
    for number in range(1, count + 1):
        harness.router.streams.credit(alice, Credit(RequestId(number), False, 9, 100_000))
    return host, alice, ids


def test_results_in_parts_beyond_the_limit_of_streams_get_credit_in_turn(
    harness: RouterHarness,
) -> None:
    """STREAM-10, STREAM-11."""
    host, alice, ids = begun(harness, 3)
    for number, dispatch_id in enumerate(ids, 1):
        sent, port_of(host).sent = port_of(host).sent, []
        assert {frame.id for frame in sent if isinstance(frame, Credit)} == {dispatch_id}
        harness.router.streams.chunk(host, StreamChunk(dispatch_id, 2, PART))
        assert port_of(alice).take(StreamChunk) == StreamChunk(number, 2, PART)
        port_of(host).sent.clear()
        harness.router.answer(host, Result(RequestId(dispatch_id), PART))
        assert port_of(alice).take_result() == Result(number, PART)
    assert (alice.stream_count, alice.outstanding_bytes) == (0, 0)


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_call_that_ends_while_its_result_waits_frees_its_place(
    harness: RouterHarness, end: str
) -> None:
    """CALL-7, CALL-10, ERR-2: the transfer is a part of the call."""
    host, alice, ids = begun(harness, 3)
    assert port_of(host).take(Credit).id == ids[0]
    if end == "cancel":
        for number in (2, 1):
            harness.router.cancel(alice, Cancel(RequestId(number), "cancelled"))
            assert phase(port_of(alice).take_failed()) == ("cancelled", "maybe")
        assert [port_of(host).take_cancel().id for _ in (2, 1)] == [ids[1], ids[0]]
        assert port_of(host).take(Credit).id == ids[2]
    else:
        harness.clock.advance(5.1)
        ends = [phase(port_of(alice).take_failed()) for _ in ids]
        assert ends == [("deadline_exceeded", "maybe")] * 3
        assert (alice.waiting_streams, alice.stream_count, alice.outstanding_bytes) == ({}, 0, 0)


def test_a_part_without_credit_breaks_a_result_that_waits(harness: RouterHarness) -> None:
    """STREAM-5."""
    host, alice, ids = begun(harness, 2)
    harness.router.streams.chunk(host, StreamChunk(ids[1], 2, PART))
    failure = port_of(alice).take_failed()
    assert (failure.id, phase(failure)) == (2, ("stream_broken", "maybe"))


def test_the_host_of_a_caller_without_parts_knows(harness: RouterHarness) -> None:
    """STREAM-11, CONN-4."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    alice.reads_parts = False
    harness.call(alice, 1)
    assert port_of(host).take_dispatch().header["files_only"] is True


def test_replies_beyond_what_may_wait_for_a_caller_become_small_errors(
    harness: RouterHarness,
) -> None:
    """CALL-28, ERR-7."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    port_of(alice).holds = True
    large = ToolFailed("x" * 4_000, details={"a": "x" * 20_000})
    fitting = MAX_WAITING_REPLY_BYTES // len(MIB) - 1  # each frame has some more bytes
    for number in range(1, fitting + 102):
        harness.call(alice, number)
        reply_to = RequestId(port_of(host).take_dispatch().id)
        is_result = number <= fitting + 1
        harness.router.answer(host, Result(reply_to, MIB) if is_result else failed(reply_to, large))
    assert MAX_WAITING_REPLY_BYTES * 0.9 < alice.waiting_reply_bytes <= MAX_WAITING_REPLY_BYTES
    port_of(alice).release()
    assert alice.waiting_reply_bytes == 0
    replies = port_of(alice).sent
    assert [type(reply) for reply in replies[: fitting + 1]] == [Result] * fitting + [Failed]
    refused, last = replies[fitting], replies[-1]
    assert isinstance(refused, Failed)
    assert isinstance(last, Failed)
    assert (*phase(refused), refused.retryable) == ("overloaded", "yes", False)
    assert (*phase(last), last.details, len(last.message)) == ("tool_failed", "yes", None, 200)
