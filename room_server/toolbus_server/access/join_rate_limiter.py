"""Limits how many participants join at a time, so that connected ones are served meanwhile.

One join costs the server a millisecond or so. A thousand participants that lost their connections
reconnect within a moment, and calls would wait that long: so a few join, then other work runs, then
the next few join. Joins are not distinguished by participant.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["JoinRateLimiter"]

PER_INTERVAL = 8
INTERVAL_S = 0.01
"""Seconds of an interval, with at most `PER_INTERVAL` joins: 800 within a second."""
MAX_WAITING = 4_000
"""Limit of waiting joins; a further one is refused. The last one waits 5 s; a client waits 10 s."""


class JoinRateLimiter:
    """Admits joins at a limited rate, in the order of their requests.

    Args:
        loop: Its timers are used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = PER_INTERVAL
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether so many joins wait that a further one has to be refused."""
        return len(self._waiting) >= MAX_WAITING

    def acquire(self) -> asyncio.Future[None] | None:
        """Request a join: None if it may happen now, else a future to wait for.

        A future that is cancelled does not delay the others.
        """
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._next_interval)
        if self._free:
            self._free -= 1
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next_interval(self) -> None:
        self._free = PER_INTERVAL
        self._timer = None
        while self._waiting and self._free:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._free -= 1
        if self._free < PER_INTERVAL:
            self._timer = self._loop.call_later(INTERVAL_S, self._next_interval)
