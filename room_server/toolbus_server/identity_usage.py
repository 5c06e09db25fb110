"""What all connections of one identity use at a server together, and the limits on that.

Each limit stands beside the one of a single connection: without it, many connections of one
identity would have many times as much. One object counts for one identity; it lasts as long as
something counts in it, and for one more window, so that a reconnect does not reset it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic
from weakref import WeakValueDictionary

from toolbus.errors import QuotaExceeded
from toolbus_server.limits import RateLimiter

__all__ = [
    "MAX_CHANGES",
    "MAX_HELD_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_PARKED_NAMES",
    "MAX_SUBSCRIBED_TOOLKITS",
    "MAX_UNREAD_BYTES",
    "MAX_WAITING_BYTES",
    "MAX_WAITING_REQUESTS",
    "MAX_WORK_S",
    "MIN_SUBSCRIPTION",
    "IdentityUsage",
    "IdentityUsages",
]

WINDOW_S = 10.0
"""Seconds of the window of `MAX_WORK_S` and `MAX_CHANGES`."""
MAX_WORK_S = 5.0
"""Seconds of work on requests in a window: half of all, as others need the rest (CONN-7)."""
MAX_CHANGES = 10_000
"""Changes in a window: five times those of one connection, for a thousand hosts that reconnect."""
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
"""Bytes of the different manifests in all rooms (PROTOCOL.md, REG-27)."""
MAX_WAITING_REQUESTS = 4_096
"""Requests in slices that have not ended: four times those of one lane of a connection."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of these requests (PROTOCOL.md, REG-27)."""
MIN_SUBSCRIPTION = 1_024
"""What a subscription counts at least, in toolkits: so there are at most 1,024 subscriptions."""
MAX_SUBSCRIBED_TOOLKITS = 1_024 * MIN_SUBSCRIPTION
"""Toolkits that all subscriptions compare: each keeps 140 bytes for each toolkit of its room."""
MAX_PARKED_NAMES = 1_024
"""Reserved names in rooms without participants; further ones are free at once."""
MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes that wait to be read; beyond it the connections with most of them are closed (4430)."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of what hosts ask persons about: their calls may wait for hours."""
_RETRY_AFTER_S = 1.0


@dataclass(slots=True, eq=False, weakref_slot=True)
class IdentityUsage:
    """What one identity uses."""

    _now: Callable[[], float] = monotonic
    work: RateLimiter = field(default_factory=lambda: RateLimiter(MAX_WORK_S, WINDOW_S))
    """Seconds that the server worked on its requests, without calls (PROTOCOL.md, REG-20)."""
    changes: RateLimiter = field(default_factory=lambda: RateLimiter(MAX_CHANGES, WINDOW_S))
    """Changes of its toolkits, attributes and offers (REG-19)."""
    manifest_bytes: int = 0
    """Bytes of its manifests (REG-27)."""
    waiting_requests: int = 0
    """Its requests in slices that have not ended (REG-20)."""
    waiting_bytes: int = 0
    """Bytes of these requests (REG-27)."""
    subscribed: int = 0
    """What its subscriptions count, in toolkits (EVENT-5)."""
    parked_names: int = 0
    """Its reserved names in rooms without participants (REG-18)."""
    held_bytes: int = 0
    """Bytes of what its hosts ask persons about (PROTOCOL.md, HOLD-9)."""
    unread_bytes: int = 0
    """Bytes that wait until its connections read them (CONN-14)."""

    def charge(self, seconds: float) -> None:
        """Count the time that a request took."""
        self.work.exceeded(self._now(), seconds)

    def check_work(self) -> None:
        """Refuse a request if earlier ones took too much time. Raises QuotaExceeded."""
        now = self._now()
        if self.work.exceeded(now, 0.0):
            retry_after_s = self.work.retry_after_s(now)
            message = "requests take too much time of the server: send fewer of them"
            raise QuotaExceeded(message, retry_after_s=retry_after_s)

    def can_wait(self, size: int) -> bool:
        """Whether one more request of this size may wait."""
        fits = self.waiting_bytes + size <= MAX_WAITING_BYTES
        return fits and self.waiting_requests < MAX_WAITING_REQUESTS

    def add_waiting(self, requests: int, size: int) -> None:
        """Count requests that wait, or, below zero, that do not wait any more."""
        self.waiting_requests += requests
        self.waiting_bytes += size

    def subscribe(self, before: int, toolkits: int) -> int:
        """Count a subscription in place of another one.

        Args:
            before: What `subscribe` returned for the other one; 0 if there is none.
            toolkits: How many toolkits it compares.

        Returns:
            What it counts, which is to be subtracted from `subscribed` at its end.

        Raises:
            QuotaExceeded: The identity has too many.
        """
        size = max(MIN_SUBSCRIPTION, toolkits)
        if self.subscribed - before + size > MAX_SUBSCRIBED_TOOLKITS:
            message = "one identity has too many subscriptions: end those that it does not need"
            raise QuotaExceeded(message, retry_after_s=_RETRY_AFTER_S)
        self.subscribed += size - before
        return size


class IdentityUsages:
    """The usage of each identity at one server."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._usages: WeakValueDictionary[Hashable, IdentityUsage] = WeakValueDictionary()
        self._left: dict[Hashable, tuple[float, IdentityUsage]] = {}
        """Of identities that had a connection lately, until when, in the order of these times."""

    def __len__(self) -> int:
        """Return how many identities are counted."""
        return len(self._usages)

    def of(self, identity: Hashable) -> IdentityUsage:
        """Return the usage of an identity; it lasts while it is referred to."""
        now = self._now()
        while self._left:
            oldest = next(iter(self._left))
            if self._left[oldest][0] > now:
                break
            del self._left[oldest]
        usage = self._usages.get(identity)
        if usage is None:
            usage = self._usages[identity] = IdentityUsage(self._now)
        return usage

    def left(self, identity: Hashable) -> None:
        """Keep the usage for one window after a connection of the identity has ended."""
        usage = self.of(identity)
        self._left.pop(identity, None)
        self._usages.pop(identity, None)
        self._usages[identity] = usage  # one object is the key of both
        self._left[identity] = self._now() + WINDOW_S, usage
