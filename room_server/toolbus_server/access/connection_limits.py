"""How many connections there may be: by address, identity and room, at a time, and by descriptors.

`admission` and the server decide what happens to a connection beyond a limit.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter, deque
from collections.abc import Callable, Hashable

from toolbus.bounded_logging import bounded_logger

__all__ = [
    "RESERVED_DESCRIPTORS",
    "ConnectionQuotas",
    "DescriptorReserve",
    "JoinRateLimiter",
]

# Connections of one address beyond its quota that get a response; further ones are dropped.
_MAX_REFUSED = 256
PER_INTERVAL = 8
INTERVAL_S = 0.01
"""Seconds of an interval, with at most `PER_INTERVAL` joins: 800 within a second."""
MAX_WAITING = 4_000
"""Limit of waiting joins; a further one is refused. The last one waits 5 s; a client waits 10 s."""
RESERVED_DESCRIPTORS = 32
"""Descriptors that no connection gets; half of all if the process may have fewer than 64."""
_LOG_INTERVAL_S = 60.0
"""The shortest time between two warnings."""
_logger = bounded_logger(__name__)


class ConnectionQuotas:
    """Counts the connections to one server.

    Args:
        max_per_address: How many one address may have; 0 for any number.
        max_per_identity: How many participants one identity may have; 0 for any number.
        max_per_room: How many participants one room may have; 0 for any number.
    """

    def __init__(self, max_per_address: int, max_per_identity: int, max_per_room: int) -> None:
        self._max_per_address = max_per_address
        self._max_per_identity = max_per_identity
        self._max_per_room = max_per_room
        # Addresses and rooms share one dict: only an address has a dot or a colon in it.
        self._counts: dict[Hashable, int] = {}
        self.dropped = 0
        """Connections beyond an address quota that were dropped without a response."""
        self.slow_consumers = 0
        """Connections closed with 4430, because they did not read."""

    def add(self, key: Hashable) -> None:
        """Count a connection of an address, or a participant of an identity or a room."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: Hashable) -> None:
        """Uncount what `add` counted."""
        left = self._counts[key] - 1
        if left:
            self._counts[key] = left
        else:
            del self._counts[key]

    def count_of(self, key: Hashable) -> int:
        """Return how many `add` counted."""
        return self._counts.get(key, 0)

    def is_over_limit(self, address: str) -> bool:
        """Whether an address has more connections than its quota, all of them counted already."""
        return self._exceeds(address, self._max_per_address)

    def is_flooded(self, address: str) -> bool:
        """Whether it has so many more that further ones get no response."""
        return self._exceeds(address, self._max_per_address, _MAX_REFUSED)

    def is_full(self, identity: Hashable) -> bool:
        """Whether an identity has reached its quota of participants."""
        return self._exceeds(identity, self._max_per_identity, -1)

    def is_room_full(self, room: str, remote: int = 0) -> bool:
        """Whether a room has reached its quota of participants, with `remote` at other nodes."""
        return self._exceeds(room, self._max_per_room, -1 - remote)

    def _exceeds(self, key: Hashable, quota: int, margin: int = 0) -> bool:
        return quota > 0 and self._counts.get(key, 0) > quota + margin


class JoinRateLimiter:
    """Admits joins at a limited rate, in the order of their requests.

    One join costs the server a millisecond or so. A thousand participants that lost their
    connections reconnect within a moment, and calls would wait that long: so a few join, then other
    work runs, then the next few join. Joins are not distinguished by participant.
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


class DescriptorReserve:
    """Decides which connections are dropped because descriptors are about to run out.

    Key files, logs, name lookups and connections to Redis need descriptors too. It reads the limits
    of the process; it opens and closes nothing.

    Args:
        refused: Counts dropped connections as `no_descriptors`.
        now: Returns the time in seconds, from any start.
    """

    def __init__(self, refused: Counter[str], now: Callable[[], float]) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit
        self._first_reserved = max(limit - RESERVED_DESCRIPTORS, limit // 2)
        self._refused = refused
        self._now = now
        self._next_warning_at = float("-inf")

    def is_reserved(self, descriptor: int) -> bool:
        """Whether a connection got a descriptor that it must give back at once.

        The system hands out the lowest free number, so a high one means that few are left.
        """
        if descriptor < self._first_reserved or self._limit == resource.RLIM_INFINITY:
            return False
        self._refused["no_descriptors"] += 1
        if self._now() >= self._next_warning_at:
            self._next_warning_at = self._now() + _LOG_INTERVAL_S
            _logger.warning(
                "new connections are dropped: nearly all of the %d file descriptors are in use; "
                "raise the limit of open files (ulimit -n, LimitNOFILE of systemd), or add servers",
                self._limit,
            )
        return True
