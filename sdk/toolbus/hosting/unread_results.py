"""Counts the large results that wait at a host until their callers read them.

Such a call does not count as running, so a caller that reads slowly takes no place of others. What
it may leave waiting is limited: its further calls are refused. No result is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["MAX_UNREAD_BYTES", "UnreadResults"]

MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of results that may wait for one caller; with more, its calls are `overloaded`."""


class UnreadResults:
    """The results of one host that are being sent in parts."""

    __slots__ = ("_bytes_of", "count")

    def __init__(self) -> None:
        self._bytes_of: dict[bytes, int] = {}
        self.count: int = 0
        """How many results wait."""

    def is_full(self, caller: bytes) -> bool:
        """Whether a caller, by its packed facts, has left too many bytes waiting."""
        return self._bytes_of.get(caller, 0) > MAX_UNREAD_BYTES

    @contextmanager
    def waiting(self, caller: bytes, size: int) -> Iterator[None]:
        """Count a result of `size` bytes until the block ends."""
        self.count += 1
        self._bytes_of[caller] = self._bytes_of.get(caller, 0) + size
        try:
            yield
        finally:
            self.count -= 1
            left = self._bytes_of.pop(caller) - size
            if left:
                self._bytes_of[caller] = left
