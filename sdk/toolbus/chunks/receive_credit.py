"""Buffers the received chunks of one stream until they are read, at either end of a call.

Credit is granted as the reader consumes chunks, never on arrival, so the buffer is bounded:
`WINDOW_CHUNKS` and `WINDOW_BYTES` per stream, `BUDGET_BYTES` for all streams of one connection. The
owner of a stream interprets its bodies and decides how it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from toolbus.wire.flow_control import WINDOW_BYTES, WINDOW_CHUNKS, ReceiveWindow

__all__ = [
    "BUDGET_BYTES",
    "MIN_SHARE_BYTES",
    "BufferBudget",
    "ReceiveBuffer",
    "ReceivedChunk",
]

# 16 streams at full speed. Without a limit for all together, each of thousands of unread streams
# would have a window of 1 MiB.
BUDGET_BYTES = 16 * 1024 * 1024
"""Buffer limit of all streams of one connection; more streams have smaller shares each."""
# Above the budget too: a stream without any credit would wait for others to be read, and a program
# that reads them in another order would never go on. Twice what a call that is not a stream begins
# with.
MIN_SHARE_BYTES = 64 * 1024
"""The least share of each stream, even if the budget is used up."""
# A reader that takes one chunk every 10 s uses half a window after 20 minutes, and the server ends
# the call when its caller gives no credit for 30 s. 5 s leave time for a slow way there.
_CREDIT_INTERVAL_S = 5.0
"""Seconds after which a sender without credit gets it at the next read (STREAM-3)."""


class ReceivedChunk(NamedTuple):
    """A packed chunk that was received."""

    body: bytes
    last: bool
    """Whether it is the call's result, after which nothing arrives."""


class BufferBudget:
    """The buffer memory that the streams of one connection share."""

    __slots__ = ("_allocated", "_count")

    def __init__(self) -> None:
        self._count = 0
        self._allocated = 0

    @property
    def free_bytes(self) -> int:
        """Unallocated bytes; below 0 if the minimum shares exceed the budget."""
        return BUDGET_BYTES - self._allocated

    def resize(self, current: int, in_use: int, wanted: int) -> int:
        """Set the share of one stream again and return it.

        Args:
            current: Its share until now; 0 if it had none.
            in_use: Bytes of the share that are in use; the new share is not smaller.
            wanted: Bytes that the stream can use.
        """
        if not current:
            self._count += 1
        # An equal part for each stream, but no more than is free: earlier streams keep what they
        # were granted, as credit cannot be withdrawn, until they shrink at their own next grant.
        share = min(wanted, BUDGET_BYTES // self._count, self.free_bytes + current)
        # What is in use has been granted before: below it, `_allocated` would say too little.
        share = max(share, MIN_SHARE_BYTES, in_use)
        self._allocated += share - current
        return share

    def release(self, current: int) -> None:
        """Take back the share of a stream that buffers nothing any more; 0 if it had none."""
        if current:
            self._count -= 1
            self._allocated -= current


class ReceiveBuffer:
    """Holds the received bodies of one stream until one task reads them.

    So many chunks and bytes may arrive before credit is sent, which is given as totals.
    """

    __slots__ = (
        "_bodies",
        "_budget",
        "_closed_at",
        "_has_ended",
        "_send_credit",
        "_share",
        "_used_bytes",
        "_waiter",
        "_window",
        "used_chunks",
    )

    def __init__(
        self,
        budget: BufferBudget,
        send_credit: Callable[[int, int], None],
        chunks: int = 0,
        first_bytes: int = 0,
    ) -> None:
        self._budget = budget
        self._send_credit = send_credit
        self._window = ReceiveWindow(chunks, first_bytes)
        self._share = 0
        """Bytes that may wait or arrive; 0 before credit is granted and after `discard`."""
        self._bodies: deque[bytes] = deque()
        self.used_chunks: int = 0
        """How many chunks were read."""
        self._used_bytes = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._closed_at = 0.0
        """When the sender had used all its credit, by the loop's clock."""

    @property
    def number(self) -> int:
        """The number of the last body received."""
        return self._window.number

    @property
    def first(self) -> bytes | None:
        """The next body to be read, which stays in the buffer; None if it is empty."""
        return next(iter(self._bodies), None)

    def grant_credit(self) -> tuple[int, int]:
        """Extend the window as far as the budget allows; return the credit, which must be sent."""
        # In use is all that was granted and not read, also what has not arrived: it may at any
        # moment.
        window = self._window
        in_use = window.bytes - self._used_bytes
        self._share = self._budget.resize(self._share, in_use, WINDOW_BYTES)
        window.chunks = self.used_chunks + WINDOW_CHUNKS
        window.bytes = self._used_bytes + self._share
        return window.chunks, window.bytes

    def add(self, number: int, body: bytes) -> None:
        """Store a body for the reader. Raises `StreamBroken` if it is not a valid next one."""
        self._window.arrive(number, len(body))
        self._bodies.append(body)
        # Noted on arrival and looked at when the next body is read: no timer for each stream.
        if not self._window.is_open:
            self._closed_at = asyncio.get_running_loop().time()
        self._wake()

    def end(self) -> None:
        """Record that no more bodies follow."""
        self._has_ended = True
        self._wake()

    async def next(self) -> bytes | None:
        """Wait for the next body; None after the last one. Cancelling loses nothing."""
        while not self._bodies:
            if self._has_ended:
                return None
            # A body is taken after the wait and not handed over by the waiter's result: a reader
            # that is cancelled in between would lose it.
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        body = self._bodies.popleft()
        self.used_chunks += 1
        self._used_bytes += len(body)
        # At half, so that credit is on its way while the sender still has some: at the end of the
        # window it would stop for a round trip. For every chunk, it would double the frames.
        window = self._window
        is_half_used = (window.chunks - self.used_chunks) * 2 <= WINDOW_CHUNKS or (
            window.bytes - self._used_bytes
        ) * 2 <= self._share
        if not self._has_ended and (is_half_used or self._is_credit_due):
            self._send_credit(*self.grant_credit())
        return body

    @property
    def _is_credit_due(self) -> bool:
        """Whether the sender has waited for credit for `_CREDIT_INTERVAL_S`."""
        if self._window.is_open:
            return False
        return asyncio.get_running_loop().time() - self._closed_at >= _CREDIT_INTERVAL_S

    def discard(self) -> None:
        """Drop all buffered bodies and release the share: nothing is read any more."""
        self._has_ended = True
        self._bodies.clear()
        self._budget.release(self._share)
        self._share = 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
