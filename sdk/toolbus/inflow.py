"""What has come of one stream and waits for its reader, at either end of a call.

Credit is given as the reader uses things up, never on arrival, so that what waits here has a bound:
`WINDOW_CHUNKS` and `WINDOW_BYTES` for each stream, `SHARED_BYTES` for all of one connection; mostly
it is less, as `reach` has it. What a body means, and how a stream ends, is its owner's matter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from toolbus.reach import Reach
from toolbus.wire.windows import WINDOW_CHUNKS, ReceiveWindow

__all__ = ["LEAST_SHARE_BYTES", "SHARED_BYTES", "Arrival", "Inflow", "Shares"]

SHARED_BYTES = 16 * 1024 * 1024
"""So much of all streams of one connection may wait; the more there are, the less each may have."""
LEAST_SHARE_BYTES = 64 * 1024
"""What every stream may have, also where all is given."""


class Arrival(NamedTuple):
    """A packed chunk that came."""

    body: bytes
    last: bool
    """Whether it is the call's result, behind which nothing comes."""


class Shares:
    """The memory that the streams of one connection have together."""

    __slots__ = ("_given", "_open")

    def __init__(self) -> None:
        self._open = 0
        self._given = 0

    @property
    def left(self) -> int:
        """Bytes that no stream has; below 0 where more have the least than there is room for."""
        return SHARED_BYTES - self._given

    def renew(self, had: int, kept: int, wanted: int) -> int:
        """Give one stream its share anew, and return that.

        Args:
            had: Its share until now; 0 of one that had none.
            kept: Bytes of it that are not used up; it keeps these in any case.
            wanted: Bytes that it makes use of.
        """
        if not had:
            self._open += 1
        share = min(wanted, SHARED_BYTES // self._open, self.left + had)
        share = max(share, LEAST_SHARE_BYTES, kept)
        self._given += share - had
        return share

    def give_back(self, had: int) -> None:
        """Take the share of a stream of which nothing waits any more; 0 where it had none."""
        if had:
            self._open -= 1
            self._given -= had


class Inflow:
    """The bodies of one stream, from their arrival until they are read; by one task at a time.

    Args:
        shares: Where its memory comes from.
        tell: Sends a credit: chunks and bytes, as totals.
        chunks: How many chunks may come unasked.
        first_bytes: And how many bytes.
    """

    __slots__ = (
        "_bodies",
        "_has_ended",
        "_reach",
        "_share",
        "_shares",
        "_tell",
        "_used_bytes",
        "_waiter",
        "_window",
        "used_chunks",
    )

    def __init__(
        self,
        shares: Shares,
        tell: Callable[[int, int], None],
        chunks: int = 0,
        first_bytes: int = 0,
    ) -> None:
        self._shares = shares
        self._tell = tell
        self._window = ReceiveWindow(chunks, first_bytes)
        self._reach = Reach()
        self._share = 0
        """How many bytes may wait or come; 0 before credit is given, and when all is dropped."""
        self._bodies: deque[bytes] = deque()
        self.used_chunks: int = 0
        """How many were read."""
        self._used_bytes = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def number(self) -> int:
        """The last body's."""
        return self._window.number

    def widen(self) -> tuple[int, int]:
        """Let more come, as far as there is room; return the credit for that, which is to be told.

        A sender that has used up what it had is taken to wait.
        """
        window = self._window
        if window.chunks and not window.is_open:
            self._reach.let_go()
        kept = window.bytes - self._used_bytes
        self._share = self._shares.renew(self._share, kept, self._reach.bytes)
        window.chunks = self.used_chunks + WINDOW_CHUNKS
        window.bytes = self._used_bytes + self._share
        return window.chunks, window.bytes

    def arrive(self, number: int, body: bytes) -> None:
        """Keep a body for the reader. Raises `StreamBroken` where it is not what may come next."""
        self._window.arrive(number, len(body))
        self._reach.heard()
        self._bodies.append(body)
        self._wake()

    def end(self) -> None:
        """Take note that nothing more comes."""
        self._has_ended = True
        self._wake()

    async def next(self) -> bytes | None:
        """Wait for the next body; None behind the last one. Cancelling it loses nothing."""
        while not self._bodies:
            if self._has_ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        body = self._bodies.popleft()
        self.used_chunks += 1
        self._used_bytes += len(body)
        if not self._has_ended and self._is_half_used:
            self._tell(*self.widen())
        return body

    @property
    def _is_half_used(self) -> bool:
        window = self._window
        few_chunks = (window.chunks - self.used_chunks) * 2 <= WINDOW_CHUNKS
        return few_chunks or (window.bytes - self._used_bytes) * 2 <= self._share

    def drop(self) -> None:
        """Let go of what waits, and of the share: nothing is read any more."""
        self._has_ended = True
        self._bodies.clear()
        self._shares.give_back(self._share)
        self._share = 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
