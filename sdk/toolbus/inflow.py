"""What comes to the caller of one call before its end: chunks, credit for its input, progress.

A `CallFlow` stands in the call table where a future stands for other calls, and keeps what came
until it is read. It gives the host credit as its reader uses things up, never on arrival, so that
what waits here has a bound: `WINDOW_CHUNKS` and `WINDOW_BYTES` for each, `SHARED_BYTES` for all of
one connection; mostly it is less, as `reach` has it. What a chunk means is its reader's matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from toolbus.chunks import chunk_from_wire
from toolbus.errors import Cancelled, Executed, RoomException, StreamBroken
from toolbus.reach import Reach
from toolbus.wire import (
    BadBody,
    Cancel,
    Credit,
    Frame,
    Progress,
    RequestId,
    Result,
    StreamChunk,
    unpack_body,
)
from toolbus.wire.windows import ReceiveWindow

__all__ = [
    "FIRST_BYTES",
    "SHARED_BYTES",
    "WINDOW_BYTES",
    "WINDOW_CHUNKS",
    "Arrival",
    "CallFlow",
    "InputSide",
    "Shares",
    "Sink",
    "TwoReaders",
]

WINDOW_CHUNKS = 256
WINDOW_BYTES = 1024 * 1024
"""So much of one call may wait for its reader."""
SHARED_BYTES = 16 * 1024 * 1024
"""So much of all calls of one connection together."""
FIRST_CHUNKS, FIRST_BYTES = 1, 32 * 1024
"""What the host of a call that is no stream may send unasked (PROTOCOL.md, STREAM-8)."""
_LEAST_BYTES = 64 * 1024
# A ninth stream already leaves something for those after it.
_PART = 8
_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """What a flow needs of the request that it belongs to."""

    id: int
    written: bool
    ended: bool

    @property
    def executed(self) -> Executed:
        """Whether the tool ran, as far as this side knows."""


class InputSide(Protocol):
    """Who sends what a call takes in."""

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit."""

    def end_attempt(self) -> None:
        """Send no more: the request that it was sent under has ended."""


class TwoReaders(RuntimeError):
    """A second task wants to read while a first one waits; the first one goes on."""

    def __init__(self) -> None:
        super().__init__("another task is reading this stream")


class Arrival(NamedTuple):
    """A packed chunk that came."""

    body: bytes
    last: bool
    """Whether it is the call's result, behind which nothing comes."""


