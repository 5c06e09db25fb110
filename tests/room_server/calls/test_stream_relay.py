"""Streams at the router alone: chunks and credit are forwarded, and no reader is overrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parts.router_harness import RouterHarness, phase, port_of
from support.parts.streamed_call import BODY, WINDOW, StreamedCall
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Input,
    Progress,
    Result,
    StreamChunk,
    pack_body,
)
from toolbus.wire.flow_control import MAX_CHUNK_BYTES
from toolbus_server.calls.router import Connection
from toolbus_server.calls.stream_relay import FLOOR_BYTES
from toolbus_server.limits import Limits


@pytest.fixture
def harness() -> Iterator[RouterHarness]:
    """After each test no table has an entry, and no reader has outstanding bytes."""
    harness = RouterHarness()
    yield harness
    for connection in [*harness.room.connections.values()]:
        harness.leave(connection)
    assert harness.router.in_flight == 0
    harness.clock.advance(1e6)
    assert harness.clock.waiting == 0
    for connection in harness.connections:
        assert (connection.stream_count, connection.outstanding_bytes) == (0, 0)


# A stream of results


def test_chunks_of_one_event_loop_iteration_may_be_written_together(harness: RouterHarness) -> None:
    streamed = StreamedCall(harness)
    for _ in range(3):
        streamed.chunk()
    assert (streamed.at_caller.gathered, len(streamed.at_caller.sent)) == (3, 3)
    streamed.at_caller.holds = True
    streamed.chunk()
    assert streamed.at_caller.gathered == 3
    streamed.at_caller.release()
    streamed.end()


def test_a_stream_delivers_its_chunks_in_order_and_then_its_end(harness: RouterHarness) -> None:
    """STREAM-1, STREAM-2: bodies are forwarded unread."""
    streamed = StreamedCall(harness)
    assert streamed.dispatch.remaining_ms is None
    assert streamed.dispatch.header["credit_chunks"] == 256
    assert streamed.dispatch.header["credit_bytes"] == FLOOR_BYTES
    streamed.chunk(b"\xc1")
    streamed.chunk(b"\xc2")
    streamed.end()
    assert streamed.at_caller.take(StreamChunk) == StreamChunk(1, 1, b"\xc1")
    assert streamed.at_caller.take(StreamChunk) == StreamChunk(1, 2, b"\xc2")
    assert streamed.at_caller.take_result() == Result(1, pack_body([0]))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"credit_chunks": 1}, "/credit_bytes"),
        ({"credit_bytes": 1}, "/credit_chunks"),
        ({"credit_chunks": 0, "credit_bytes": 9}, "/credit_chunks"),
        ({"credit_chunks": 1, "credit_bytes": -1}, "/credit_bytes"),
        ({"credit_chunks": 2**53 + 1, "credit_bytes": 1}, "/credit_chunks"),
        ({"credit_chunks": True, "credit_bytes": 1}, "/credit_chunks"),
        ({**WINDOW, "idle_ms": -1}, "/idle_ms"),
        ({**WINDOW, "idle_ms": "9"}, "/idle_ms"),
        ({"input": 1}, "/input"),
        ({"progress": "yes"}, "/progress"),
    ],
)
def test_invalid_options_are_refused_by_their_path(
    harness: RouterHarness, options: dict[str, Any], path: str
) -> None:
    """STREAM-1, FRAME-13."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, **options)
    failed = port_of(alice).take_failed()
    assert (failed.code, failed.executed) == ("invalid_arguments", "no")
    assert path.encode() in (failed.details or b"")
    assert port_of(host).sent == []


def test_a_host_gets_credit_as_its_chunks_are_written_and_never_more_than_the_caller_gave(
    harness: RouterHarness,
) -> None:
    """STREAM-3, STREAM-4."""
    streamed = StreamedCall(harness, credit_chunks=9, credit_bytes=100_000)
    streamed.chunk(b"x" * 30_000)
    credit = streamed.at_host.take(Credit)
    assert (credit.id, credit.of_input, credit.chunks) == (streamed.dispatch.id, False, 9)
    assert credit.bytes == 30_000 + FLOOR_BYTES
    streamed.chunk(b"x" * 60_000)  # the last one may go beyond its credit
    assert streamed.at_host.take(Credit).bytes == 100_000
    streamed.credit(12, 90_000)  # less than before is ignored
    assert streamed.at_host.take(Credit) == Credit(streamed.dispatch.id, False, 12, 100_000)
    streamed.credit(12, 300_000)
    assert 100_000 < streamed.at_host.take(Credit).bytes <= 300_000


