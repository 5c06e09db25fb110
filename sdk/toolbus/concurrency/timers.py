"""Many deadlines on one timer.

Nearly every call ends long before its deadline, and one event-loop timer per call would cost as
much as routing the call. `Alarm` is for owners that can scan all their deadlines. `Deadlines` is
for larger sets: adding and removing an item is a dict operation; when the timer fires, the
remaining items move to a heap. Items that are due within the next millisecond expire too, since a
loop's clock may be that coarse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar

__all__ = ["CLOCK_S", "ROUNDING_MS", "Alarm", "Deadlines", "Expirable"]

ROUNDING_MS = 0.001
"""Tolerance, in milliseconds, of the difference between two readings of a long-running clock.

A remainder this small is not rounded up to a whole millisecond.
"""

# Fewer items than this are not scanned for ended ones.
_MIN_CLEANUP_SIZE = 64
CLOCK_S = 0.001
"""Resolution of the coarsest loop clock, uvloop's; a timer may fire that much early."""


class Alarm:
    """One timer that fires at the earliest of the times it was set to.

    Args:
        loop: The loop whose clock is used.
        on_due: Called with the time up to which items are due; returns when to fire next. Must not
            raise.
    """

    __slots__ = ("_is_closed", "_loop", "_on_due", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[float], float]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.at: float = inf
        """When it fires; infinity if it is not set."""

    def set(self, when: float) -> None:
        """Fire at that time unless it is set to an earlier one; no effect after `close`."""
        if when >= self.at or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.at = when
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self.at = inf
        self.set(self._on_due(self._loop.time() + CLOCK_S))

    def close(self) -> None:
        """Cancel the timer; it never fires again."""
        self._is_closed = True
        self.at = inf
        if self._timer is not None:
            self._timer.cancel()


class Expirable(Protocol):
    """An item that may end before its deadline."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""


T = TypeVar("T", bound=Expirable)


class Deadlines(Generic[T]):
    """Deadlines of items that report whether they have ended.

    Args:
        loop: The loop whose clock the deadlines use.
        expire: Called for each item that has not ended at its deadline. Must not raise.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._alarm = Alarm(loop, self._expire_due)
        self._new: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()
        self._cleanup_size = _MIN_CLEANUP_SIZE
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of items held; ended ones may be among them until the next cleanup."""
        return len(self._new) + len(self._heap)

    def add(self, at: float, item: T) -> None:
        """Expire an item at a time by the loop's clock, unless it has ended by then.

        An item may be added again after `expire` was called for it, not before. No effect after
        `close`.
        """
        if self._is_closed:
            return
        self._new[item] = at
        if at < self._alarm.at:
            self._alarm.set(at)
        if len(self._new) > self._cleanup_size:
            self._remove_ended()

    def forget(self, item: T) -> None:
        """Drop an ended item: at once if the timer has not fired since it was added.

        Other ended items are dropped when there are many.
        """
        self._new.pop(item, None)

    def close(self) -> None:
        """Drop all items, for good."""
        self._is_closed = True
        self._new.clear()
        self._heap.clear()
        self._alarm.close()

    def _expire_due(self, now: float) -> float:
        self._move_to_heap()
        heap = self._heap
        while heap and (heap[0][2].ended or heap[0][0] <= now):
            item = heappop(heap)[2]
            if not item.ended:
                self._expire(item)
        if len(heap) > self._cleanup_size:
            self._remove_ended()
        return heap[0][0] if heap else inf

    def _move_to_heap(self) -> None:
        """Move the new items that have not ended to the heap."""
        for item, at in self._new.items():
            if not item.ended:
                heappush(self._heap, (at, next(self._order), item))
        self._new.clear()

    def _remove_ended(self) -> None:
        """Remove ended items; again at twice the remaining number: constant cost per item."""
        self._move_to_heap()
        self._heap[:] = [entry for entry in self._heap if not entry[2].ended]
        heapify(self._heap)
        self._cleanup_size = 2 * len(self._heap) + _MIN_CLEANUP_SIZE
