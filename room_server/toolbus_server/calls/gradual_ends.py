"""Ends many calls in steps, so that the calls of others are served between two of them.

A connection that closes, or a call that others are nested in, may end thousands of calls. One that
waits for its end may still end in another way, as by its deadline. `executed` is decided when it
ends: what its host is sent meanwhile counts.

This is not a job of the scheduler of `rooms`: there it would take turns with the events and walks
of all participants, and a caller would learn only after them that its host is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from toolbus_server.calls.call_state import InFlightCall

__all__ = ["MAX_ENDS_PER_ITERATION", "GradualEnds"]

MAX_ENDS_PER_ITERATION = 128
"""Calls that end in one event-loop iteration, 1 to 2 ms; the next ones end in the next."""


class GradualEnds:
    """The calls of one server that wait for their end.

    Args:
        loop: Runs the ends that do not fit into one iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[InFlightCall, Callable[[InFlightCall], None]]] = deque()
        self._is_running = False

    def add(self, calls: Iterable[InFlightCall], end: Callable[[InFlightCall], None]) -> None:
        """End calls with `end`, after those that were added before; the first ones at once."""
        self._waiting.extend((call, end) for call in calls)
        if not self._is_running:
            self._run()

    def _run(self) -> None:
        self._is_running = True
        try:
            for _ in range(MAX_ENDS_PER_ITERATION):
                if not self._waiting:
                    break
                call, end = self._waiting.popleft()
                if not call.ended:
                    end(call)
        finally:  # one that fails with a bug keeps no other from its end
            if self._waiting:
                self._loop.call_soon(self._run)
            else:
                self._is_running = False
