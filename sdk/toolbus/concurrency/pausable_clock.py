"""Clocks that stand still while a person is waited for, and the time limits that go by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol

__all__ = ["CallTime", "PausableClock", "PausableTimer"]


class CallTime(Protocol):
    """The time of one call. It stands still while the call, or one within it, waits for a person.

    All who go by the deadline of the call share this object: no copy of it has to be moved.
    """

    @property
    def ends_at(self) -> float | None:
        """When the call has to end, by the loop's clock as things are; None if it need not."""

    def pause(self) -> None:
        """Let its time, and that of the calls around it, stand still, until as many `resume`."""

    def resume(self) -> None:
        """Let it go on, unless something else in it still waits."""


class PausableClock:
    """A clock without the time in which it was paused.

    Several parts of a call may pause it at a time: it goes on when none of them does any more.

    Args:
        clock: What it is made from; the running loop's clock by default.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._is_of_loop = self._clock == self._loop.time
        self._pauses = 0
        self._paused_s = 0.0
        self._paused_at: float | None = None
        self._limits: dict[asyncio.Timeout, float] = {}

    def time(self) -> float:
        """Return the time in seconds; it may be called from any thread."""
        paused_at = self._paused_at
        return (self._clock() if paused_at is None else paused_at) - self._paused_s

    def loop_time(self, at: float) -> float:
        """Return when it will be `at`, by the loop's clock, if it goes on now and is not paused."""
        if self._is_of_loop and self._paused_at is None:
            return at + self._paused_s
        return self._loop.time() + at - self.time()

    def timeout_at(self, at: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Limit a block as `asyncio.timeout_at` does, by this clock."""
        return _Limit(self, at)

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._pauses > 0

    def pause(self) -> None:
        """Let it, and all limits that go by it, stand still, until as many calls of `resume`."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._clock()
            self._reschedule()

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if self._pauses == 0 and self._paused_at is not None:
            self._paused_s += self._clock() - self._paused_at
            self._paused_at = None
            self._reschedule()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause it while the block runs."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _reschedule(self) -> None:
        for limit, at in self._limits.items():
            if not limit.expired():  # one that has just expired ends its block all the same
                limit.reschedule(None if self.is_paused else self.loop_time(at))


class _Limit:
    """One limit of a clock; no generator or coroutine more, which would cost in each call."""

    def __init__(self, clock: PausableClock, at: float) -> None:
        self._clock = clock
        self._at = at

    def __aenter__(self) -> Coroutine[Any, Any, asyncio.Timeout]:
        clock = self._clock
        self._limit = asyncio.timeout_at(None if clock._pauses else clock.loop_time(self._at))
        clock._limits[self._limit] = self._at
        return self._limit.__aenter__()

    def __aexit__(self, *exception: Any) -> Coroutine[Any, Any, bool | None]:
        del self._clock._limits[self._limit]
        return self._limit.__aexit__(*exception)


class PausableTimer:
    """A timer of the running loop that can stand still.

    Args:
        seconds: When it calls `on_end`, without the time in which it was paused.
        on_end: Is called once, unless it is cancelled before.
    """

    def __init__(self, seconds: float, on_end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._left_s = seconds
        self._pauses = 0
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self._timer = None  # what ends meanwhile may still pause it
        self._on_end()

    def pause(self) -> None:
        """Let it stand still, until as many calls of `resume`."""
        self._pauses += 1
        if self._timer is not None and self._pauses == 1:
            self._left_s = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if self._timer is not None and self._pauses == 0:
            self._timer = self._loop.call_later(self._left_s, self._end)

    def cancel(self) -> None:
        """Never call `on_end` from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
