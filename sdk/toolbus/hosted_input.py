"""What comes to a host as the input of one call, from its arrival until the tool reads it.

Credit is given as the tool reads, never on arrival, and none before it reads at all: what waits
here has a bound, for each call and for all of a connection together. What a value has to be is
decided in `input_stream`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from toolbus.chunk_bodies import ChunkReader
from toolbus.chunks import Chunk
from toolbus.context import ToolContext
from toolbus.errors import RoomException, StreamBroken
from toolbus.reach import Reach
from toolbus.wire import Credit, Frame, Input, RequestId
from toolbus.wire.windows import ReceiveWindow

__all__ = ["ALL_INPUTS_BYTES", "INPUT_BYTES", "INPUT_CHUNKS", "HostedInput", "InputShares"]

INPUT_CHUNKS = 256
INPUT_BYTES = 1024 * 1024
"""So much of one input may wait for its tool."""
ALL_INPUTS_BYTES = 16 * 1024 * 1024
"""So much of all inputs of one connection; the more there are, the less each may have."""
_LEAST_BYTES = 64 * 1024
# A tool's turn: so much that lies here it may go through before other calls have theirs.
_TURN_CHUNKS, _TURN_BYTES = 32, 64 * 1024


class InputShares:
    """The memory that the inputs of one connection have together."""

    __slots__ = ("_given", "_open")

    def __init__(self) -> None:
        self._open = 0
        self._given = 0

    def open(self) -> None:
        """Count one input more."""
        self._open += 1

    def close(self, given: int) -> None:
        """Count one less, and the bytes that it was given and never used up."""
        self._open -= 1
        self._given -= given

    def renew(self, left: int) -> int:
        """Say how much one input may have that has so many bytes of its share left."""
        free = ALL_INPUTS_BYTES - self._given + left
        share = min(INPUT_BYTES, ALL_INPUTS_BYTES // max(self._open, 1), free)
        return max(share, _LEAST_BYTES)

    def note(self, change: int) -> None:
        """Count bytes that were given, or used up where there are fewer."""
        self._given += change


class HostedInput:
    """The input of one call; a source of chunks for an `InputStream`.

    Args:
        call: The id of its dispatch.
        context: Learns what the call fails with where its input does.
        send: Sends a frame to the server.
        shares: Of its connection.
    """

    __slots__ = (
        "_bodies",
        "_call",
        "_context",
        "_counted",
        "_end",
        "_reach",
        "_reader",
        "_send",
        "_shares",
        "_turn_bytes",
        "_turn_chunks",
        "_used_bytes",
        "_used_chunks",
        "_waiter",
        "_window",
        "next",
    )

    def __init__(
        self, call: int, context: ToolContext, send: Callable[[Frame], None], shares: InputShares
    ) -> None:
        self._call = RequestId(call)
        self._context = context
        self._send = send
        self._shares = shares
        self._window = ReceiveWindow(0, 0)
        self._reach = Reach()
        self._bodies: deque[bytes] = deque()
        self._used_chunks = self._used_bytes = 0
        self._turn_chunks = self._turn_bytes = 0
        self._end: StreamBroken | bool | None = None
        """How it ended: well, where True; broken; or stopped, where False."""
        self._counted: int | None = None
        """Bytes of the shares that are this one's; None where it has none yet, or any more."""
        self._reader = ChunkReader(self._take, self.wrong)
        self.next: Callable[[], Coroutine[Any, Any, Chunk | None]] = self._reader.next
        """Waits for the next chunk, for the tool; None behind the last.

        Raises `InvalidArguments` for what is no chunk, `StreamBroken` where a part is missing or
        came unasked, and `RuntimeError` where it is being read already.
        """
        self._waiter: asyncio.Future[None] | None = None

    # What the server sends

    def arrive(self, frame: Input) -> None:
        """Take a frame of the input, in whatever state this is. Never raises."""
        if self._end is False or isinstance(self._end, StreamBroken):
            return
        try:
            self._count(frame)
        except StreamBroken as broken:
            self._end = broken
        else:
            if frame.body is not None:
                self._reach.heard()
                self._bodies.append(frame.body)
            if frame.last:
                self._end = True
        self._wake()

    def _count(self, frame: Input) -> None:
        if self._end is not None:
            raise StreamBroken("more of the input came behind its last chunk")
        if frame.body is not None:
            self._window.arrive(frame.number, len(frame.body))
        elif not frame.last:
            raise StreamBroken("a chunk of the input is missing")
        elif frame.number != self._window.number + 1:
            words = f"the input ended with {frame.number} behind chunk {self._window.number}"
            raise StreamBroken(words)

    # What the tool does

    def wrong(self, error: RoomException) -> RoomException:
        """Let the call fail with an error that the tool lets pass; it has ended then."""
        if self._context.entered:
            error.executed = self._context.executed
            return self._context.fail(error)
        # Who reads before the tool's function is entered may act on what it read.
        is_first = self._used_chunks == (0 if isinstance(error, StreamBroken) else 1)
        error.executed = "no" if is_first else self._context.executed
        return self._context.refuse(error)

    async def _take(self) -> bytes | None:
        if self._waiter is not None:
            raise RuntimeError("another task is reading this input")
        if self._turn_chunks >= _TURN_CHUNKS or self._turn_bytes >= _TURN_BYTES:
            self._turn_chunks = self._turn_bytes = 0
            await asyncio.sleep(0)
        if self._counted is None and self._end is None:
            self._give_credit()
        while not self._bodies and self._end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._end is False:
            raise asyncio.CancelledError
        if self._bodies:
            return self._use_up()
        if isinstance(self._end, StreamBroken):
            raise self.wrong(self._end)
        return None

    def _use_up(self) -> bytes:
        body = self._bodies.popleft()
        self._used_chunks += 1
        self._used_bytes += len(body)
        self._turn_chunks += 1
        self._turn_bytes += len(body)
        self._give_credit()
        return body

    @property
    def _left(self) -> int:
        """Bytes that were given and not used up; below 0 where the last body went beyond them."""
        return self._window.bytes - self._used_bytes

    def _give_credit(self) -> None:
        """Let more come once half of what was given is used up."""
        left = max(self._left, 0)
        if self._counted is None:
            self._counted = 0
            self._shares.open()
        share = min(self._shares.renew(self._counted), self._reach.bytes)
        used = self._used_chunks + INPUT_CHUNKS - self._window.chunks
        if self._end is None and (left * 2 <= share or used * 2 >= INPUT_CHUNKS):
            if self._window.chunks and not self._window.is_open:
                self._reach.let_go()
            self._window.chunks += used
            self._window.bytes = max(self._window.bytes, self._used_bytes + share)
            left = max(self._left, 0)
            self._send(Credit(self._call, True, self._window.chunks, self._window.bytes))
        self._shares.note(left - self._counted)
        self._counted = left

    def stop(self) -> None:
        """Let go of what waits, and of who waits: the call has ended."""
        self._end = False
        self._bodies.clear()
        if self._counted is not None:
            self._shares.close(self._counted)
            self._counted = None
        if self._waiter is not None:
            self._waiter.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
