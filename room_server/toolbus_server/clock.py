"""The time of day, by which tokens end: passed in, so that a test can let days pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "SystemClock", "Timer"]


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call. Idempotent."""


class Clock(Protocol):
    """Tells the time of day."""

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        """Call a function at a time; at once if that has passed."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return time.time()

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        """Call a function at a time, on the running event loop."""
        return asyncio.get_running_loop().call_later(max(0.0, at - self.now()), call)
