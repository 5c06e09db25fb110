"""Receives what arrives for a call before its end: chunks, credit for its input, progress.

An `InboundStream` is stored in `PendingRequests` in place of a future. It receives the end of the
call and gives it to the reader after all chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_sequences import ChunkReader
from toolbus.chunks.chunk_types import Chunk, chunk_from_wire
from toolbus.chunks.receive_credit import BufferBudget, ReceiveBuffer, ReceivedChunk
from toolbus.chunks.result_parts import JoinedParts, part_data
from toolbus.client.local_errors import recorded_end
from toolbus.errors import Cancelled, Executed, InvalidResult, RoomException, StreamBroken
from toolbus.telemetry.tracing import CallSpan
from toolbus.wire import (
    BadBody,
    Cancel,
    Credit,
    Frame,
    Progress,
    RequestId,
    Result,
    StreamChunk,
    encode,
    unpack_body,
)
from toolbus.wire.flow_control import FIRST_BYTES, FIRST_CHUNKS

__all__ = [
    "InboundStream",
    "InputSource",
    "StreamRequest",
    "read_file",
    "read_parts",
    "unreadable_result",
]

_logger = bounded_logger(__name__)


class StreamRequest(Protocol):
    """The request that a stream belongs to."""

    id: int
    websocket: Any
    written: bool

    @property
    def executed(self) -> Executed:
        """Whether the tool ran, as far as this side knows."""


class InputSource(Protocol):
    """Sends the input of a call."""

    def attach(
        self, request: int, websocket: Any, on_error: Callable[[BaseException], None]
    ) -> None:
        """Belong to a request: its id, its connection and a callback for errors."""

    def add_credit(self, chunks: int, total_bytes: int) -> None:
        """Add credit from the host."""

    def end_attempt(self) -> None:
        """Send no more: the request has ended."""


class InboundStream:
    """The chunks of one call and its end, for one reader.

    In `PendingRequests` it has the role of a future: its end is set once.

    Args:
        budget: Allocates its buffer.
        on_progress: Called with the plain value of each progress.
        input_sender: Sends the call's input.
    """

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
        input_sender: InputSource | None = None,
    ) -> None:
        self._buffer = ReceiveBuffer(budget, self._give_credit, FIRST_CHUNKS, FIRST_BYTES)
        self._on_progress = on_progress
        self._input = input_sender
        self._end_callbacks: list[Callable[[BaseException | None], None]] = []
        """Called with the end of the call."""
        self._end: Result | BaseException | None = None
        self._request: StreamRequest | None = None
        self._remove: Callable[[Any], bool] = lambda _request: False

    def attach(self, request: StreamRequest, remove: Callable[[Any], bool]) -> None:
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


class _Delivered(Exception):
    """Stands for a result that was given to the reader."""


_DELIVERED = _Delivered()


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
        stream.add_end_callback(lambda end: span.end(None if end is None else recorded_end(end)))
    file = await ChunkReader(stream, unreadable_result, stream.cancel).next()
    assert file is not None, "the first piece has arrived"
    return file
