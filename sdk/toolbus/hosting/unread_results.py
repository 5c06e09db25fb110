"""Counts the large results that wait at a host until their callers read them.

Such a call does not count as running, so a caller that reads slowly takes no place of others. What
it may leave waiting is limited: its further calls are refused. No result is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from toolbus.tools.tool_limits import Identity

__all__ = ["MAX_UNREAD_BYTES", "UnreadResults"]

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of results that may wait for one caller; with more, its calls are `overloaded`."""


class UnreadResults:
    """The results of one host that are being sent in parts."""

    __slots__ = ("_bytes_of", "_count_of", "count")

    def __init__(self) -> None:
        self._bytes_of: Counter[Identity] = Counter()
        self._count_of: Counter[Identity] = Counter()
        self.count: int = 0
        """How many results wait."""

    def is_full(self, caller: Identity) -> bool:
        """Whether a caller has left too many bytes waiting."""
        return self._bytes_of[caller] > MAX_UNREAD_BYTES

    def count_of(self, caller: Identity) -> int:
        """Return how many results of a caller wait."""
        return self._count_of[caller]

    @contextmanager
    def waiting(self, caller: Identity, size: int) -> Iterator[None]:
        """Count a result of `size` bytes until the block ends."""
        self.count += 1
        self._count_of[caller] += 1
        self._bytes_of[caller] += size
        try:
            yield
        finally:
            self.count -= 1
            self._count_of[caller] -= 1
            self._bytes_of[caller] -= size
            if not self._count_of[caller]:
                del self._count_of[caller], self._bytes_of[caller]
