"""Counts attempts that fail, so that a log has one line a minute about them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FailedAttempts"]

_REPEAT_S = 60.0
"""Often enough for someone who reads the log, and few lines for an outage of a day."""


class FailedAttempts:
    """The attempts since a connection was lost, or since the first of them.

    Args:
        now: The loop's clock.
    """

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
