"""The requests of one participant that wait for their replies; each is settled exactly once.

A request is settled by its reply, the loss of its connection, its deadline or its removal. What
arrives for a call before its end (chunks, credit for its input, progress) goes to an
`InboundStream`, which is stored in place of a future. It receives the end of the call and gives it
to the reader after all chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from threading import get_ident
from typing import Any

from msgspec import Struct

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_sequences import ChunkReader
from toolbus.chunks.chunk_types import Chunk, chunk_from_wire
from toolbus.chunks.receive_credit import BufferBudget, ReceiveBuffer, ReceivedChunk
from toolbus.chunks.result_parts import JoinedParts, part_data
from toolbus.client.held_calls import HeldCall, report_held
from toolbus.client.input_sender import InputSender
from toolbus.client.local_errors import check_loop, recorded_end
from toolbus.client.retry import CallPlan
from toolbus.concurrency.timers import Alarm
from toolbus.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    Executed,
    InvalidResult,
    RoomException,
    StreamBroken,
)
from toolbus.telemetry.tracing import CallSpan
from toolbus.wire import (
    BadBody,
    Cancel,
    Credit,
    Failed,
    Frame,
    Held,
    Progress,
    RequestId,
    Result,
    Resumed,
    StreamChunk,
    encode,
    exception_of,
    unpack_body,
)
from toolbus.wire.flow_control import FIRST_BYTES, FIRST_CHUNKS

__all__ = [
    "InboundStream",
    "PendingRequest",
    "PendingRequests",
    "read_file",
    "read_parts",
    "unreadable_result",
]

_logger = bounded_logger(__name__)
_PAUSE_PER_REQUEST_S, _MAX_PAUSE_S = 0.000_01, 0.02


class PendingRequest(Struct, eq=False):
    """A request that waits for its reply; as a ticket it records whether it was sent."""

    id: int
    future: Any
    """Receives the end: a future, or an `InboundStream` if chunks come before it."""
    ends_at: float
    """The deadline by the loop's clock; infinity for none."""
    websocket: Any = None
    """The connection that it was sent on and that its reply arrives on."""
    written: bool = False
    ended: bool = False
    on_result: Callable[[Any], None] | None = None
    """Called with the connection when the result arrives, before what arrives after it."""
    call: CallPlan | None = None
    """The call that it is an attempt of, whose deadline moves when it waits for a person."""
    waits: int = 0
    """For how many persons the call waits; its time stands still then."""
    held_at: float = 0.0
    """Since when, by the loop's clock."""
    held_ends_at: float = 0.0
    """What `ends_at` was then."""

    @property
    def executed(self) -> Executed:
        """Whether a call's tool ran, as far as this side knows."""
        return "maybe" if self.written else "no"


