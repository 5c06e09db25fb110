"""What comes to a host as the input of one call, from its arrival until the tool reads it.

No credit is given before the tool reads at all. What a body means is read in `chunk_reader`, what a
value has to be is decided in `input_stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus.context import ToolContext
from toolbus.errors import InvalidArguments, RoomException, StreamBroken
from toolbus.inflow import Arrival, Inflow, Shares
from toolbus.wire import Credit, Frame, Input, RequestId

__all__ = ["HostedInput", "unreadable_input"]

# A tool's turn: so much that lies here it may go through before other calls have theirs.
_TURN_CHUNKS, _TURN_BYTES = 32, 64 * 1024


class HostedInput:
    """The input of one call, for one reader.

    Args:
        call: The id of its dispatch.
        context: Learns what the call fails with where its input does.
        send: Sends a frame to the server.
        shares: Of its connection.
    """

    __slots__ = (
        "_call",
        "_context",
        "_end",
        "_inflow",
        "_is_asked_for",
        "_send",
        "_turn_bytes",
        "_turn_chunks",
    )

    def __init__(
        self, call: int, context: ToolContext, send: Callable[[Frame], None], shares: Shares
    ) -> None:
        self._call = RequestId(call)
        self._context = context
        self._send = send
        self._inflow = Inflow(shares, self._give_credit)
        self._is_asked_for = False
        self._turn_chunks = self._turn_bytes = 0
        self._end: StreamBroken | bool | None = None
        """How it ended: well, where True; broken; or stopped, where False."""

    # What the server sends

    def arrive(self, frame: Input) -> None:
        """Take a frame of the input, in whatever state this is. Never raises."""
        if self._end is False or isinstance(self._end, StreamBroken):
            return
        try:
            self._keep(frame)
        except StreamBroken as broken:
            self._end = broken
        else:
            if frame.last:
                self._end = True
        if self._end is not None:
            self._inflow.end()

    def _keep(self, frame: Input) -> None:
        if self._end is not None:
            raise StreamBroken("more of the input came behind its last chunk")
        if frame.body is not None:
            self._inflow.arrive(frame.number, frame.body)
        elif not frame.last:
            raise StreamBroken("a chunk of the input is missing")
        elif frame.number != self._inflow.number + 1:
            words = f"the input ended with {frame.number} behind chunk {self._inflow.number}"
            raise StreamBroken(words)

    # What the tool does

    async def next(self) -> Arrival | None:
        """Wait for the next chunk; None behind the last one. Cancelling it loses nothing.

        Raises:
            StreamBroken: A part is missing or came unasked; behind what came before it.
            CancelledError: The call has ended.
        """
        if self._turn_chunks >= _TURN_CHUNKS or self._turn_bytes >= _TURN_BYTES:
            self._turn_chunks = self._turn_bytes = 0
            await asyncio.sleep(0)
        if not self._is_asked_for and self._end is None:
            self._is_asked_for = True
            self._give_credit(*self._inflow.widen())
        body = await self._inflow.next()
        if self._end is False:
            raise asyncio.CancelledError
        if body is not None:
            self._turn_chunks += 1
            self._turn_bytes += len(body)
            return Arrival(body, last=False)
        if isinstance(self._end, StreamBroken):
            raise self.wrong(self._end)
        return None

    def wrong(self, error: RoomException) -> RoomException:
        """Let the call fail with an error that the tool lets pass; it has ended then."""
        if self._context.entered:
            error.executed = self._context.executed
            return self._context.fail(error)
        # Who reads before the tool's function is entered may act on what it read.
        is_first = self._inflow.used_chunks == (0 if isinstance(error, StreamBroken) else 1)
        error.executed = "no" if is_first else self._context.executed
        return self._context.refuse(error)

    def stop(self) -> None:
        """Let go of what waits, and of who waits: the call has ended."""
        self._end = False
        self._inflow.drop()

    def _give_credit(self, chunks: int, total_bytes: int) -> None:
        self._send(Credit(self._call, True, chunks, total_bytes))


def unreadable_input(_arrival: Arrival, path: str, reason: str) -> InvalidArguments:
    """Say where an input is no chunk; for a `ChunkReader`."""
    return InvalidArguments(reason, details={"path": f"/input{path}", "message": reason})
