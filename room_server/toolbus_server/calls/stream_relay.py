"""Forwards the streams of calls: chunks to callers, input to hosts, and credit back to senders.

A `StreamDirection` is one direction of one call. Its reader gives credit for as much as it wants;
the server passes that on to the sender in small windows, so that little is on the way to one reader
however many streams it has and however slowly it reads. A sender always has credit for a little
more than what was written to the reader, if the reader gave it: no stream waits for another one.
Chunks for a slow reader wait in its send queue, in order, and count as not written.

The relay ends a call only because of its stream: one that breaks a rule, and one that is idle for
too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

from toolbus.concurrency.timers import CLOCK_S, Deadlines
from toolbus.errors import QuotaExceeded, RoomException, StreamBroken, StreamStalled
from toolbus.transport.websocket import NotifyingTicket
from toolbus.wire import Credit, Frame, Input, Progress, StreamChunk, encode
from toolbus.wire.flow_control import (
    FIRST_BYTES,
    FIRST_CHUNKS,
    MAX_PROGRESS_BYTES,
    WINDOW_BYTES,
    ReceiveWindow,
)
from toolbus_server.calls.call_state import CallStreams, Connection, InFlightCall, StreamDirection
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import bad_option

__all__ = ["FLOOR_BYTES", "READER_BUDGET_BYTES", "StreamRelay", "is_stream"]

# Not zero: a stream without credit of its own would wait until streams of the same reader are read,
# perhaps by a program that waits for this one first.
FLOOR_BYTES = FIRST_BYTES
"""How far a sender may always be ahead of what was written to its reader."""

# Streams of full speed share it: eight windows of `WINDOW_BYTES`. It is a part of what one slow
# reader may cost the server (STREAM-4).
READER_BUDGET_BYTES = 8 * 1024 * 1024
"""Bytes that may be in flight to one reader, in addition to `FLOOR_BYTES` per stream."""
_MAX_AHEAD_CHUNKS = 1_024
"""How many chunks a sender may be ahead: empty ones have no bytes, but cost memory."""
_RETRY_AFTER_S = 0.05
# The largest number that every language holds exactly (FRAME-3); totals above it would lose units.
_MAX_CREDIT = 2**53
# An empty part, as which a large result asks for credit, and little more: it may wait for as long
# as the other streams last, and waits at the server.
_MAX_WAITING_BYTES = 64
"""The most bytes of the first chunk of a result that waits for other streams (STREAM-10)."""
# Longer than `stream_unread_ms`, as here the receiver may be alive and its network slow. Without it
# the host's place would be taken for ever, as a stream needs no deadline (STREAM-7).
_SLOW_S = 300.0
"""How long a host waits at most for a connection that takes nothing, or for input."""
# Which limit holds changes with each credit and input, and no timer is set then: a stream is looked
# at again after the shortest one. At least after this time, which is how late a shorter `idle_ms`
# may be noticed, so that it does not cost a check in each iteration.
_CHECK_S = 1.0


class StreamRelay:
    """The streams of one server's calls.

    Args:
        loop: Its clock.
        limits: How many streams one participant may have.
        abort: Ends a call with an error, and sends its host the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        abort: Callable[[InFlightCall, RoomException, str], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._unread_s = limits.stream_unread_ms / 1000
        self._abort = abort
        self._stalls: Deadlines[CallStreams] = Deadlines(loop, self._check_stall)
        self.dropped = 0
        """Frames for calls that are not in flight, or that have no such stream."""

    # Beginning and end

    def open(self, call: InFlightCall, options: Mapping[str, Any], header: dict[str, Any]) -> None:
        """Give a call its streams, and describe them in the header for its host.

        Raises:
            InvalidArguments: An option is out of range.
            QuotaExceeded: The caller has too many streams.
        """
        streams = CallStreams(call, progress=options.get("progress", False))
        if is_stream(options):
            streams.results = results = _results_of(call, *_credit_in(options))
            header["credit_chunks"] = results.window.chunks
            header["credit_bytes"] = results.window.bytes
            streams.idle_s = _idle_s(options, self._limits)
        if options.get("input"):
            streams.inputs = _input_of(call)
            streams.owed_input_s = min(_idle_s(options, self._limits) or inf, _SLOW_S)
            header["input"] = True
        if streams.progress:
            header["progress"] = True
        if self._is_full(call.caller):
            message = f"{self._limits.max_streams} streams are in flight"
            raise QuotaExceeded(message, retry_after_s=_RETRY_AFTER_S)
        call.streams = streams

    def _is_full(self, caller: Connection) -> bool:
        return caller.stream_count >= self._limits.max_streams

    def begin(self, streams: CallStreams) -> None:
        """Count the streams of a call that was dispatched, and watch for stalls."""
        streams.active_at = self._loop.time()
        streams.call.caller.stream_count += 1
        for direction in (streams.results, streams.inputs):
            if direction is not None:
                _account(direction)
        self._stalls.add(streams.active_at + self._check_interval_s(streams), streams)

    def close(self, streams: CallStreams) -> None:
        """Close the streams of a call that has ended; queued chunks may still be written."""
        caller = streams.call.caller
        if streams.is_waiting:
            del caller.waiting_streams[streams]
        else:
            self._stalls.forget(streams)
            caller.stream_count -= 1
        for direction in (streams.results, streams.inputs):
            if direction is not None:
                # What was granted and has not arrived will not come any more; what arrived and is
                # queued still counts, until it is written.
                direction.window.bytes = 0
                _account(direction)
        # The next result in parts that waits for another stream to end gets credit.
        if caller.waiting_streams and not self._is_full(caller):
            waiting = next(iter(caller.waiting_streams))
            del caller.waiting_streams[waiting]
            waiting.is_waiting = False
            self.begin(waiting)
            if waiting.results is not None:
                self._grant(waiting.results)

    # Received frames

    def chunk(self, host: Connection, frame: StreamChunk) -> None:
        """Forward a chunk to the caller; drop and count one without a call that accepts it."""
        call = host.dispatched.get(frame.id)
        direction = None
        if call is not None and call.patterns is None:
            direction = self._result_direction(call, len(frame.body))
        if direction is None:
            self.dropped += 1
            return
        onward = StreamChunk(direction.reader_id, frame.number, frame.body)
        self._forward(direction, frame.number, len(frame.body), onward)

    def _result_direction(self, call: InFlightCall, size: int) -> StreamDirection | None:
        """Find the direction of a call's chunks; without a stream it begins with the first chunk.

        If the caller has too many streams, a result whose first chunk is small waits for credit.
        """
        streams = call.streams
        if streams is None:
            if not call.caller.reads_chunks:
                return None
            # The tool has run already, so its result waits where a stream would be refused: an
            # error now would lose it.
            is_waiting = self._is_full(call.caller)
            if is_waiting and size > _MAX_WAITING_BYTES:
                self._abort(call, StreamBroken("the caller has too many streams"), "broken")
                return None
            call.streams = streams = CallStreams(call, is_waiting=is_waiting)
            if is_waiting:
                streams.results = _results_of(call, FIRST_CHUNKS, _MAX_WAITING_BYTES)
                call.caller.waiting_streams[streams] = None
            else:
                streams.results = _results_of(call, FIRST_CHUNKS, FIRST_BYTES)
                self.begin(streams)
        elif streams.results is None and call.caller.reads_chunks:
            streams.results = _results_of(call, FIRST_CHUNKS, FIRST_BYTES)
            _account(streams.results)
        return streams.results

    def input(self, caller: Connection, frame: Input) -> None:
        """Forward a chunk of a call's input to its host."""
        call = caller.calls.get(frame.id)
        if call is None or call.streams is None or call.streams.inputs is None:
            self.dropped += 1
            return
        direction = call.streams.inputs
        onward = Input(direction.reader_id, frame.number, frame.body, frame.last)
        if direction.is_done or (frame.body is None and not frame.last):
            self._broken(direction, StreamBroken("the input continues after its end, or is empty"))
        elif frame.body is not None:
            direction.is_done = frame.last
            self._forward(direction, frame.number, len(frame.body), onward)
        elif frame.number != direction.window.number + 1:
            self._broken(direction, StreamBroken(f"the input ends with chunk {frame.number}"))
        else:
            direction.is_done = True
            self._send(direction, onward, 0)

    def credit(self, connection: Connection, frame: Credit) -> None:
        """Add the credit that a reader gave, and pass on what the budget allows."""
        call = (connection.dispatched if frame.of_input else connection.calls).get(frame.id)
        direction = None
        if call is not None and call.streams is not None:
            direction = call.streams.inputs if frame.of_input else call.streams.results
        if direction is None:
            self.dropped += 1
            return
        direction.allowed_chunks = max(direction.allowed_chunks, frame.chunks)
        direction.allowed_bytes = max(direction.allowed_bytes, frame.bytes)
        self._grant(direction)

    def progress(self, host: Connection, frame: Progress) -> None:
        """Forward a call's progress if its caller asked for it and its send queue is empty."""
        call = host.dispatched.get(frame.id)
        if call is None or call.streams is None or not call.streams.progress:
            self.dropped += 1
            return
        streams = call.streams
        # It counts as life of the host even if it is dropped: a slow caller must not make a working
        # tool look stalled.
        streams.active_at = self._loop.time()
        streams.has_progressed = True
        port = call.caller.port
        if len(frame.body) > MAX_PROGRESS_BYTES or port.is_behind:
            self.dropped += 1
            return
        port.send_message(encode(Progress(call.request_id, frame.body)))

    # Sending

    def _forward(self, direction: StreamDirection, number: int, size: int, onward: Frame) -> None:
        try:
            direction.window.arrive(number, size)
        except StreamBroken as error:
            self._broken(direction, error)
            return
        streams = direction.call.streams
        if streams is not None:
            streams.active_at = self._loop.time()
        self._send(direction, onward, size)

    def _send(self, direction: StreamDirection, onward: Frame, size: int) -> None:
        port = direction.reader.port
        if port.is_behind:
            # Chunks to a caller wait within its own credit. Input waits at a host, which all its
            # callers share: without a limit there, one caller could fill the host's queue for the
            # others.
            if direction.is_input and not port.may_wait(size):
                message = "too much waits for the participant that hosts the tool"
                self._abort(direction.call, StreamStalled(message), "stalled")
                return
            _account(direction)
            ticket = NotifyingTicket(partial(self._queued_chunk_written, direction, size))
            port.send_bounded(encode(onward), ticket)
        else:
            port.gather()
            port.send_message(encode(onward))
            self._chunk_written(direction, size)

    def _queued_chunk_written(self, direction: StreamDirection, size: int) -> None:
        if direction.call.streams is not None:  # its reader could not take it before
            direction.call.streams.active_at = self._loop.time()
        self._chunk_written(direction, size)

    def _chunk_written(self, direction: StreamDirection, size: int) -> None:
        """Count a chunk that was written to its reader, and give the sender further credit."""
        # Credit follows what was written, not what arrived: so a slow socket slows the sender, and
        # the send queue holds no more than the credit.
        direction.sent_bytes += size
        direction.sent_chunks += 1
        if direction.call.ended:
            _account(direction)
        else:
            self._grant(direction)

    def _grant(self, direction: StreamDirection) -> None:
        """Pass the reader's credit on to the sender, as far as the budget allows."""
        streams = direction.call.streams
        if streams is not None and streams.is_waiting:
            return
        window = direction.window
        before = (window.chunks, window.bytes)
        was_open = window.is_open
        # Each is extended when half of it is used: one credit for many chunks, and the sender does
        # not stop for a round trip. `max`, as credit that was given is never withdrawn.
        if window.chunks - direction.sent_chunks <= _MAX_AHEAD_CHUNKS // 2:
            most = min(direction.sent_chunks + _MAX_AHEAD_CHUNKS, direction.allowed_chunks)
            window.chunks = max(window.chunks, most)
        if window.bytes - direction.sent_bytes <= direction.window_bytes // 2:
            # Within the budget of the reader the sender may be further ahead of what was written.
            reader, ahead = direction.reader, FLOOR_BYTES
            others = reader.outstanding_bytes - direction.outstanding_bytes
            if others + direction.window_bytes <= READER_BUDGET_BYTES and not reader.port.is_behind:
                ahead = direction.window_bytes
            most = min(direction.sent_bytes + ahead, direction.allowed_bytes)
            window.bytes = max(window.bytes, most)
        _account(direction)
        if before == (window.chunks, window.bytes):
            return
        # A stream that moves gets a larger window, up to that of its reader. Those that only wait
        # keep the smallest, so thousands of them fit.
        if window.arrived:
            direction.window_bytes = min(2 * direction.window_bytes, WINDOW_BYTES)
        if streams is not None and not was_open:
            streams.active_at = self._loop.time()  # from now on the sender is the one that is idle
        self._send_credit(direction)

    def _send_credit(self, direction: StreamDirection) -> None:
        """Send the sender its credit; at most one credit waits in its send queue."""
        # A queued credit is followed by the newest one when it is written: totals make those
        # between needless, and a sender that reads slowly gets no queue of them.
        if direction.credit_is_queued:
            return
        window, port = direction.window, direction.sender.port
        direction.sent_credit = credit = window.chunks, window.bytes
        data = encode(Credit(direction.sender_id, direction.is_input, *credit))
        if port.is_behind:
            direction.credit_is_queued = True
            port.send_bounded(data, NotifyingTicket(partial(self._credit_written, direction)))
        else:
            port.send_message(data)

    def _credit_written(self, direction: StreamDirection) -> None:
        direction.credit_is_queued = False
        credit = (direction.window.chunks, direction.window.bytes)
        if not direction.call.ended and direction.sent_credit != credit:
            self._send_credit(direction)

    # Broken and stalled streams

    def _broken(self, direction: StreamDirection, error: StreamBroken) -> None:
        self._abort(direction.call, error, "broken")

    def _check_stall(self, streams: CallStreams) -> None:
        """End a call whose host is silent though it has credit, or whose caller is silent.

        The caller may give credit or input at any moment, but it is not polled all the time.
        """
        now = self._loop.time()
        if streams.call.stands_still:
            self._stalls.add(now + self._check_interval_s(streams), streams)
            return
        limit_s, message = self._stall_limit(streams)
        left_s = streams.active_at + limit_s - now
        if left_s > CLOCK_S:
            self._stalls.add(now + min(left_s, self._check_interval_s(streams)), streams)
        else:
            self._abort(streams.call, StreamStalled(message.format(limit_s)), "stalled")

    def _check_interval_s(self, streams: CallStreams) -> float:
        limit_s = min(streams.idle_s or inf, streams.owed_input_s, self._unread_s)
        return max(limit_s, _CHECK_S)

    def _stall_limit(self, streams: CallStreams) -> tuple[float, str]:
        """Return how long nothing may pass, and the message after that.

        A caller at another node gets its time from that node: what it gives passes through there.
        """
        results, inputs, caller = streams.results, streams.inputs, streams.call.caller
        if results is not None and not results.window.is_open:
            if results.sent_chunks < results.window.number:
                return _SLOW_S, "the caller's connection took nothing for {:g} s"
            limit_s = _SLOW_S if caller.participant.is_remote else self._unread_s
            return limit_s, "the caller read nothing for {:g} s: read chunks as they arrive"
        if inputs is not None and inputs.window.is_open and not inputs.is_done:
            return streams.owed_input_s, "no input came for {:g} s: end the input if it is complete"
        return streams.idle_s or inf, "the host sent nothing for {:g} s"


def is_stream(options: Mapping[str, Any]) -> bool:
    """Whether a call with these options receives chunks before its result."""
    return "credit_bytes" in options or "credit_chunks" in options


def _results_of(call: InFlightCall, chunks: int, max_bytes: int) -> StreamDirection:
    return StreamDirection(
        call,
        sender=call.host,
        sender_id=call.dispatch_id,
        reader=call.caller,
        reader_id=call.request_id,
        window=ReceiveWindow(min(chunks, _MAX_AHEAD_CHUNKS), min(max_bytes, FLOOR_BYTES)),
        allowed_chunks=chunks,
        allowed_bytes=max_bytes,
        window_bytes=FLOOR_BYTES,
    )


def _input_of(call: InFlightCall) -> StreamDirection:
    return StreamDirection(
        call,
        sender=call.caller,
        sender_id=call.request_id,
        reader=call.host,
        reader_id=call.dispatch_id,
        window=ReceiveWindow(0, 0),
        allowed_chunks=0,
        allowed_bytes=0,
        window_bytes=FLOOR_BYTES,
        is_input=True,
    )


def _account(direction: StreamDirection) -> None:
    """Update the count of bytes that are, or may at any moment be, on the way to a reader."""
    # The last chunk may exceed its credit (STREAM-3), so what arrived may be more than the window.
    ahead = max(direction.window.bytes, direction.window.arrived) - direction.sent_bytes
    direction.reader.outstanding_bytes += ahead - direction.outstanding_bytes
    direction.outstanding_bytes = ahead


def _credit_in(options: Mapping[str, Any]) -> tuple[int, int]:
    chunks, max_bytes = options.get("credit_chunks", 0), options.get("credit_bytes", 0)
    if not 0 < chunks <= _MAX_CREDIT:
        raise bad_option("credit_chunks", "must be at least 1")
    if not 0 < max_bytes <= _MAX_CREDIT:
        raise bad_option("credit_bytes", "must be at least 1")
    return chunks, max_bytes


def _idle_s(options: Mapping[str, Any], limits: Limits) -> float:
    idle_ms: int = options.get("idle_ms", limits.stream_idle_ms)
    if not 0 <= idle_ms <= _MAX_CREDIT:
        raise bad_option("idle_ms", "must not be negative")
    return idle_ms / 1000
