"""Many deadlines on one timer: adding one costs little, ending one costs nothing.

Nearly every call ends long before its deadline, and an event loop's own timer for each of them
would cost as much as routing it. So new ones only stand in a list; those of them that have not
ended when it is full go on to a heap. The one timer is armed for the earliest; what is due within
the next millisecond is taken along, since the clock of a loop may be no finer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

__all__ = ["ROUNDING_MS", "Deadlines", "Ending"]

ROUNDING_MS = 0.001
"""More than a duration is off by that is the difference of two times of a clock that counts years.

So much of a millisecond is not rounded up to a whole one.
"""

# What has ended is kept at most so long: a heap that grows takes fresh memory with every call.
_SMALL = 64
_CLOCK_S = 0.001
"""The coarsest clock of a loop, uvloop's; a timer may run that much early by it."""


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
        self._loop = loop
        self._expire = expire
        self._new: list[tuple[float, T]] = []
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()
        self._most = _SMALL
        self._armed_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many are held, those that have ended among them."""
        return len(self._new) + len(self._heap)

    def add(self, at: float, item: T) -> None:
        """Expire an item at a time by the loop's clock, unless it has ended before.

        After `close` nothing is held and nothing expires.
        """
        if self._closed:
            return
        self._new.append((at, item))
        if at < self._armed_at:
            self._arm(at)
        if len(self._new) >= _SMALL:
            self._take_in()

    def forget(self, item: T) -> None:
        """Let go at once of an item that has ended, if it is the newest: of one call at a time.

        Else each call would take fresh memory, as the last ones would all be held.
        """
        new = self._new
        if new and new[-1][1] is item:
            new.pop()

    def close(self) -> None:
        """Forget everything, for good."""
        self._closed = True
        self._new.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = float("inf")

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        self._armed_at = float("inf")
        self._take_in()
        heap = self._heap
        while heap and (heap[0][2].ended or heap[0][0] <= now + _CLOCK_S):
            item = heappop(heap)[2]
            if not item.ended:
                self._expire(item)
        if heap and heap[0][0] < self._armed_at:  # as what came meanwhile may have armed it
            self._arm(heap[0][0])

    def _take_in(self) -> None:
        """Put the new ones that still count in order."""
        for at, item in self._new:
            if not item.ended:
                heappush(self._heap, (at, next(self._order), item))
        self._new.clear()
        if len(self._heap) > self._most:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Keep the heap within twice what still counts; so its upkeep is a constant for each."""
        self._heap[:] = [entry for entry in self._heap if not entry[2].ended]
        heapify(self._heap)
        self._most = 2 * len(self._heap) + _SMALL
