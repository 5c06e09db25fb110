"""Many deadlines on one timer.

Nearly every call ends long before its deadline, and an event loop's own timer for each of them
would cost as much as routing it. Who can go through all that waits has an `Alarm` for the earliest.
`Deadlines` hold what may be too much for that: adding one and ending one costs an entry of a map,
and when the timer fires, what is there goes on to a heap. What is due within the next millisecond
is taken along, since the clock of a loop may be no finer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar

__all__ = ["ROUNDING_MS", "Alarm", "Deadlines", "Ending"]

ROUNDING_MS = 0.001
"""More than a duration is off by that is the difference of two times of a clock that counts years.

So much of a millisecond is not rounded up to a whole one.
"""

# So many are not looked through for those that have ended.
_SMALL = 64
_CLOCK_S = 0.001
"""The coarsest clock of a loop, uvloop's; a timer may run that much early by it."""


class Alarm:
    """One timer, for the earliest of all the times that it is set to.

    Args:
        loop: By whose clock it goes.
        ring: Told the time up to which all is due; says when to ring again. Must not raise.
    """

    __slots__ = ("_is_closed", "_loop", "_ring", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[float], float]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.at: float = inf
        """When it rings; infinity where it is not set."""

    def set(self, when: float) -> None:
        """Ring at that time, unless it is set to an earlier one; after `close` never."""
        if when >= self.at or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.at = when
        self._timer = self._loop.call_at(when, self._go_off)

    def _go_off(self) -> None:
        self.at = inf
        self.set(self._ring(self._loop.time() + _CLOCK_S))

    def close(self) -> None:
        """Never ring again."""
        self._is_closed = True
        self.at = inf
        if self._timer is not None:
            self._timer.cancel()


class Ending(Protocol):
    """Something that may end before its time is up."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""


T = TypeVar("T", bound=Ending)


class Deadlines(Generic[T]):
    """Deadlines of things that say by themselves whether they have ended.

    Args:
        loop: Whose clock the deadlines are told by.
        expire: Told of each thing that has not ended when its time is up. Must not raise.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._alarm = Alarm(loop, self._expire_due)
        self._new: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()
        self._most = _SMALL
        self._is_closed = False

    def __len__(self) -> int:
        """How many are held; there may be as many that have ended as were alive a while ago."""
        return len(self._new) + len(self._heap)

    def add(self, at: float, item: T) -> None:
        """Expire an item at a time by the loop's clock, unless it has ended before.

        An item may be added again once `expire` was told of it, not before. After `close` nothing
        is held and nothing expires.
        """
        if self._is_closed:
            return
        self._new[item] = at
        if at < self._alarm.at:
            self._alarm.set(at)
        if len(self._new) > self._most:
            self._forget_ended()

    def forget(self, item: T) -> None:
        """Let go of an item that has ended, at once if the alarm has not rung since it was added.

        Others go when they are many.
        """
        self._new.pop(item, None)

    def close(self) -> None:
        """Forget everything, for good."""
        self._is_closed = True
        self._new.clear()
        self._heap.clear()
        self._alarm.close()

    def _expire_due(self, now: float) -> float:
        self._take_in()
        heap = self._heap
        while heap and (heap[0][2].ended or heap[0][0] <= now):
            item = heappop(heap)[2]
            if not item.ended:
                self._expire(item)
        if len(heap) > self._most:
            self._forget_ended()
        return heap[0][0] if heap else inf

    def _take_in(self) -> None:
        """Put the new ones that still count in order."""
        for item, at in self._new.items():
            if not item.ended:
                heappush(self._heap, (at, next(self._order), item))
        self._new.clear()

    def _forget_ended(self) -> None:
        """Look through all, and not again before there are twice as many: a constant for each."""
        self._take_in()
        self._heap[:] = [entry for entry in self._heap if not entry[2].ended]
        heapify(self._heap)
        self._most = 2 * len(self._heap) + _SMALL
