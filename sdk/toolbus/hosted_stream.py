"""What one call of a host sends before its end, as far and as fast as it may: chunks, progress.

A chunk waits for the caller's credit and for its connection; a progress waits for nobody. Made for
those calls alone that need it; how their input comes is in `hosted_input`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Protocol

from toolbus.chunk_bodies import WHOLE_FILE_BYTES, file_bodies
from toolbus.chunks import Chunk, FileChunk
from toolbus.context import ToolContext, progress_chunk
from toolbus.errors import InvalidResult, TooLarge
from toolbus.hosted_input import HostedInput, InputShares
from toolbus.toolkit import MAX_RESULT_BYTES, too_large
from toolbus.wire import (
    BadBody,
    Credit,
    Frame,
    Input,
    Progress,
    RequestId,
    StreamChunk,
    pack_body,
)
from toolbus.wire.windows import MAX_CHUNK_BYTES, SendWindow

__all__ = ["MAX_PROGRESS_BYTES", "HostedStream", "Pace", "WireEnd"]

MAX_PROGRESS_BYTES = 16 * 1024
"""The body of a progress (PROTOCOL.md, PROGRESS-1)."""
# What a call that is no stream begins with (PROTOCOL.md, STREAM-8).
_FIRST_CHUNKS, _FIRST_BYTES = 1, 32 * 1024
# A stream's turn: so much it may send before others have theirs.
_TURN_CHUNKS, _TURN_BYTES = 32, 64 * 1024


class Pace(Protocol):
    """How far the connection of a call is behind what it was given to write."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""

    def gather(self) -> None:
        """Let small messages that are sent in this turn of the loop leave together."""

    async def caught_up(self) -> None:
        """Wait until nothing has to wait any more, or the connection is gone."""


class WireEnd(Protocol):
    """What a call needs of the connection that it came by."""

    loop: asyncio.AbstractEventLoop
    """Whose clock deadlines are told by."""
    pace: Callable[[], Pace | None]
    """The connection's pace; None where there is no connection."""
    inputs: InputShares
    """What the inputs of its calls share."""

    def send(self, frame: Frame) -> None:
        """Send a frame to the server, or drop it where there is no connection."""


