"""How far the sender of a stream is let go ahead of its reader: as little as keeps it going.

Whatever is under way delays all that comes behind it on the same connection, so a reader begins
with `LEAST_BYTES`, which is plenty on one machine and in one house. Only where a sender that was
let go again takes long to be heard, as over a long way, is it given more, at most `WINDOW_BYTES`.
What there is memory for its owner decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from toolbus.wire.windows import WINDOW_BYTES

__all__ = ["LEAST_BYTES", "LONG_S", "Reach"]

LEAST_BYTES = 256 * 1024
"""What every sender may be ahead, where there is room for it."""
LONG_S = 0.01
"""A sender that is heard of within this is not held up: it makes 26 MB/s at least."""


class Reach:
    """The reach of one stream, which grows and never shrinks.

    Args:
        clock: Tells seconds.
    """

    __slots__ = ("_clock", "_since_s", "bytes")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self.bytes: int = LEAST_BYTES
        """How far the sender may be ahead."""

    def let_go(self) -> None:
        """Take note that a sender which had to wait was let go just now."""
        if self._since_s is None:
            self._since_s = self._clock()

    def heard(self) -> None:
        """Take note that something came of it."""
        if self._since_s is not None:
            if self._clock() - self._since_s > LONG_S:
                self.bytes = min(2 * self.bytes, WINDOW_BYTES)
            self._since_s = None
