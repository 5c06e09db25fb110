"""The end of a participant's token: it is told in time, then nothing new begins, then it is over.

Keeps one timer for each connection and decides when; what then happens is its session's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Protocol

from toolbus_server.admission import Admitted
from toolbus_server.routing import Seat

__all__ = ["Expiry", "Holder"]

_GRACE_S = 1.0
"""How long calls that are in flight when a token ends may take to end (PROTOCOL.md, CONN-12)."""
_LOOK_S = 0.02


class Holder(Protocol):
    """Who holds a token: a session."""

    seat: Seat

    def token_ends_soon(self, left_ms: int) -> None:
        """Tell the participant that its token ends in so many milliseconds."""

    def token_ended(self) -> None:
        """Take every right away; calls in flight go on."""

    def expire(self) -> None:
        """Close the connection."""


class Expiry:
    """Watches over the token of one connection.

    Args:
        holder: Whose token it is.
        loop: Whose timers are used.
        now: Seconds since the epoch.
    """

    __slots__ = (
        "_close_at",
        "_holder",
        "_loop",
        "_now",
        "_timer",
        "_told_of",
        "ends_at",
        "is_over",
    )

    def __init__(
        self, holder: Holder, loop: asyncio.AbstractEventLoop, now: Callable[[], float]
    ) -> None:
        self._holder = holder
        self._loop = loop
        self._now = now
        self._timer: asyncio.TimerHandle | None = None
        self._told_of = 0.0
        self._close_at = 0.0
        self.ends_at: float = 0.0
        """When the token, with its leeway, ends: seconds since the epoch."""
        self.is_over: bool = False
        """Whether it has ended: no newer one helps any more."""

    def begin(self, admitted: Admitted) -> None:
        """Count with this token from now on. Of one end a participant is told once."""
        self.stop()
        self.ends_at = admitted.expires_at
        if self._told_of == self.ends_at or admitted.renew_at >= self.ends_at:
            self._arm(self.ends_at, self._end)
        else:
            self._arm(admitted.renew_at, self._tell)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float, act: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(max(0.0, at - self._now()), act)

    def _tell(self) -> None:
        self._told_of = self.ends_at
        self._arm(self.ends_at, self._end)
        self._holder.token_ends_soon(max(0, ceil((self.ends_at - self._now()) * 1000)))

    def _end(self) -> None:
        self.is_over = True
        self._close_at = self._loop.time() + _GRACE_S
        self._holder.token_ended()
        self._look()

    def _look(self) -> None:
        """Close as soon as no call is in flight: nobody tells of that, and it is not for long."""
        seat = self._holder.seat
        if (seat.calls or seat.dispatched) and self._loop.time() < self._close_at:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        else:
            self._timer = None
            self._holder.expire()
