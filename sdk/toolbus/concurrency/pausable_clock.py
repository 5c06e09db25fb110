"""A clock that stands still while a person is waited for, and the time limits that go by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

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

    def timeout_at(self, at: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Limit a block as `asyncio.timeout_at` does, by this clock."""
        return _Limit(self, at)

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


class _Limit:
    """One limit of a clock; no generator, which would take twice as long in each call."""

    def __init__(self, clock: PausableClock, at: float) -> None:
        self._clock = clock
        self._at = at

    async def __aenter__(self) -> asyncio.Timeout:
        clock = self._clock
        is_paused = clock._paused_at is not None
        self._limit = asyncio.timeout_at(None if is_paused else clock.loop_time(self._at))
        limit = await self._limit.__aenter__()
        clock._limits[limit] = self._at
        return limit

    async def __aexit__(self, *exception: Any) -> None:
        del self._clock._limits[self._limit]
        await self._limit.__aexit__(*exception)


def timeout_at(
    at: float, clock: PausableClock | None
) -> AbstractAsyncContextManager[asyncio.Timeout]:
    """Return `asyncio.timeout_at` for a time by this clock; None is the loop's own."""
    return asyncio.timeout_at(at) if clock is None else clock.timeout_at(at)
