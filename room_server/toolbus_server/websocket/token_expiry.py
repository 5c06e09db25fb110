"""The expiry of a participant's token: notify in time, withdraw the grants, then close.

It keeps one timer for each connection and decides when; the session acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Protocol

from toolbus_server.access.admission import Admitted
from toolbus_server.calls.router import Connection

__all__ = ["TokenExpiry", "TokenHolder"]

_GRACE_S = 1.0
"""How long calls in flight may take to finish after a token expired (PROTOCOL.md, CONN-12)."""
_POLL_S = 0.02


class TokenHolder(Protocol):
    """The session of a token."""

    connection: Connection

    def notify_token_expiry(self, left_ms: int) -> None:
        """Notify the participant that its token expires in so many milliseconds."""

    def withdraw_grants(self) -> None:
        """Withdraw all grants; calls in flight go on."""

    def expire(self) -> None:
        """Close the connection, some time after `withdraw_grants`."""


class TokenExpiry:
    """Tracks the expiry of one connection's token.

    Args:
        holder: The session.
        loop: Runs the timer.
        now: Seconds since the epoch.
    """

    __slots__ = (
        "_close_at",
        "_holder",
        "_loop",
        "_notified_of",
        "_now",
        "_timer",
        "ends_at",
        "is_over",
    )

    def __init__(
        self, holder: TokenHolder, loop: asyncio.AbstractEventLoop, now: Callable[[], float]
    ) -> None:
        self._holder = holder
        self._loop = loop
        self._now = now
        self._timer: asyncio.TimerHandle | None = None
        self._notified_of = 0.0
        self._close_at = 0.0
        self.ends_at: float = 0.0
        """When the token, with its leeway, expires: seconds since the epoch."""
        self.is_over: bool = False
        """Whether it has expired; it cannot be renewed any more."""

    def start(self, admitted: Admitted) -> None:
        """Track this token. A participant is notified once of each time of expiry."""
        self.stop()
        self.ends_at = admitted.expires_at
        if self._notified_of == self.ends_at or admitted.renew_at >= self.ends_at:
            self._arm(self.ends_at, self._end)
        else:
            self._arm(admitted.renew_at, self._notify)

    def stop(self) -> None:
        """Neither notify nor close any more; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float, act: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(max(0.0, at - self._now()), act)

    def _notify(self) -> None:
        self._notified_of = self.ends_at
        self._arm(self.ends_at, self._end)
        self._holder.notify_token_expiry(max(0, ceil((self.ends_at - self._now()) * 1000)))

    def _end(self) -> None:
        self.is_over = True
        self._close_at = self._loop.time() + _GRACE_S
        self._holder.withdraw_grants()
        self._poll()

    def _poll(self) -> None:
        """Close as soon as no call is in flight; polling is enough for this short time."""
        connection = self._holder.connection
        if (connection.calls or connection.dispatched) and self._loop.time() < self._close_at:
            self._timer = self._loop.call_later(_POLL_S, self._poll)
        else:
            self._timer = None
            self._holder.expire()