class HostedStream:
    """The chunks and the progress of one call.

    Args:
        call: The id of its dispatch.
        header: What came with the dispatch.
        context: Is told what is wrong with a chunk.
        end: Where all of it goes.
    """

    __slots__ = (
        "_call",
        "_context",
        "_end",
        "_is_listened_to",
        "_is_stopped",
        "_is_whole",
        "_lock",
        "_news",
        "_news_are_due",
        "_pausing",
        "_turn_bytes",
        "_turn_chunks",
        "_waiter",
        "_window",
        "input",
    )

    def __init__(
        self, call: int, header: dict[str, Any], context: ToolContext, end: WireEnd
    ) -> None:
        self._call = RequestId(call)
        self._context = context
        self._end = end
        self._is_whole = header.get("whole") is True
        self._is_listened_to = header.get("progress") is True
        self._window = SendWindow(
            header.get("credit_chunks", _FIRST_CHUNKS), header.get("credit_bytes", _FIRST_BYTES)
        )
        self.input: HostedInput | None = None
        """What the caller sends while the call runs."""
        if header.get("input") is True:
            self.input = HostedInput(call, context, end.send, end.inputs)
        self._lock = asyncio.Lock()
        self._waiter: asyncio.Future[Any] | None = None
        """Where a chunk waits, for credit or for the connection."""
        self._is_stopped = False
        self._turn_chunks = self._turn_bytes = 0
        self._news: bytes | None = None
        """The latest progress, packed, until it is sent."""
        self._news_are_due = False
        self._pausing: asyncio.Task[None] | None = None
        """Waits for the connection, to send a progress then."""

    # Chunks

    async def put(self, chunk: Chunk) -> None:
        """Send a chunk, a large file in pieces, once the caller has room for it.

        Raises:
            TooLarge: It does not fit one chunk, and is no file.
            InvalidResult: It holds what cannot be sent.
            CancelledError: The call has ended meanwhile.
        """
        async with self._lock:
            if isinstance(chunk, FileChunk):
                await self._put_file(chunk)
            else:
                await self._send(self._checked(self._packed(chunk.to_wire())))

    async def _put_file(self, file: FileChunk) -> None:
        head = len(self._packed([3, file.name, file.mime_type, b"", True])) + 8
        async with aclosing(file_bodies(file, MAX_CHUNK_BYTES - head)) as bodies:
            async for body in bodies:
                await self._send(self._checked(body))

    async def send_all_but_last(self, file: FileChunk) -> bytes:
        """Send all pieces of a file but the last, which is returned: the body of the result.

        Raises what `put` raises, and `TooLarge` where the caller reads no pieces and the file does
        not fit one frame.
        """
        head = len(self._packed([3, file.name, file.mime_type, b"", True])) + 8
        whole_bytes = MAX_RESULT_BYTES - head if self._is_whole else WHOLE_FILE_BYTES
        last: bytes | None = None
        async with self._lock, aclosing(file_bodies(file, whole_bytes)) as bodies:
            async for body in bodies:
                if last is not None:
                    if self._is_whole:
                        words = "the file does not fit one frame, and its caller reads no pieces"
                        raise self._context.fail(TooLarge(words, executed=self._context.executed))
                    await self._send(self._checked(last))
                last = body
        assert last is not None, "every file has a last body"
        if len(last) > MAX_RESULT_BYTES:
            raise too_large(self._context, last)
        return last

    def _packed(self, fields: list[Any]) -> bytes:
        try:
            return pack_body(fields)
        except BadBody as error:
            unsendable = InvalidResult(error.reason, executed=self._context.executed)
            raise self._context.fail(unsendable) from error

    def _checked(self, body: bytes) -> bytes:
        if len(body) <= MAX_CHUNK_BYTES:
            return body
        words = f"a chunk has {len(body)} bytes, more than the {MAX_CHUNK_BYTES} of a stream's"
        raise self._context.fail(TooLarge(words, executed=self._context.executed))

    async def _send(self, body: bytes) -> None:
        if self._turn_chunks >= _TURN_CHUNKS or self._turn_bytes >= _TURN_BYTES:
            self._turn_chunks = self._turn_bytes = 0
            await asyncio.sleep(0)
        while not self._is_stopped and (waiting := self._obstacle()) is not None:
            self._waiter = waiting
            try:
                await waiting
            finally:
                self._waiter = None
                waiting.cancel()
        if self._is_stopped:
            raise asyncio.CancelledError
        self._turn_chunks += 1
        self._turn_bytes += len(body)
        if (pace := self._end.pace()) is not None:
            pace.gather()
        self._end.send(StreamChunk(self._call, self._window.take(len(body)), body))

    def _obstacle(self) -> asyncio.Future[Any] | None:
        """Return what has to be waited for before a chunk can go, if there is something."""
        if not self._window.is_open:
            return self._end.loop.create_future()
        pace = self._end.pace()
        if pace is None or not pace.is_behind or not pace.is_open:
            return None
        return asyncio.ensure_future(pace.caught_up())

    def take(self, frame: Credit | Input) -> None:
        """Take the caller's credit, or a part of its input where there is one."""
        if isinstance(frame, Credit):
            if not frame.of_input:
                self._give(frame)
        elif self.input is not None:
            self.input.arrive(frame)

    def _give(self, credit: Credit) -> None:
        self._window.give(credit.chunks, credit.bytes)
        waiter = self._waiter
        if self._window.is_open and waiter is not None and not isinstance(waiter, asyncio.Task):
            if not waiter.done():
                waiter.set_result(None)

    def end(self) -> None:
        """Send the latest progress, if that can be done at once, and nothing more."""
        if self._pausing is None:
            self.flush()
        self.stop()

    def stop(self) -> None:
        """Send nothing more; who waits, to send or to read, is cancelled."""
        self._is_stopped = True
        self._news = None
        if self.input is not None:
            self.input.stop()
        if self._waiter is not None:
            self._waiter.cancel()
        if self._pausing is not None:
            self._pausing.cancel()

    # Progress

    def emit(self, value: Any) -> None:
        """Send a value as the call's progress, on any thread; see `ToolContext.emit`."""
        try:
            body = pack_body(progress_chunk(value).to_wire())
        except BadBody as error:
            raise InvalidResult(error.reason) from error
        if not self._is_listened_to or self._is_stopped or len(body) > MAX_PROGRESS_BYTES:
            return
        self._news = body
        if not self._news_are_due:
            self._news_are_due = True
            try:
                self._end.loop.call_soon_threadsafe(self.flush)
            except RuntimeError:  # the loop has ended, and with it whoever listened
                return

    def flush(self) -> None:
        """Send the latest progress, or let it wait where the connection is behind."""
        # In this order: what another thread says from here on is due anew.
        self._news_are_due = False
        pace = self._end.pace()
        if self._news is None or self._pausing is not None:
            return
        if pace is not None and pace.is_behind and pace.is_open:
            self._pausing = self._end.loop.create_task(pace.caught_up())
            self._pausing.add_done_callback(self._resume)
            return
        body, self._news = self._news, None
        self._end.send(Progress(self._call, body))

    def _resume(self, _: object) -> None:
        self._pausing = None
        self.flush()