def test_smaller_credit_does_not_reduce_earlier_credit(harness: RouterHarness) -> None:
    """STREAM-3."""
    streamed = StreamedCall(harness, credit_chunks=3)
    streamed.credit(1, 1)
    streamed.chunk(b"x" * 30_000)
    assert streamed.at_host.take(Credit).bytes > FLOOR_BYTES
    streamed.chunk()
    streamed.chunk()
    assert [type(frame) for frame in streamed.at_caller.sent] == [StreamChunk] * 3


def test_a_caller_that_gives_little_credit_is_sent_little(harness: RouterHarness) -> None:
    """STREAM-4."""
    assert StreamedCall(harness, credit_bytes=5).dispatch.header["credit_bytes"] == 5


@pytest.mark.parametrize(("count", "most"), [(1, 1), (100, 8)])
def test_a_sender_that_uses_its_credit_gets_a_larger_window_up_to_a_limit(
    harness: RouterHarness, count: int, most: int
) -> None:
    """STREAM-4: a fast stream needs a large window, and many share one budget."""
    many = {"credit_chunks": 10**6, "credit_bytes": 2**40}
    streams = [StreamedCall(harness, number + 1, **many) for number in range(count)]
    for _ in range(30):
        for streamed in streams:
            streamed.chunk(b"x" * min(streamed.ahead, 200_000))
    under_way = sum(streamed.ahead for streamed in streams)
    assert (most - 1) * 2**20 < under_way <= most * 2**20 + (count - 1) * FLOOR_BYTES


@pytest.mark.parametrize("number", [0, 2, 3, 2**53])
def test_a_chunk_that_is_not_the_next_one_ends_the_call(
    harness: RouterHarness, number: int
) -> None:
    """STREAM-5."""
    streamed = StreamedCall(harness)
    stray = StreamChunk(streamed.dispatch.id, number, BODY)
    harness.router.streams.chunk(streamed.host, stray)
    failed = streamed.at_caller.take_failed()
    assert (phase(failed), failed.retryable) == (("stream_broken", "maybe"), False)
    assert streamed.at_host.take_cancel() == Cancel(streamed.dispatch.id, "broken")
    streamed.chunk()
    assert streamed.at_caller.sent == []


@pytest.mark.parametrize("sizes", [[1, 1, 1], [MAX_CHUNK_BYTES + 1], [FLOOR_BYTES, 1]])
def test_a_chunk_that_is_too_large_or_beyond_its_credit_ends_the_call(
    harness: RouterHarness, sizes: list[int]
) -> None:
    """STREAM-2, STREAM-5."""
    streamed = StreamedCall(harness, credit_chunks=2, credit_bytes=FLOOR_BYTES)
    for size in sizes:
        streamed.chunk(b"x" * size)
    chunks = len(sizes) - 1
    assert [type(frame) for frame in streamed.at_caller.sent] == [StreamChunk] * chunks + [Failed]
    assert phase(streamed.at_caller.sent[-1]) == ("stream_broken", "maybe")  # type: ignore[arg-type]
    assert streamed.at_host.take_cancel().reason == "broken"


def test_frames_for_calls_not_in_flight_or_without_the_stream_are_dropped_and_counted(
    harness: RouterHarness,
) -> None:
    """STREAM-6."""
    streamed = StreamedCall(harness)
    streams = harness.router.streams
    other = harness.host("other", "other")
    streams.chunk(other, StreamChunk(streamed.dispatch.id, 1, BODY))
    streams.chunk(streamed.host, StreamChunk(streamed.dispatch.id + 1, 1, BODY))
    streams.credit(other, Credit(1, False, 9, 9))
    streams.credit(streamed.alice, Credit(streamed.dispatch.id, True, 9, 9))
    streams.credit(streamed.host, Credit(streamed.dispatch.id, True, 9, 9))
    streams.input(streamed.alice, Input(1, 1, BODY, False))
    streams.progress(streamed.host, Progress(streamed.dispatch.id, BODY))
    streamed.end()
    streamed.chunk()
    streamed.credit(999, 2**40)
    assert streams.dropped == 9
    assert [type(frame) for frame in streamed.at_caller.sent] == [Result]
    assert [*streamed.at_host.sent, *port_of(other).sent] == []