class Shares:
    """The memory that the flows of one connection have together."""

    def __init__(self, total_bytes: int = SHARED_BYTES) -> None:
        self._left = total_bytes

    def take(self) -> int:
        """Take a share: less the less is left, and 64 KiB at least."""
        share = max(_LEAST_BYTES, min(WINDOW_BYTES, self._left // _PART))
        self._left -= share
        return share

    def give_back(self, share: int) -> None:
        """Return a share whose bytes have been read or dropped."""
        self._left += share


class CallFlow:
    """One call's chunks, from their arrival until they are read, and its end behind them.

    In the call table it does what a future does: it is told of the end, once.

    Args:
        shares: Where its memory comes from; `share_bytes` is what it got.
        on_progress: Takes the plain value of each progress.
        feed: Sends what the call takes in.
    """

    __slots__ = (
        "_bodies",
        "_end",
        "_forget",
        "_on_end",
        "_overs",
        "_reach",
        "_read_bytes",
        "_read_chunks",
        "_reader",
        "_send",
        "_shares",
        "_sink",
        "_window",
        "feed",
        "on_progress",
        "share_bytes",
    )

    def __init__(
        self,
        shares: Shares,
        *,
        on_progress: Callable[[Any], None] | None = None,
        feed: InputSide | None = None,
    ) -> None:
        self._shares = shares
        self.share_bytes: int = shares.take()
        """How many bytes may wait here at most."""
        self._reach = Reach()
        self.on_progress: Callable[[Any], None] | None = on_progress
        """Takes the plain value of each progress."""
        self.feed: InputSide | None = feed
        """Sends what the call takes in."""
        self._on_end: Callable[[BaseException | None], None] | None = None
        self._overs: list[asyncio.Future[None]] = []
        self._window = ReceiveWindow(FIRST_CHUNKS, FIRST_BYTES)
        self._bodies: deque[bytes] = deque()
        self._end: Result | BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._read_chunks = self._read_bytes = 0
        self._sink: Sink | None = None
        self._send: Callable[[Frame], None] = _send_nothing
        self._forget: Callable[[Any], bool] = _forget_nothing

    def attach(
        self, sink: Sink, send: Callable[[Frame], None], forget: Callable[[Any], bool]
    ) -> None:
        """Belong to a request from now on.

        Args:
            sink: The request.
            send: Writes a frame on its connection.
            forget: Takes the request out of the call table; tells whether it was under way.
        """
        self._sink, self._send, self._forget = sink, send, forget

    def open_wide(self) -> dict[str, int]:
        """Expect a stream from the beginning; return the options of the call that say so."""
        self._window = ReceiveWindow(WINDOW_CHUNKS, self._ahead_bytes)
        return {"credit_chunks": WINDOW_CHUNKS, "credit_bytes": self._ahead_bytes}

    @property
    def _ahead_bytes(self) -> int:
        return min(self._reach.bytes, self.share_bytes)

    def tell_end(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Say once how the call ended, as soon as that is known here; None is well."""
        if self._end is None:
            self._on_end = on_end
        else:
            on_end(None if isinstance(self._end, Result) else self._end)

    def over(self) -> asyncio.Future[None]:
        """Give what is done when the end is known here."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._end is None:
            self._overs.append(over)
        else:
            over.set_result(None)
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
        for over in self._overs:
            if not over.done():
                over.set_result(None)
        if self.feed is not None:
            self.feed.end_attempt()
        if self._on_end is not None:
            self._on_end(None if isinstance(end, Result) else end)
        self._wake()

    # What the link hands over

    def take_chunk(self, frame: StreamChunk) -> None:
        """Keep a chunk for the reader; one that is not the next one ends the call."""
        try:
            self._window.arrive(frame.number, len(frame.body))
        except StreamBroken as broken:
            self.break_off(broken)
            return
        self._reach.heard()
        self._bodies.append(frame.body)
        self._wake()

    def take_credit(self, frame: Credit) -> None:
        """Let more of the input go."""
        if self.feed is not None:
            self.feed.give(frame.chunks, frame.bytes)

    def take_progress(self, frame: Progress) -> None:
        """Hand a progress on; what its taker raises is logged, and harms nothing."""
        if self.on_progress is None:
            return
        try:
            value = chunk_from_wire(unpack_body(frame.body, binary=True)).value
        except (BadBody, ValueError, TypeError, RoomException) as broken:
            _logger.warning("a progress cannot be read: %r", broken)
            return
        try:
            self.on_progress(value)
        except (Exception, asyncio.CancelledError):  # the latter of a future that it asks
            _logger.exception("on_progress raised")

    # What the reader does

    async def next(self) -> Arrival | None:
        """Wait for the next chunk; None behind the last one.

        Cancelling it loses nothing.

        Raises:
            TwoReaders: Another task is waiting.
            Exception: How the call ended, after all chunks that came before; each time again.
        """
        if self._reader is not None:
            raise TwoReaders
        while not self._bodies and self._end is None:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._bodies:
            return Arrival(self._use_up(), last=False)
        return self._take_end()

    def _use_up(self) -> bytes:
        body = self._bodies.popleft()
        self._read_chunks += 1
        self._read_bytes += len(body)
        window = self._window
        few_chunks = (window.chunks - self._read_chunks) * 2 <= WINDOW_CHUNKS
        if self._end is None and (
            few_chunks or (window.bytes - self._read_bytes) * 2 <= self._ahead_bytes
        ):
            self._give_credit(window)
        return body

    def _give_credit(self, window: ReceiveWindow) -> None:
        if not window.is_open:
            self._reach.let_go()
        window.chunks = self._read_chunks + WINDOW_CHUNKS
        window.bytes = max(window.bytes, self._read_bytes + self._ahead_bytes)
        if self._sink is not None:
            request = RequestId(self._sink.id)
            self._send(Credit(request, False, window.chunks, window.bytes))

    def _take_end(self) -> Arrival | None:
        end = self._end
        self._release()
        if isinstance(end, Result):
            self._end = _OVER
            return Arrival(end.body, last=True)
        if end is _OVER:
            return None
        assert end is not None
        raise end

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
        self.break_off(Cancelled("the stream was left before its end", executed=executed))
        self._bodies.clear()
        self._release()

    def _release(self) -> None:
        shares, self._shares = self._shares, _NO_SHARES
        shares.give_back(self.share_bytes)

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)


class _Nowhere(Shares):
    """Takes back what was given back already."""

    def give_back(self, share: int) -> None:
        pass


class _Over(Exception):
    """Stands for a result that the reader has got."""


_NO_SHARES = _Nowhere()
_OVER = _Over()


def _send_nothing(frame: Frame) -> None:
    """Stand in for a connection before there is one."""


def _forget_nothing(sink: Sink) -> bool:
    return False
