"""Attempts that are made again: the pause before each, and a line a minute about those that fail.

The pause is exponential, with jitter, and no shorter than the refusing side asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["FailedAttempts", "backoff_pause_s"]

# A call may fail any number of times, and `float(2**1024)` is an OverflowError. 16 doublings are
# more than any caller has between its first and its longest backoff.
_MAX_DOUBLINGS = 16
_REPEAT_S = 60.0
"""Often enough for someone who reads the log, and few lines for an outage of a day."""


def backoff_pause_s(
    number: int, retry_after_s: float | None, *, first_s: float, longest_s: float
) -> float:
    """Return the pause after a failure, in seconds.

    Args:
        number: Which failure it is, from 1.
        retry_after_s: The shortest pause, where the refusing side gave one; the jitter is added, so
            that refused callers spread out.
        first_s: The backoff after the first failure; it doubles with each further one.
        longest_s: The longest backoff. The jitter is at most as long as the backoff.
    """
    doublings = min(number - 1, _MAX_DOUBLINGS)
    backoff_s = min(first_s * float(2**doublings), longest_s)
    # The jitter comes on top of `retry_after_s` and is not taken from it: an earlier attempt would
    # be refused again, and callers that were refused together would return together.
    return max(backoff_s, retry_after_s or 0.0) + random.uniform(0, backoff_s)


class FailedAttempts:
    """The attempts since a connection was lost, or since the first of them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._began = self._now()
        self._next_line_at = self._began + _REPEAT_S
        self._count = 0
        self._levels: set[int] = set()

    def add(self) -> str:
        """Count one; return how many there were and for how long, if a line about it is due."""
        self._count += 1
        now = self._now()
        if now < self._next_line_at:
            return ""
        self._next_line_at = now + _REPEAT_S
        attempts = "1 attempt" if self._count == 1 else f"{self._count} attempts"
        return f"{attempts} in {now - self._began:.0f} s"

    def is_first_of(self, level: int) -> bool:
        """Return whether none of this level was logged before, and remember that one was."""
        is_first = level not in self._levels
        self._levels.add(level)
        return is_first