class InboundStream:
    """The chunks of one call and its end, for one reader; as a future its end is set once."""

    __slots__ = (
        "_buffer",
        "_end",
        "_end_callbacks",
        "_input",
        "_on_progress",
        "_remove",
        "_request",
    )

    def __init__(
        self,
        budget: BufferBudget,
        *,
        on_progress: Callable[[Any], None] | None = None,
        input_sender: InputSender | None = None,
    ) -> None:
        self._buffer = ReceiveBuffer(budget, self._give_credit, FIRST_CHUNKS, FIRST_BYTES)
        self._on_progress = on_progress
        self._input = input_sender
        self._end_callbacks: list[Callable[[BaseException | None], None]] = []
        """Called with the end of the call."""
        self._end: Result | BaseException | None = None
        self._request: PendingRequest | None = None
        self._remove: Callable[[Any], bool] = lambda _request: False

    def attach(self, request: PendingRequest, remove: Callable[[Any], bool]) -> None:
        """Belong to a request from now on.

        Args:
            request: The request, with its connection.
            remove: Removes it from the pending requests; returns whether it was pending.
        """
        self._request, self._remove = request, remove
        if self._input is not None:
            self._input.attach(request.id, request.websocket, self.abort)

    @property
    def request_id(self) -> RequestId:
        """The id of its request; 0 before `attach`."""
        return RequestId(0 if self._request is None else self._request.id)

    def initial_credit(self) -> dict[str, int]:
        """Prepare for a stream; return the call options with the initial credit."""
        chunks, total_bytes = self._buffer.grant_credit()
        return {"credit_chunks": chunks, "credit_bytes": total_bytes}

    def add_end_callback(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Call back once with the error that ended the call, or None for a result."""
        if self._end is None:
            self._end_callbacks.append(on_end)
        else:
            on_end(None if isinstance(self._end, Result) else self._end)

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done at the end of the call."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add_end_callback(lambda _end: None if ended.done() else ended.set_result(None))
        return ended

    # For `PendingRequests`: the methods of a future

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._end is not None

    def set_result(self, result: Result) -> None:
        """End with a result."""
        self._finish(result)

    def set_exception(self, error: BaseException) -> None:
        """End with an error."""
        self._finish(error)

    def _finish(self, end: Result | BaseException) -> None:
        if self._end is not None:
            return
        self._end = end
        if self._input is not None:
            self._input.end_attempt()
        for on_end in self._end_callbacks:
            on_end(None if isinstance(end, Result) else end)
        self._buffer.end()

    # Frames from `PendingRequests`

    def receive(self, frame: StreamChunk | Credit | Progress) -> None:
        """Handle a frame before the end; a chunk out of order ends the call."""
        if isinstance(frame, StreamChunk):
            try:
                self._buffer.add(frame.number, frame.body)
            except StreamBroken as broken:
                self.abort(broken)
        elif isinstance(frame, Progress):
            self._report_progress(frame)
        elif self._input is not None and frame.of_input:
            self._input.add_credit(frame.chunks, frame.bytes)

    def _report_progress(self, frame: Progress) -> None:
        """Call `on_progress`; its errors are logged and have no effect on the call."""
        if self._on_progress is None:
            return
        try:
            value = chunk_from_wire(unpack_body(frame.body, binary=True)).value
        except (BadBody, ValueError, TypeError, RoomException) as broken:
            _logger.warning("a progress value cannot be decoded: %r", broken)
            return
        try:
            self._on_progress(value)
        except (Exception, asyncio.CancelledError):  # the latter from a future that it reads
            _logger.exception("on_progress raised")

    # For the reader

    @property
    def is_in_parts(self) -> bool:
        """Whether the result of the call has begun to arrive in parts."""
        first = self._buffer.first
        return first is not None and part_data(first) is not None

    async def next(self) -> ReceivedChunk | None:
        """Wait for the next chunk; None after the last one. Cancelling loses nothing.

        Raises:
            Exception: The error that ended the call, after all earlier chunks; again on later
                calls.
        """
        body = await self._buffer.next()
        if body is not None:
            return ReceivedChunk(body, last=False)
        end = self._end
        self._buffer.discard()
        if isinstance(end, Result):
            self._end = _DELIVERED
            return ReceivedChunk(end.body, last=True)
        if end is _DELIVERED:
            return None
        assert end is not None, "a buffer ends with its stream"
        raise end

    def fail(self, error: RoomException) -> RoomException:
        """End the call with an error, which its reader gets at once; drop unread chunks."""
        self.abort(error)
        self._buffer.discard()
        return error

    def abort(self, error: BaseException) -> None:
        """End the call here and cancel it at the server, unless it has ended."""
        if self._end is None:
            request = self._request
            if request is not None and self._remove(request) and request.written:
                self._send(Cancel(RequestId(request.id), "cancelled"))
            self._finish(error)

    def cancel(self) -> None:
        """Drop unread chunks and cancel the call if it has not ended."""
        executed: Executed = "no" if self._request is None else self._request.executed
        self.fail(Cancelled("the stream was closed before its end", executed=executed))

    def _give_credit(self, chunks: int, total_bytes: int) -> None:
        if self._request is not None:
            self._send(Credit(RequestId(self._request.id), False, chunks, total_bytes))

    def _send(self, frame: Frame) -> None:
        """Send a frame on the request's connection; without one it is dropped."""
        if self._request is not None and self._request.websocket is not None:
            self._request.websocket.send_message(encode(frame))


_DELIVERED = Exception("it stands for a result that was given to the reader")


def unreadable_result(received: ReceivedChunk, _path: str, _reason: str) -> InvalidResult:
    """Make the error for an invalid chunk of a host; for a `ChunkReader`."""
    executed: Executed = "yes" if received.last else "maybe"
    return InvalidResult("the host sent data that is not a chunk", executed=executed)


async def read_parts(stream: InboundStream) -> Result:
    """Wait for all parts of a result whose first part has arrived.

    Raises:
        RoomException: The error that ended the call, or `StreamBroken` for an invalid part.
    """
    received = await JoinedParts(stream).next()
    assert received is not None, "the first part has arrived"
    return Result(stream.request_id, received.body)


async def read_file(stream: InboundStream, span: CallSpan | None) -> Chunk:
    """Make a file result whose first piece has arrived; the span ends with the last piece."""
    if span is not None:
        stream.add_end_callback(lambda end: span.end(recorded_end(end)))
    file = await ChunkReader(stream, unreadable_result, stream.cancel).next()
    assert file is not None, "the first piece has arrived"
    return file


class PendingRequests:
    """The requests of one participant, on all its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._pending: dict[int, PendingRequest] = {}
        self._alarm = Alarm(loop, self._expire_due)
        self._last_id = 0
        self.dropped: int = 0
        """Number of replies and chunks that were late or for unknown requests; never an error."""
        self.budget: BufferBudget = BufferBudget()
        """Buffer memory of all streams."""

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, deadline_at: float) -> PendingRequest:
        """Open a request with a new id; it ends by itself at its deadline by the loop's clock.

        Raises `Unavailable` in another loop: every request passes here before it is sent.
        """
        # To ask for the running loop takes a system call (for the process id), which each call
        # would pay for. Where this loop runs in this thread, no other one does.
        if get_ident() != self._thread or not self._loop.is_running():
            check_loop(self._loop)
        self._last_id += 1
        pending = PendingRequest(self._last_id, self._loop.create_future(), deadline_at)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        return pending

    def open_stream(
        self, stream: InboundStream, deadline_at: float, websocket: Any
    ) -> PendingRequest:
        """Open a request whose chunks and end go to a stream; infinity means no deadline.

        Raises `Unavailable` in another loop.
        """
        check_loop(self._loop)
        self._last_id += 1
        pending = PendingRequest(self._last_id, stream, deadline_at, websocket)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        stream.attach(pending, self.remove)
        return pending

    def close(self) -> None:
        """End all requests; none is opened any more."""
        self.lose_all()
        self._alarm.close()

    def settle(self, reply: Result | Failed) -> None:
        """Pass a reply to the task that waits for it.

        A reply that no task waits for is dropped and counted.
        """
        pending = self._pending.pop(reply.id, None)
        if pending is None:
            self.dropped += 1
            return
        pending.ended = True
        if pending.waits:
            self._stop_waiting(pending)
        waiting = pending.future
        if waiting.done():
            self.dropped += 1
        elif isinstance(reply, Result):
            if pending.on_result is not None:
                pending.on_result(pending.websocket)
            waiting.set_result(reply)
        else:
            waiting.set_exception(exception_of(reply))

    def receive(self, frame: StreamChunk | Credit | Progress) -> None:
        """Pass a frame to its call before the call's end, or drop it if no task waits for the call.

        The first chunk of a call without a stream becomes its result; a dropped chunk is counted.
        """
        pending = self._pending.get(frame.id)
        waiting: Any = pending and pending.future
        if isinstance(waiting, InboundStream):
            waiting.receive(frame)
        elif isinstance(frame, StreamChunk):
            if pending is None or waiting.done():
                self.dropped += 1
                return
            stream = InboundStream(self.budget)
            pending.future = stream
            stream.attach(pending, self.remove)
            stream.receive(frame)
            waiting.set_result(stream)

    def remove(self, pending: PendingRequest) -> bool:
        """Remove a request that no task waits for; return whether it was pending."""
        pending.ended = True
        if pending.waits:
            self._stop_waiting(pending)
        return self._pending.pop(pending.id, None) is not None

    # Calls that wait for a person

    def hold(self, frame: Held) -> None:
        """Let the time of a call stand still, and that of the calls around it."""
        pending = self._pending.get(frame.id)
        if pending is None or pending.call is None:
            return
        pending.waits += 1
        if pending.waits == 1:
            pending.held_at = self._loop.time()
            pending.held_ends_at, pending.ends_at = pending.ends_at, inf
            if pending.call.within is not None:
                pending.call.within.pause()
        self._report(pending.call, frame.data)

    def resume(self, frame: Resumed) -> None:
        """Move the deadline of a call by the length of a wait; with the last one it goes on."""
        pending = self._pending.get(frame.id)
        if pending is None or pending.call is None or not pending.waits:
            return
        pending.waits -= 1
        waited_s = frame.waited_ms / 1000  # 0 while it waits for another person
        pending.call.deadline_at += waited_s
        if not pending.waits:
            pending.ends_at = pending.held_ends_at + waited_s
            if pending.ends_at < self._alarm.at:
                self._alarm.set(pending.ends_at)
            if pending.call.within is not None:
                pending.call.within.resume()
        self._report(pending.call, frame.data)

    def _stop_waiting(self, pending: PendingRequest) -> None:
        """End the waits of a call that ends itself: the server says nothing of them any more."""
        assert pending.call is not None, "as it waits"
        pending.waits = 0
        pending.call.deadline_at += self._loop.time() - pending.held_at
        if pending.call.within is not None:
            pending.call.within.resume()

    def _report(self, call: CallPlan, data: dict[str, Any]) -> None:
        if call.on_held is not None and (held := HeldCall.from_wire(data)) is not None:
            report_held(call.on_held, held)

    def _expire_due(self, now: float) -> float:
        """End the requests whose deadline has passed; return when to check again.

        All are scanned: there are rarely more than the server allows one participant. To use at
        most a hundredth of the time even if deadlines follow each other closely, an end may be late
        by 10 us for each pending request, and by 20 ms at most.
        """
        for pending in [request for request in self._pending.values() if request.ends_at <= now]:
            message = "no reply arrived before the deadline"
            self._end(pending, DeadlineExceeded(message, executed=pending.executed))
        waiting = [request.ends_at for request in self._pending.values()]
        pause_s = min(len(waiting) * _PAUSE_PER_REQUEST_S, _MAX_PAUSE_S)
        return max(min(waiting, default=inf), now + pause_s)

    def lose_all(self) -> None:
        """End all requests: the connection is lost."""
        for pending in list(self._pending.values()):
            self._lose(pending)

    def lose(self, websocket: Any) -> None:
        """End the requests that were sent on a lost connection."""
        for pending in list(self._pending.values()):
            if pending.websocket is websocket:
                self._lose(pending)

    def _lose(self, pending: PendingRequest) -> None:
        self._end(pending, ConnectionLost("the connection was lost", executed=pending.executed))

    def _end(self, pending: PendingRequest, error: RoomException) -> None:
        if self.remove(pending) and not pending.future.done():
            pending.future.set_exception(error)

    async def settled(self, websocket: Any) -> None:
        """Wait until no request that was sent on a connection is pending."""
        while waiting := [
            request.future.ended() if isinstance(request.future, InboundStream) else request.future
            for request in self._pending.values()
            if request.websocket is websocket and not request.future.done()
        ]:
            await asyncio.wait(waiting)
