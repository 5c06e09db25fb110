"""A clock that stands still while a person is waited for, and the time limits that go by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

__all__ = ["PausableClock", "timeout_at"]


class PausableClock:
    """The running loop's clock, without the time in which it was paused.

    The clock of one call: it is paused by one at a time, which is the part of the call that runs.

    Args:
        on_resume: Is called each time that it goes on.
    """

    def __init__(self, on_resume: Callable[[], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_resume = on_resume
        self._paused_s = 0.0
        self._paused_at: float | None = None
        self._limits: dict[asyncio.Timeout, float] = {}

    def time(self) -> float:
        """Return the time in seconds; it may be called from any thread."""
        paused_at = self._paused_at
        return (self._loop.time() if paused_at is None else paused_at) - self._paused_s

    def loop_time(self, at: float) -> float:
        """Return when it will be `at`, by the loop's clock, if it is not paused again."""
        return at + self._paused_s

    @asynccontextmanager
    async def timeout_at(self, at: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the block as `asyncio.timeout_at` does, by this clock."""
        limit = asyncio.timeout_at(None if self._paused_at is not None else self.loop_time(at))
        self._limits[limit] = at
        try:
            async with limit:
                yield limit
        finally:
            del self._limits[limit]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause it, and all limits that go by it, while the block runs."""
        self._paused_at = self._loop.time()
        self._reschedule()
        try:
            yield
        finally:
            self._paused_s += self._loop.time() - self._paused_at
            self._paused_at = None
            self._reschedule()
            if self._on_resume is not None:
                self._on_resume()

    def _reschedule(self) -> None:
        for limit, at in self._limits.items():
            if not limit.expired():  # one that has just expired ends its block all the same
                limit.reschedule(None if self._paused_at is not None else self.loop_time(at))


def timeout_at(
    at: float, clock: PausableClock | None
) -> AbstractAsyncContextManager[asyncio.Timeout]:
    """Return `asyncio.timeout_at` for a time by this clock; None is the loop's own."""
    return asyncio.timeout_at(at) if clock is None else clock.timeout_at(at)
