"""The chunks and the progress of one call from its host, and the input that it receives.

A chunk waits for the caller's credit and for the connection; progress never waits, and no credit of
an input is given before the tool reads. Only calls that need it have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from toolbus.chunks.chunk_sender import ChunkSender, OutgoingConnection, drain_if_behind
from toolbus.chunks.chunk_sequences import file_bodies
from toolbus.chunks.chunk_types import Chunk, FileChunk
from toolbus.chunks.receive_credit import BufferBudget, ReceiveBuffer, ReceivedChunk
from toolbus.chunks.result_parts import part_bodies
from toolbus.errors import InvalidArguments, InvalidResult, RoomException, StreamBroken, TooLarge
from toolbus.tools.tool_run import ToolRun, progress_chunk
from toolbus.tools.toolkit import MAX_RESULT_BYTES, too_large
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
from toolbus.wire.flow_control import FIRST_BYTES, FIRST_CHUNKS, MAX_CHUNK_BYTES, MAX_PROGRESS_BYTES

__all__ = ["CallHost", "InputReceiver", "OutputStream", "unreadable_input"]

# After so much buffered input, one tool yields to others on the event loop.
_BURST_CHUNKS, _BURST_BYTES = 32, 64 * 1024


# A file result with more bytes is sent in pieces.
_WHOLE_FILE_BYTES = 256 * 1024


class InputReceiver:
    """The input of one call, for one reader."""

    __slots__ = (
        "_buffer",
        "_burst_bytes",
        "_burst_chunks",
        "_call",
        "_end",
        "_has_requested",
        "_run",
        "_send",
    )

    def __init__(
        self, call: int, run: ToolRun, send: Callable[[Frame], None], budget: BufferBudget
    ) -> None:
        self._call = RequestId(call)
        self._run = run
        self._send = send
        self._buffer = ReceiveBuffer(budget, self._give_credit)
        self._has_requested = False
        self._burst_chunks = self._burst_bytes = 0
        self._end: StreamBroken | bool | None = None
        """The end: True for complete, False for stopped, or an error."""

    # Frames from the server

    def receive(self, frame: Input) -> None:
        """Handle a frame of the input, in any state. Never raises."""
        if self._end is False or isinstance(self._end, StreamBroken):
            return
        try:
            self._append(frame)
        except StreamBroken as broken:
            self._end = broken
        else:
            if frame.last:
                self._end = True
        if self._end is not None:
            self._buffer.end()

    def _append(self, frame: Input) -> None:
        if self._end is not None:
            raise StreamBroken("a chunk of the input arrived after the last one")
        if frame.body is not None:
            self._buffer.add(frame.number, frame.body)
        elif not frame.last:
            raise StreamBroken("a chunk of the input is missing")
        elif frame.number != self._buffer.number + 1:
            message = f"the input ended with {frame.number} after chunk {self._buffer.number}"
            raise StreamBroken(message)

    # For the tool

    async def next(self) -> ReceivedChunk | None:
        """Wait for the next chunk; None after the last one. Cancelling loses nothing.

        Raises:
            StreamBroken: A part is missing or exceeded the credit; raised after the earlier chunks.
            CancelledError: The call has ended.
        """
        if self._burst_chunks >= _BURST_CHUNKS or self._burst_bytes >= _BURST_BYTES:
            self._burst_chunks = self._burst_bytes = 0
            await asyncio.sleep(0)
        if not self._has_requested and self._end is None:
            self._has_requested = True
            self._give_credit(*self._buffer.grant_credit())
        body = await self._buffer.next()
        if self._end is False:
            raise asyncio.CancelledError
        if body is not None:
            self._burst_chunks += 1
            self._burst_bytes += len(body)
            return ReceivedChunk(body, last=False)
        if isinstance(self._end, StreamBroken):
            raise self.fail(self._end)
        return None

    def fail(self, error: RoomException) -> RoomException:
        """Let the call fail with an error, unless the tool handles it; the input has ended then."""
        run = self._run
        # Code that reads before the tool's function is entered may act on what it read.
        is_first = self._buffer.used_chunks == (0 if isinstance(error, StreamBroken) else 1)
        error.executed = "no" if is_first and not run.entered else run.executed
        return run.record(error)

    def stop(self) -> None:
        """Drop the buffer and cancel a waiting reader: the call has ended."""
        self._end = False
        self._buffer.discard()

    def _give_credit(self, chunks: int, total_bytes: int) -> None:
        self._send(Credit(self._call, True, chunks, total_bytes))


def unreadable_input(_received: ReceivedChunk, path: str, reason: str) -> InvalidArguments:
    """Make the error for an invalid chunk of an input; for a `ChunkReader`."""
    return InvalidArguments(reason, details={"path": f"/input{path}", "message": reason})


class CallHost(Protocol):
    """What a call needs of its runner to send frames."""

    loop: asyncio.AbstractEventLoop
    """The loop whose clock the deadlines use."""
    connection: OutgoingConnection | None
    """The connection; None if there is none."""
    input_budget: BufferBudget
    """Buffer memory for the inputs of its calls."""

    def send(self, frame: Frame) -> None:
        """Send a frame to the server, or drop it if there is no connection."""


class OutputStream:
    """The chunks and the progress of one call."""

    __slots__ = (
        "_call",
        "_drain_task",
        "_flush_scheduled",
        "_host",
        "_lock",
        "_needs_whole_files",
        "_progress",
        "_run",
        "_sender",
        "_wants_progress",
        "input",
    )

    def __init__(self, call: int, header: dict[str, Any], run: ToolRun, host: CallHost) -> None:
        self._call = RequestId(call)
        self._run = run
        self._host = host
        self._needs_whole_files = header.get("whole") is True
        self._wants_progress = header.get("progress") is True
        self._sender = ChunkSender(
            host.connection,
            partial(StreamChunk, self._call),
            header.get("credit_chunks", FIRST_CHUNKS),
            header.get("credit_bytes", FIRST_BYTES),
        )
        self.input: InputReceiver | None = None
        """The call's input; None if it has none."""
        if header.get("input") is True:
            self.input = InputReceiver(call, run, host.send, host.input_budget)
        self._lock = asyncio.Lock()
        self._progress: bytes | None = None
        """The latest progress, packed, until it is sent."""
        self._flush_scheduled = False
        self._drain_task: asyncio.Task[None] | None = None
        """Waits until the connection is drained, to send progress after that."""

    # Chunks

    async def put(self, chunk: Chunk) -> None:
        """Send a chunk, a large file in pieces, when the caller has credit.

        Raises:
            TooLarge: It does not fit one chunk and is not a file.
            InvalidResult: It contains a value that cannot be sent.
            CancelledError: The call has ended.
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
        """Send all pieces of a file but the last one; return that, the body of the result.

        Raises what `put` raises, and `TooLarge` if the caller does not accept pieces and the file
        does not fit one frame.
        """
        head_bytes = self._head_bytes(file)
        whole_bytes = (
            MAX_RESULT_BYTES - head_bytes if self._needs_whole_files else _WHOLE_FILE_BYTES
        )
        body = b""
        async with self._lock, aclosing(file_bodies(file, whole_bytes)) as bodies:
            async for body, is_last in bodies:
                if is_last:
                    break
                if self._needs_whole_files:
                    message = "the file does not fit one frame, and its caller accepts no pieces"
                    raise self._run.fail(TooLarge(message))
                await self._send(body)
        if len(body) > MAX_RESULT_BYTES:
            raise too_large(self._run, body)
        return body

    async def send_all_but_last_part(self, body: bytes) -> bytes:
        """Send all parts of a packed result but the last one; return that, the body of the result.

        The last part waits for credit too, although the protocol does not ask for it: so the
        caller decides how much of its results is on the way. Raises CancelledError if the call has
        ended.
        """
        last: bytes | None = None
        async with self._lock:
            for part in part_bodies(body):
                if last is not None:
                    self._sender.send(last)
                await self._sender.ready()
                last = part
        assert last is not None, "the first part is always there"
        return last

    def _head_bytes(self, file: FileChunk) -> int:
        """Return the greatest difference in size between a file's body and the file."""
        return len(self._packed([3, file.name, file.mime_type, b"", True])) + 8

    def _packed(self, fields: list[Any]) -> bytes:
        try:
            return pack_body(fields)
        except BadBody as error:
            raise self._run.fail(InvalidResult(error.reason)) from error

    async def _send(self, body: bytes) -> None:
        if len(body) > MAX_CHUNK_BYTES:
            message = f"a chunk has {len(body)} bytes, a stream allows at most {MAX_CHUNK_BYTES}"
            raise self._run.fail(TooLarge(message))
        await self._sender.ready()
        self._sender.send(body)

    def receive(self, frame: Credit | Input) -> None:
        """Handle the caller's credit or a frame of its input."""
        if isinstance(frame, Credit):
            if not frame.of_input:
                self._sender.add_credit(frame.chunks, frame.bytes)
        elif self.input is not None:
            self.input.receive(frame)

    def end(self) -> None:
        """Send the latest progress if that is possible at once, then stop."""
        if self._drain_task is None:
            self.flush()
        self.stop()

    def stop(self) -> None:
        """Send nothing more; cancel tasks that wait to send or to read."""
        self._sender.stop()
        self._progress = None
        if self.input is not None:
            self.input.stop()
        if self._drain_task is not None:
            self._drain_task.cancel()

    # Progress

    def emit(self, value: Any) -> None:
        """Send a value as the call's progress, from any thread; see `ToolContext.emit`."""
        try:
            body = pack_body(progress_chunk(value).to_wire())
        except BadBody as error:
            raise InvalidResult(error.reason) from error
        if not self._wants_progress or self._sender.is_stopped or len(body) > MAX_PROGRESS_BYTES:
            return
        self._progress = body
        if not self._flush_scheduled:
            self._flush_scheduled = True
            try:
                self._host.loop.call_soon_threadsafe(self.flush)
            except RuntimeError:  # the loop has ended
                return

    def flush(self) -> None:
        """Send the latest progress, or wait until the connection is drained."""
        # In this order: a value from another thread after this schedules a new flush.
        self._flush_scheduled = False
        if self._progress is None or self._drain_task is not None:
            return
        if (wait := drain_if_behind(self._host.connection)) is not None:
            self._drain_task = self._host.loop.create_task(wait)
            self._drain_task.add_done_callback(self._resume)
            return
        body, self._progress = self._progress, None
        self._host.send(Progress(self._call, body))

    def _resume(self, _: object) -> None:
        self._drain_task = None
        self.flush()