# Time


@pytest.mark.parametrize("options", [{"progress": True}, {"progress": True, "idle_ms": 5_000}])
def test_a_host_that_has_credit_and_sends_nothing_has_stalled(
    harness: RouterHarness, options: dict[str, Any]
) -> None:
    """STREAM-7."""
    idle_s = options.get("idle_ms", 30_000) / 1000
    streamed = StreamedCall(harness, **options)
    harness.clock.advance(idle_s - 1)
    streamed.chunk()
    harness.clock.advance(idle_s - 1)
    harness.router.streams.progress(streamed.host, Progress(streamed.dispatch.id, BODY))
    harness.clock.advance(idle_s - 1)
    assert streamed.at_caller.take(StreamChunk)
    assert streamed.at_caller.take(Progress)
    assert streamed.at_caller.sent == []
    harness.clock.advance(1)
    failed = streamed.at_caller.take_failed()
    assert (phase(failed), failed.retryable) == (("stream_stalled", "maybe"), False)
    assert streamed.at_host.take_cancel() == Cancel(streamed.dispatch.id, "stalled")


def test_a_stream_that_waits_for_credit_or_has_no_idle_limit_does_not_stall(
    harness: RouterHarness,
) -> None:
    """STREAM-7: the host is idle only while it has credit."""
    for_ever = StreamedCall(harness, 1, idle_ms=0)
    waiting = StreamedCall(harness, 2, credit_chunks=1)
    waiting.chunk()
    harness.clock.advance(29)
    waiting.credit(2, 2_000_000)
    harness.clock.advance(29)
    assert [type(frame) for frame in waiting.at_caller.sent] == [StreamChunk]
    harness.clock.advance(1)
    assert phase(waiting.at_caller.sent[-1]) == ("stream_stalled", "maybe")  # type: ignore[arg-type]
    harness.clock.advance(1e6)
    for_ever.end()
    assert isinstance(for_ever.at_caller.sent[-1], Result)


