"""Runs long work of an event loop in slices, one slice of one job in an iteration.

The work is a generator of small steps. Jobs of one loop take turns, so that many of them hold the
loop no longer than one does. Work that is cancelled ends between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["SLICE_S", "run_in_slices"]

T = TypeVar("T")

SLICE_S = 0.0005
"""Seconds for which large values are worked on before the loop serves others.

Other input is read in the iterations between. With twice as much, other calls wait up to a third
longer behind a few frames of 1 MB.
"""


class _Rank(NamedTuple):
    """Decides about the turns of a job."""

    size: int
    number: int
    """In the order in which jobs began."""


class _Turns:
    """The slices of one event loop: one in each iteration.

    Every other one goes to the smallest job, so that it does not wait for all large ones. The
    others go to the oldest one, so that few large values are half read at a time: what Python's
    garbage collector has to look at in one go grows with them.
    """

    __slots__ = ("_count", "_is_taken", "_takes_smallest", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._takes_smallest = False
        self._count = 0
        self._waiting: dict[asyncio.Future[None], _Rank] = {}

    def next_number(self) -> int:
        """Return the number of a new job, from 1."""
        self._count += 1
        return self._count

    async def take(self, rank: _Rank) -> None:
        """Wait for the next slice. Cancelling it loses nothing."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = rank
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # the slice has been given to this job
                self._pass_on()
            raise

    def end(self) -> None:
        """End a slice; the next one begins in the next iteration of the loop."""
        asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        waiting = self._waiting
        self._takes_smallest = not self._takes_smallest
        while waiting:
            if self._takes_smallest:
                turn = min(waiting, key=waiting.__getitem__)
            else:
                turn = min(waiting, key=lambda turn: waiting[turn].number)
            del waiting[turn]
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False


# The state of each loop, as asyncio has it too: jobs of all rooms of a process share its loop. It
# must not refer to the loop, which would then never be freed.
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def run_in_slices(
    steps: Generator[None, None, T], size: int, *, continues: bool = False
) -> T:
    """Run the steps of a job, and serve the loop after each slice of them.

    Args:
        steps: The job; closed if this task is cancelled.
        size: How large it is, compared with others.
        continues: Whether it goes on with what an earlier job has made: then it counts as the
            oldest one.

    Returns:
        What the steps return. Raises what they raise.
    """
    loop = asyncio.get_running_loop()
    if (turns := _TURNS.get(loop)) is None:
        turns = _TURNS[loop] = _Turns()
    rank = _Rank(size, 0 if continues else turns.next_number())
    try:
        while True:
            await turns.take(rank)
            ends_at = perf_counter() + SLICE_S
            try:
                next(steps)
                while perf_counter() < ends_at:
                    next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                turns.end()
    finally:
        steps.close()
