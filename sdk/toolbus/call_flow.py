"""What comes to the caller of one call before its end: chunks, credit for its input, progress.

A `CallFlow` stands in the call table where a future stands for other calls: it is told of the end,
and gives that to the reader behind all chunks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from toolbus.call_ends import recorded_end
from toolbus.chunk_reader import ChunkReader
from toolbus.chunks import Chunk, chunk_from_wire
from toolbus.errors import Cancelled, Executed, InvalidResult, RoomException, StreamBroken
from toolbus.inflow import Arrival, Inflow, Shares
from toolbus.telemetry import CallSpan
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
from toolbus.wire.windows import FIRST_BYTES, FIRST_CHUNKS

__all__ = ["CallFlow", "InputSide", "Sink", "file_of", "unreadable_result"]

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """What a flow needs of the request that it belongs to."""

    id: int
    connection: Any
    written: bool

    @property
    def executed(self) -> Executed:
        """Whether the tool ran, as far as this side knows."""


class InputSide(Protocol):
    """Who sends what a call takes in."""

    def attach(self, request: int, line: Any, fail: Callable[[BaseException], None]) -> None:
        """Belong to a request: on which connection, and whom to tell of errors."""

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit."""

    def end_attempt(self) -> None:
        """Send no more: the request that it was sent under has ended."""


class CallFlow:
    """One call's chunks and its end behind them, for one reader.

    In the call table it does what a future does: it is told of the end, once.

    Args:
        shares: Where its memory comes from.
        on_progress: Takes the plain value of each progress.
        feed: Sends what the call takes in.
    """

    __slots__ = ("_end", "_feed", "_forget", "_inflow", "_on_progress", "_sink", "_told")

    def __init__(
        self,
        shares: Shares,
        *,
        on_progress: Callable[[Any], None] | None = None,
        feed: InputSide | None = None,
    ) -> None:
        self._inflow = Inflow(shares, self._give_credit, FIRST_CHUNKS, FIRST_BYTES)
        self._on_progress = on_progress
        self._feed = feed
        self._told: list[Callable[[BaseException | None], None]] = []
        """Those who want to know the end."""
        self._end: Result | BaseException | None = None
        self._sink: Sink | None = None
        self._forget: Callable[[Any], bool] = lambda _sink: False

    def attach(self, sink: Sink, forget: Callable[[Any], bool]) -> None:
        """Belong to a request from now on.

        Args:
            sink: The request, with its connection.
            forget: Takes it out of the call table; tells whether it was under way.
        """
        self._sink, self._forget = sink, forget
        if self._feed is not None:
            self._feed.attach(sink.id, sink.connection, self.break_off)

    def open_wide(self) -> dict[str, int]:
        """Expect a stream from the beginning; return the options of the call that say so."""
        chunks, total_bytes = self._inflow.widen()
        return {"credit_chunks": chunks, "credit_bytes": total_bytes}

    def tell_end(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Say once how the call ended, as soon as that is known here; None is well."""
        if self._end is None:
            self._told.append(on_end)
        else:
            on_end(None if isinstance(self._end, Result) else self._end)

    def over(self) -> asyncio.Future[None]:
        """Give what is done when the end is known here."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tell_end(lambda _end: None if over.done() else over.set_result(None))
        return over

    # What the call table sees: the part of a future

    def done(self) -> bool:
        """Whether the end is known."""
        return self._end is not None

    def set_result(self, result: Result) -> None:
        """Take the good end."""
        self._finish(result)

    def set_exception(self, error: BaseException) -> None:
        """Take the bad end."""
        self._finish(error)

    def _finish(self, end: Result | BaseException) -> None:
        if self._end is not None:
            return
        self._end = end
        if self._feed is not None:
            self._feed.end_attempt()
        for on_end in self._told:
            on_end(None if isinstance(end, Result) else end)
        self._inflow.end()

    # What the table hands over

    def take(self, frame: StreamChunk | Credit | Progress) -> None:
        """Take what comes before the end; a chunk that is not the next one ends the call."""
        if isinstance(frame, StreamChunk):
            try:
                self._inflow.arrive(frame.number, frame.body)
            except StreamBroken as broken:
                self.break_off(broken)
        elif isinstance(frame, Progress):
            self._tell_progress(frame)
        elif self._feed is not None and frame.of_input:
            self._feed.give(frame.chunks, frame.bytes)

    def _tell_progress(self, frame: Progress) -> None:
        """Hand a progress on; what its taker raises is logged, and harms nothing."""
        if self._on_progress is None:
            return
        try:
            value = chunk_from_wire(unpack_body(frame.body, binary=True)).value
        except (BadBody, ValueError, TypeError, RoomException) as broken:
            _logger.warning("a progress cannot be read: %r", broken)
            return
        try:
            self._on_progress(value)
        except (Exception, asyncio.CancelledError):  # the latter of a future that it asks
            _logger.exception("on_progress raised")

    # What the reader does

    async def next(self) -> Arrival | None:
        """Wait for the next chunk; None behind the last one. Cancelling it loses nothing.

        Raises:
            Exception: How the call ended, after all chunks that came before; each time again.
        """
        body = await self._inflow.next()
        if body is not None:
            return Arrival(body, last=False)
        end = self._end
        self._inflow.drop()
        if isinstance(end, Result):
            self._end = _OVER
            return Arrival(end.body, last=True)
        if end is _OVER:
            return None
        assert end is not None, "an inflow ends with its flow"
        raise end

    def wrong(self, error: RoomException) -> RoomException:
        """End the call with what is wrong with it: its reader is told at once, nobody reads on."""
        self.break_off(error)
        self._inflow.drop()
        return error

    def break_off(self, error: BaseException) -> None:
        """End the call here, and tell the server, unless it has ended; the reader gets `error`."""
        if self._end is None:
            sink = self._sink
            if sink is not None and self._forget(sink) and sink.written:
                self._send(Cancel(RequestId(sink.id), "cancelled"))
            self._finish(error)

    def leave(self) -> None:
        """Read no more: what came is dropped, and a call that has not ended is given up."""
        executed: Executed = "no" if self._sink is None else self._sink.executed
        self.wrong(Cancelled("the stream was left before its end", executed=executed))

    def _give_credit(self, chunks: int, total_bytes: int) -> None:
        if self._sink is not None:
            self._send(Credit(RequestId(self._sink.id), False, chunks, total_bytes))

    def _send(self, frame: Frame) -> None:
        """Write a frame on the request's connection; without one it is dropped."""
        if self._sink is not None and self._sink.connection is not None:
            self._sink.connection.send_message(encode(frame))


class _Over(Exception):
    """Stands for a result that the reader has got."""


_OVER = _Over()


def unreadable_result(arrival: Arrival, _path: str, _reason: str) -> InvalidResult:
    """Say that what a host sent is no chunk; for a `ChunkReader`."""
    executed: Executed = "yes" if arrival.last else "maybe"
    return InvalidResult("what the host sent is no chunk", executed=executed)


async def file_of(flow: CallFlow, span: CallSpan | None) -> Chunk:
    """Make a result of which the first piece is here; the span ends with the last of them."""
    if span is not None:
        flow.tell_end(lambda end: span.end(None if end is None else recorded_end(end)))
    file = await ChunkReader(flow, unreadable_result, flow.leave).next()
    assert file is not None, "the first piece is here"
    return file