@pytest.mark.parametrize("options", [{}, {"idle_ms": 0}, {"idle_ms": 2}, {"idle_ms": 10**9}])
@pytest.mark.parametrize("unread_ms", [30_000, 300_000])
def test_a_host_waits_for_a_caller_that_takes_nothing_as_long_as_its_server_says(
    options: dict[str, Any], unread_ms: int
) -> None:
    """STREAM-7: and is checked rarely, however short its idle limit is."""
    harness = RouterHarness(Limits(stream_unread_ms=unread_ms))
    streamed = StreamedCall(harness, credit_chunks=1, **options)
    streamed.chunk()
    checks = 0
    for _ in range(unread_ms // 100 - 10):
        harness.clock.advance(0.1)
        checks += harness.clock.fired
        harness.clock.fired = 0
    assert [type(frame) for frame in streamed.at_caller.sent] == [StreamChunk]
    assert checks <= unread_ms // 1000 + 10
    harness.clock.advance(1.1)
    assert phase(streamed.at_caller.sent[-1]) == ("stream_stalled", "maybe")  # type: ignore[arg-type]
    assert streamed.at_host.take_cancel().reason == "stalled"


def _lagging(harness: RouterHarness) -> StreamedCall:
    """Return a stream whose last chunk is written after 299 s."""
    streamed = StreamedCall(harness, credit_chunks=1)
    streamed.at_caller.holds = True
    streamed.chunk()
    harness.clock.advance(299)
    streamed.at_caller.release()
    return streamed


def _remote(harness: RouterHarness) -> StreamedCall:
    """Return a stream whose caller is connected to another node."""
    streamed = StreamedCall(harness, credit_chunks=1)
    streamed.alice.participant.is_remote = True
    streamed.chunk()
    harness.clock.advance(270)
    return streamed


def _slow(harness: RouterHarness) -> StreamedCall:
    """Return a stream whose caller gives credit for one chunk in 29 s."""
    streamed = StreamedCall(harness, credit_chunks=1, idle_ms=0)
    for number in range(20):
        streamed.chunk()
        harness.clock.advance(29)
        streamed.credit(number + 2, 2**30)
    streamed.chunk()
    return streamed


@pytest.mark.parametrize("begin", [_lagging, _remote, _slow])
def test_a_caller_that_takes_something_or_cannot_has_not_stalled(
    harness: RouterHarness, begin: Callable[[RouterHarness], StreamedCall]
) -> None:
    """STREAM-7: nor one at another node, which decides that; 30 s later nothing has come."""
    streamed = begin(harness)
    harness.clock.advance(29)
    assert all(isinstance(frame, StreamChunk) for frame in streamed.at_caller.sent)
    harness.clock.advance(1)
    assert phase(streamed.at_caller.sent[-1]) == ("stream_stalled", "maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [({}, 30), ({"idle_ms": 5_000}, 5), ({**WINDOW, "idle_ms": 0}, 300), ({"idle_ms": 10**9}, 300)],
)
def test_a_caller_that_owes_input_and_sends_none_has_stalled(
    harness: RouterHarness, options: dict[str, Any], limit_s: int
) -> None:
    """INPUT-4: not before it has credit, and progress of the tool counts."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, ms=10**9, input=True, progress=True, **options)
    dispatch = port_of(host).take_dispatch()
    streams = harness.router.streams
    if "credit_bytes" not in options:
        harness.clock.advance(1_000)
    streams.credit(host, Credit(dispatch.id, True, 9, 1_000))
    harness.clock.advance(limit_s - 1)
    streams.progress(host, Progress(dispatch.id, BODY))
    harness.clock.advance(limit_s - 1)
    streams.input(alice, Input(1, 1, BODY, False))
    harness.clock.advance(limit_s - 1)
    assert not any(isinstance(frame, Failed) for frame in port_of(alice).sent)
    harness.clock.advance(1)
    assert phase(port_of(alice).sent[-1]) == ("stream_stalled", "maybe")  # type: ignore[arg-type]
    assert port_of(host).sent[-1] == Cancel(dispatch.id, "stalled")


def test_a_tool_that_has_its_whole_input_may_run_until_its_deadline(
    harness: RouterHarness,
) -> None:
    """INPUT-4."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, ms=10**9, input=True)
    dispatch = port_of(host).take_dispatch()
    harness.router.streams.credit(host, Credit(dispatch.id, True, 9, 1_000))
    harness.router.streams.input(alice, Input(1, 1, BODY, True))
    harness.clock.advance(10**5)
    harness.router.answer(host, Result(dispatch.id, BODY))
    assert isinstance(port_of(alice).sent[-1], Result)


@pytest.mark.parametrize("kind", ["chunk", "progress"])
def test_a_host_that_sent_a_chunk_cannot_claim_that_nothing_ran(
    harness: RouterHarness, kind: str
) -> None:
    """ERR-4."""
    streamed = StreamedCall(harness, progress=True)
    if kind == "chunk":
        streamed.chunk()
    else:
        harness.router.streams.progress(streamed.host, Progress(streamed.dispatch.id, BODY))
    refusal = Failed(streamed.dispatch.id, "overloaded", "no", True, "full", None, 250)
    harness.router.answer(streamed.host, refusal)
    failed = streamed.at_caller.sent[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.executed, failed.retryable) == ("overloaded", "maybe", False)


def test_a_stream_ends_at_its_deadline_if_it_has_one(harness: RouterHarness) -> None:
    """STREAM-7, CALL-7."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, ms=2_000, **WINDOW)
    assert port_of(host).take_dispatch().remaining_ms == 2_000
    harness.clock.advance(2)
    assert phase(port_of(alice).take_failed()) == ("deadline_exceeded", "maybe")


# A file in the result of a call that is no stream


def test_a_call_that_is_no_stream_accepts_the_chunks_of_a_file(harness: RouterHarness) -> None:
    """STREAM-8."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    assert dispatch.header == alice.participant.call_header
    streams = harness.router.streams
    streams.chunk(host, StreamChunk(dispatch.id, 1, BODY))
    assert port_of(alice).take(StreamChunk) == StreamChunk(1, 1, BODY)
    assert port_of(host).sent == []
    streams.credit(alice, Credit(1, False, 2, 100_000))
    assert port_of(host).take(Credit).chunks == 2
    streams.chunk(host, StreamChunk(dispatch.id, 2, BODY))
    streams.chunk(host, StreamChunk(dispatch.id, 3, BODY))
    assert port_of(alice).take(StreamChunk).number == 2
    assert port_of(alice).take_failed().code == "stream_broken"


def test_a_caller_that_reads_no_chunks_gets_none_and_its_host_knows(harness: RouterHarness) -> None:
    """STREAM-8, CONN-4."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    alice.reads_chunks = alice.reads_parts = False
    harness.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    assert dispatch.header["whole"] is True
    harness.router.streams.chunk(host, StreamChunk(dispatch.id, 1, BODY))
    assert port_of(alice).sent == []
    harness.call(alice, 2, **WINDOW)
    assert "whole" not in port_of(host).take_dispatch().header


# Input


def _with_input(harness: RouterHarness) -> tuple[Connection, Connection, Dispatch]:
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, input=True)
    dispatch = port_of(host).take_dispatch()
    assert dispatch.header["input"] is True
    return host, alice, dispatch


def test_input_goes_to_the_host_as_it_gives_credit(harness: RouterHarness) -> None:
    """INPUT-1, INPUT-2."""
    host, alice, dispatch = _with_input(harness)
    streams = harness.router.streams
    streams.credit(host, Credit(dispatch.id, True, 2, 1_000_000))
    assert port_of(alice).take(Credit) == Credit(1, True, 2, FLOOR_BYTES)
    streams.input(alice, Input(1, 1, b"\xc1", False))
    streams.input(alice, Input(1, 2, BODY, False))
    streams.input(alice, Input(1, 3, None, True))
    assert port_of(host).take(Input) == Input(dispatch.id, 1, b"\xc1", False)
    assert port_of(host).take(Input) == Input(dispatch.id, 2, BODY, False)
    assert port_of(host).take(Input) == Input(dispatch.id, 3, None, True)
    harness.router.answer(host, Result(dispatch.id, BODY))
    assert isinstance(port_of(alice).sent[-1], Result)


@pytest.mark.parametrize(
    "frames",
    [
        [Input(1, 1, BODY, False)],  # before any credit
        [Input(1, 2, None, True)],
        [Input(1, 1, None, False)],
        [Input(1, 1, None, True), Input(1, 1, None, True)],
        [Input(1, 1, None, True), Input(1, 2, BODY, False)],
    ],
)
def test_input_out_of_its_order_ends_the_call(harness: RouterHarness, frames: list[Input]) -> None:
    """INPUT-1, INPUT-2."""
    host, alice, dispatch = _with_input(harness)
    for frame in frames:
        harness.router.streams.input(alice, frame)
    assert phase(port_of(alice).take_failed()) == ("stream_broken", "maybe")
    assert port_of(host).sent[-1] == Cancel(dispatch.id, "broken")


def test_no_input_is_accepted_after_its_last_chunk(harness: RouterHarness) -> None:
    """INPUT-2."""
    host, alice, dispatch = _with_input(harness)
    harness.router.streams.credit(host, Credit(dispatch.id, True, 9, 1_000))
    harness.router.streams.input(alice, Input(1, 1, BODY, True))
    harness.router.streams.input(alice, Input(1, 2, BODY, False))
    assert port_of(host).take(Input) == Input(dispatch.id, 1, BODY, True)
    assert port_of(host).take_cancel().reason == "broken"
    assert isinstance(port_of(alice).sent[-1], Failed)


def test_input_after_the_end_of_its_call_is_dropped(harness: RouterHarness) -> None:
    """INPUT-3."""
    host, alice, dispatch = _with_input(harness)
    harness.router.answer(host, Result(dispatch.id, BODY))
    harness.router.streams.input(alice, Input(1, 1, BODY, False))
    assert [type(frame) for frame in port_of(alice).sent] == [Result]
    assert port_of(host).sent == []


# Progress


def test_progress_reaches_the_caller_that_requested_it_unless_its_queue_is_full(
    harness: RouterHarness,
) -> None:
    """PROGRESS-1."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    harness.call(alice, 1, progress=True)
    dispatch = port_of(host).take_dispatch()
    assert dispatch.header["progress"] is True
    send_progress = harness.router.streams.progress
    send_progress(host, Progress(dispatch.id, BODY))
    assert port_of(alice).take(Progress) == Progress(1, BODY)
    send_progress(host, Progress(dispatch.id, b"x" * (16 * 1024 + 1)))
    port_of(alice).holds = True
    send_progress(host, Progress(dispatch.id, BODY))
    port_of(alice).release()
    assert port_of(alice).sent == []


# Slow readers


def test_a_hundred_streams_of_a_caller_that_does_not_read_stay_within_the_budget(
    harness: RouterHarness,
) -> None:
    """STREAM-4: at most 8 MiB and a little for each are on the way, whatever the credit."""
    streams = [StreamedCall(harness, number + 1, credit_bytes=2**40) for number in range(100)]
    port_of(streams[0].alice).holds = True
    for streamed in streams:
        while streamed.ahead > 0:
            streamed.chunk(b"x" * 10_000)
    held = sum(len(body) for streamed in streams for body in streamed.bodies)
    assert held <= 8 * 2**20 + 100 * (FLOOR_BYTES + MAX_CHUNK_BYTES)
    port_of(streams[0].alice).release()
    assert all(isinstance(streamed.at_host.sent[-1], Credit) for streamed in streams)
    assert len(port_of(streams[0].alice).sent) == sum(streamed.sent for streamed in streams)


def test_the_number_of_queued_empty_chunks_is_bounded(harness: RouterHarness) -> None:
    """STREAM-4: they cost no bytes of credit."""
    streamed = StreamedCall(harness, credit_chunks=2**53, credit_bytes=2**53)
    port_of(streamed.alice).holds = True
    assert streamed.dispatch.header["credit_chunks"] == 1_024
    for _ in range(1_024):
        streamed.chunk(b"")
    assert streamed.at_host.sent == []
    port_of(streamed.alice).release()
    given = [frame.chunks for frame in streamed.at_host.sent if isinstance(frame, Credit)]
    assert max(given) == 2_048
    streamed.chunk(b"")
    assert len(streamed.at_caller.sent) == 1_025


def test_the_end_of_a_call_follows_its_queued_chunks(harness: RouterHarness) -> None:
    """STREAM-1."""
    streamed = StreamedCall(harness)
    port_of(streamed.alice).holds = True
    streamed.chunk()
    streamed.end()
    port_of(streamed.alice).release()
    assert [type(frame) for frame in streamed.at_caller.sent] == [StreamChunk, Result]


@pytest.mark.parametrize("ends_it", ["caller", "host"])
def test_a_caller_that_reads_nothing_gets_no_new_stream_for_those_it_cancels(
    harness: RouterHarness, ends_it: str
) -> None:
    """STREAM-4: queued chunks count until they are written, even if their call has ended."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    at_host, at_caller = port_of(host), port_of(alice)
    at_caller.holds = True
    for number in range(1, 1_000):
        harness.call(alice, number, ms=None, **WINDOW)
        if not at_host.sent:
            break
        dispatch = at_host.take_dispatch()
        body = b"x" * (FLOOR_BYTES - 1)
        harness.router.streams.chunk(host, StreamChunk(dispatch.id, 1, body))
        harness.router.streams.chunk(host, StreamChunk(dispatch.id, 2, b"x" * MAX_CHUNK_BYTES))
        if ends_it == "caller":
            harness.router.cancel(alice, Cancel(number, "cancelled"))
        else:
            harness.router.answer(host, Result(dispatch.id, pack_body([0])))
        at_host.sent.clear()
    assert number < 100
    assert alice.stream_count == 0
    refused = at_caller.held[-1]
    assert isinstance(refused, Failed)
    assert (refused.code, refused.executed, refused.retryable) == ("overloaded", "no", True)
    at_caller.release()
    assert alice.outstanding_bytes == 0
    harness.call(alice, 2_000, ms=None, **WINDOW)
    harness.router.answer(host, Result(at_host.take_dispatch().id, pack_body([0])))


def test_one_credit_is_queued_for_a_sender_that_does_not_read_and_holds_the_latest_value(
    harness: RouterHarness,
) -> None:
    """STREAM-3: a flood of credits costs the host nothing."""
    streamed = StreamedCall(harness, credit_chunks=2)
    streamed.at_host.holds = True
    for number in range(3, 300):
        streamed.credit(number, 2_000_000 + number)
    assert len(streamed.at_host.held) == 1
    streamed.at_host.release()
    assert [frame.chunks for frame in streamed.at_host.sent] == [3, 299]  # type: ignore[union-attr]


def test_files_count_among_the_streams_of_a_caller(harness: RouterHarness) -> None:
    """STREAM-8, STREAM-10."""
    few = RouterHarness(Limits(max_streams=1))
    host, alice = few.host("host", "t"), few.connection("alice")
    dispatches = []
    for number in (1, 2):
        few.call(alice, number)
        dispatches.append(port_of(host).take_dispatch())
        few.router.streams.chunk(host, StreamChunk(dispatches[-1].id, 1, bytes(65)))
    assert port_of(alice).take(StreamChunk).id == 1
    failed = port_of(alice).take_failed()
    assert (failed.id, phase(failed)) == (2, ("stream_broken", "maybe"))


def test_a_caller_has_only_so_many_streams(harness: RouterHarness) -> None:
    """STREAM-10."""
    few = RouterHarness(Limits(max_streams=1))
    host, alice = few.host("host", "t"), few.connection("alice")
    few.call(alice, 1, **WINDOW)
    few.call(alice, 2, **WINDOW)
    few.call(alice, 3)
    failed = port_of(alice).take_failed()
    assert (failed.code, failed.executed, failed.retryable) == ("quota_exceeded", "no", True)
    few.router.answer(host, Result(port_of(host).take_dispatch().id, BODY))
    few.call(alice, 4, **WINDOW)
    port_of(host).take_dispatch()
    assert isinstance(port_of(host).take_dispatch(), Dispatch)


class RandomStreams:
    """Three streams of one caller, each until its end."""

    def __init__(self, data: st.DataObject) -> None:
        self.harness = RouterHarness()
        self.streams = [
            StreamedCall(self.harness, number + 1, credit_bytes=40_000) for number in range(3)
        ]
        self.live = [*self.streams]
        self.alice = self.streams[0].alice
        self._data = data

    def step(self) -> None:
        streamed = self._data.draw(st.sampled_from(self.live))
        acts = [self.chunk] * 5 + [self.credit] * 3 + [self.hold, self.free]
        self._data.draw(st.sampled_from([*acts, self.end, self.cancel, self.lose]))(streamed)

    def chunk(self, streamed: StreamedCall) -> None:
        if streamed.may_send:
            streamed.chunk(b"x" * self._data.draw(st.integers(0, 50_000)))

    def credit(self, streamed: StreamedCall) -> None:
        more = self._data.draw(st.integers(0, 100_000))
        streamed.credit(256, sum(map(len, streamed.bodies)) + more)

    def hold(self, _: StreamedCall) -> None:
        port_of(self.alice).holds = True

    def free(self, _: StreamedCall) -> None:
        port_of(self.alice).release()

    def end(self, streamed: StreamedCall) -> None:
        self.live.remove(streamed)
        streamed.end()

    def cancel(self, streamed: StreamedCall) -> None:
        self.live.remove(streamed)
        self.harness.router.cancel(self.alice, Cancel(streamed.id, "cancelled"))

    def lose(self, streamed: StreamedCall) -> None:
        self.live.remove(streamed)
        self.harness.leave(streamed.host)


@settings(max_examples=60)
@given(st.data())
def test_no_chunk_is_lost_or_reordered_and_all_counts_return_to_zero(
    data: st.DataObject,
) -> None:
    """STREAM-3, STREAM-4, STREAM-5: for random chunks, credits, pauses and ends."""
    machine = RandomStreams(data)
    for _ in range(data.draw(st.integers(1, 40))):
        if machine.live:
            machine.step()
    alice = port_of(machine.alice)
    alice.release()
    for streamed in machine.streams:
        got = [f.number for f in alice.sent if isinstance(f, StreamChunk) and f.id == streamed.id]
        assert got == list(range(1, len(got) + 1))
        if streamed in machine.live:
            assert len(got) == streamed.sent
            streamed.end()
    assert (machine.alice.outstanding_bytes, machine.alice.stream_count) == (0, 0)
