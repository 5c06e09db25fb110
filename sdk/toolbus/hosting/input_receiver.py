"""Receives the input of one call on its host and buffers it until the tool reads it.

No credit is sent before the tool reads. `ChunkReader` decodes the bodies and `InputStream` checks
the values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus.chunks.receive_credit import BufferBudget, ReceiveBuffer, ReceivedChunk
from toolbus.errors import InvalidArguments, RoomException, StreamBroken
from toolbus.tools.tool_run import ToolRun
from toolbus.wire import Credit, Frame, Input, RequestId

__all__ = ["InputReceiver", "unreadable_input"]

# After so much buffered input, one tool yields to others on the event loop.
_BURST_CHUNKS, _BURST_BYTES = 32, 64 * 1024


class InputReceiver:
    """The input of one call, for one reader.

    Args:
        call: The id of its dispatch.
        run: Records the error with which the input ends the call.
        send: Sends a frame to the server.
        budget: The buffer memory of its connection.
    """

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
