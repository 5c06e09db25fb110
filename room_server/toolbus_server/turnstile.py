"""How many may come in at a time, so that those who are in are served meanwhile.

To let somebody in costs the server a millisecond or so. A thousand who lost their connections come
back within a moment, and calls would wait for as long as that takes: so a few are let in, then all
else has its turn, then the next few. It knows nothing of who they are.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Turnstile"]

PER_TURN = 8
TURN_S = 0.01
"""At most so many within so much time: 800 within a second."""
MAX_WAITING = 4_000
"""One more is told to come later: it would wait for 5 s, of the 10 s that a client waits."""


class Turnstile:
    """A place that people pass in the order in which they came.

    Args:
        loop: Its timers are used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = PER_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether so many wait that no other should."""
        return len(self._waiting) >= MAX_WAITING

    def turn(self) -> asyncio.Future[None] | None:
        """Take a place: None where the way is free, else what to wait for.

        Who gives up cancels it, and holds nobody up.
        """
        if self._timer is None:
            self._timer = self._loop.call_later(TURN_S, self._next_turn)
        if self._free:
            self._free -= 1
            return None
        place = self._loop.create_future()
        self._waiting.append(place)
        return place

    def _next_turn(self) -> None:
        self._free = PER_TURN
        self._timer = None
        while self._waiting and self._free:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._free -= 1
        if self._free < PER_TURN:
            self._timer = self._loop.call_later(TURN_S, self._next_turn)
