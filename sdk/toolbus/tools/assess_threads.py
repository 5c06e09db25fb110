"""Threads for what tools say about inputs, shared fairly between callers.

One that blocks must not hold up the event loop, so it runs on a thread; it cannot be stopped there,
and is left behind after its time. Else one caller could take all threads, and everybody's calls
would be refused by their policies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.tools.tool_run import ToolRun

__all__ = ["on_assess_thread"]

T = TypeVar("T")

_THREADS = WorkerThreads("assess", 64, may_take_long=True)
_MAX_OF_ONE_CALLER = 16
"""Of the threads, at a time, also of those that were left behind: a quarter."""


class _Share:
    """The threads that one caller uses in one event loop."""

    def __init__(self) -> None:
        self.running: set[object] = set()
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> object:
        """Wait for a thread; return what `release` takes."""
        while len(self.running) >= _MAX_OF_ONE_CALLER:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was its turn already
                    self._wake_next()
                raise
        place = object()
        self.running.add(place)
        return place

    def release(self, place: object) -> None:
        """Give a thread back; more than once is as once."""
        self.running.discard(place)
        self._wake_next()

    def _wake_next(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


_shares: dict[tuple[asyncio.AbstractEventLoop, str, str], _Share] = {}


async def on_assess_thread(run: ToolRun, function: Callable[[], T]) -> T:
    """Run a function of a tool on a thread, as one of those of the caller of a run.

    Raises what the function raises.
    """
    loop = asyncio.get_running_loop()
    key = (loop, run.caller.issuer, run.caller.name)
    share = _shares.get(key)
    if share is None:
        share = _shares[key] = _Share()
    place = await share.acquire()

    def end() -> None:
        share.release(place)
        if not share.running and not share.waiting and _shares.get(key) is share:
            del _shares[key]

    has_begun = False

    def work() -> T:
        nonlocal has_begun
        has_begun = True
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end)

    try:
        return await _THREADS.run(work)
    except asyncio.CancelledError:
        if not has_begun:  # it never will, or ends in no time: the place is given back once
            end()
        raise
