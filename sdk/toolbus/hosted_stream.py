"""What one call of a host sends before its end, as far and as fast as it may: chunks, progress.

A chunk waits for the caller's credit and for its connection; a progress waits for nobody. Made for
those calls alone that need it; how their input comes is in `hosted_input`.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from toolbus.chunk_bodies import file_bodies
from toolbus.chunks import Chunk, FileChunk
from toolbus.context import ToolContext, progress_chunk
from toolbus.errors import InvalidResult, TooLarge
from toolbus.hosted_input import HostedInput
from toolbus.inflow import Shares
from toolbus.outflow import Outflow, OutgoingLine, catching_up
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
from toolbus.wire.windows import FIRST_BYTES, FIRST_CHUNKS, MAX_CHUNK_BYTES

__all__ = ["MAX_PROGRESS_BYTES", "HostedStream", "WireEnd"]

MAX_PROGRESS_BYTES = 16 * 1024
"""The body of a progress (PROTOCOL.md, PROGRESS-1)."""
# A result that is a file with more bytes goes in pieces.
_WHOLE_FILE_BYTES = 256 * 1024


class WireEnd(Protocol):
    """What a call needs of the connection that it came by."""

    loop: asyncio.AbstractEventLoop
    """Whose clock deadlines are told by."""
    line: OutgoingLine | None
    """The connection itself; None where there is none."""
    inputs: Shares
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
        "_is_whole",
        "_lock",
        "_news",
        "_news_are_due",
        "_outflow",
        "_pausing",
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
        self._outflow = Outflow(
            end.line,
            partial(StreamChunk, self._call),
            header.get("credit_chunks", FIRST_CHUNKS),
            header.get("credit_bytes", FIRST_BYTES),
        )
        self.input: HostedInput | None = None
        """What the caller sends while the call runs."""
        if header.get("input") is True:
            self.input = HostedInput(call, context, end.send, end.inputs)
        self._lock = asyncio.Lock()
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
            if not isinstance(chunk, FileChunk):
                await self._send(self._packed(chunk.to_wire()))
                return
            whole_bytes = MAX_CHUNK_BYTES - self._head_bytes(chunk)
            async with aclosing(file_bodies(chunk, whole_bytes)) as bodies:
                async for body, _ in bodies:
                    await self._send(body)

    async def send_all_but_last(self, file: FileChunk) -> bytes:
        """Send all pieces of a file but the last, which is returned: the body of the result.

        Raises what `put` raises, and `TooLarge` where the caller reads no pieces and the file does
        not fit one frame.
        """
        head_bytes = self._head_bytes(file)
        whole_bytes = MAX_RESULT_BYTES - head_bytes if self._is_whole else _WHOLE_FILE_BYTES
        body = b""
        async with self._lock, aclosing(file_bodies(file, whole_bytes)) as bodies:
            async for body, is_last in bodies:
                if is_last:
                    break
                if self._is_whole:
                    words = "the file does not fit one frame, and its caller reads no pieces"
                    raise self._context.fail(TooLarge(words, executed=self._context.executed))
                await self._send(body)
        if len(body) > MAX_RESULT_BYTES:
            raise too_large(self._context, body)
        return body

    def _head_bytes(self, file: FileChunk) -> int:
        """Tell by how much the body of a file may be longer than the file."""
        return len(self._packed([3, file.name, file.mime_type, b"", True])) + 8

    def _packed(self, fields: list[Any]) -> bytes:
        try:
            return pack_body(fields)
        except BadBody as error:
            unsendable = InvalidResult(error.reason, executed=self._context.executed)
            raise self._context.fail(unsendable) from error

    async def _send(self, body: bytes) -> None:
        if len(body) > MAX_CHUNK_BYTES:
            words = f"a chunk has {len(body)} bytes, more than the {MAX_CHUNK_BYTES} of a stream's"
            raise self._context.fail(TooLarge(words, executed=self._context.executed))
        await self._outflow.room()
        self._outflow.send(body)

    def take(self, frame: Credit | Input) -> None:
        """Take the caller's credit, or a part of its input where there is one."""
        if isinstance(frame, Credit):
            if not frame.of_input:
                self._outflow.give(frame.chunks, frame.bytes)
        elif self.input is not None:
            self.input.arrive(frame)

    def end(self) -> None:
        """Send the latest progress, if that can be done at once, and nothing more."""
        if self._pausing is None:
            self.flush()
        self.stop()

    def stop(self) -> None:
        """Send nothing more; who waits, to send or to read, is cancelled."""
        self._outflow.stop()
        self._news = None
        if self.input is not None:
            self.input.stop()
        if self._pausing is not None:
            self._pausing.cancel()

    # Progress

    def emit(self, value: Any) -> None:
        """Send a value as the call's progress, on any thread; see `ToolContext.emit`."""
        try:
            body = pack_body(progress_chunk(value).to_wire())
        except BadBody as error:
            raise InvalidResult(error.reason) from error
        if not self._is_listened_to or self._outflow.is_stopped or len(body) > MAX_PROGRESS_BYTES:
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
        if self._news is None or self._pausing is not None:
            return
        if (waiting := catching_up(self._end.line)) is not None:
            self._pausing = self._end.loop.create_task(waiting)
            self._pausing.add_done_callback(self._resume)
            return
        body, self._news = self._news, None
        self._end.send(Progress(self._call, body))

    def _resume(self, _: object) -> None:
        self._pausing = None
        self.flush()
