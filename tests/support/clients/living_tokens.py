"""Tokens that live while they are used, and a clock that lets their lives pass at once."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from toolbus import ApiScope, Key
from toolbus.auth.tokens import ParticipantToken

__all__ = ["LIFE_S", "MovedClock", "living"]

LIFE_S = 3600.0


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class MovedClock:
    """A clock that stands still until it is moved; timers that are due are called in order."""

    def __init__(self) -> None:
        self._now = time.time()
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _Timer]] = []

    def now(self) -> float:
        return self._now

    def call_at(self, at: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer(call)
        heapq.heappush(self._timers, (at, next(self._order), timer))
        return timer

    def move(self, seconds: float) -> None:
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            at, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, at)
            if timer.call is not None:
                timer.call()
        self._now = until


def living(key: Key, name: str, now: float, *, lives: float = 1_000, jti: str | None = None) -> str:
    """Make a token with all grants in every room that has so many lives."""
    token = ParticipantToken(name=name, room=["*"], api=ApiScope.full())
    return token.to_jwt(key, ttl_s=LIFE_S, until_s=lives * LIFE_S, jti=jti, now=now)
