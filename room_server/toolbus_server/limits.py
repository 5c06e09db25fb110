"""The limits of one connection to a server, and a rate limiter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolbus.errors import QuotaExceeded
from toolbus.wire import MAX_DEPTH, MAX_FRAME_BYTES, MAX_HEADER_BYTES

__all__ = ["Limits", "RateLimiter"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the server enforces; the welcome of a participant contains them."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """Bytes of one websocket message."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """Bytes of a frame without its opaque parts."""
    max_depth: int = MAX_DEPTH
    """Nesting of arrays and maps."""
    max_calls: int = 4_096
    """Calls that one participant may have in flight; one more is `quota_exceeded`."""
    max_toolkits: int = 1_024
    """Toolkits that one participant may host; one more is `quota_exceeded`."""
    max_room_toolkits: int = 20_000
    """Toolkits of one room, including reserved names; one more is `quota_exceeded`."""
    max_identity_toolkits: int = 5_000
    """Toolkits of one identity in a room, by all its connections, at all nodes, with its reserved
    names; one more is `quota_exceeded`. So one identity cannot fill a room."""
    max_streams: int = 512
    """Calls with streams that one participant may have in flight; one more is `quota_exceeded`."""
    max_hops: int = 16
    """Nesting of calls; one deeper is `loop_detected`."""
    call_timeout_ms: int = 60_000
    """The timeout of a call that has none of its own."""
    stream_idle_ms: int = 30_000
    """How long the host of a stream may be silent, unless its call sets `idle_ms`."""
    stream_unread_ms: int = 30_000
    """How long a host waits for a caller that takes nothing of what it could send."""
    reservation_ms: int = 30_000
    """How long the name of a toolkit stays reserved for its owner after its last host is lost."""

    def to_wire(self) -> dict[str, Any]:
        """Return the limits as the fields of a welcome."""
        return asdict(self)


class RateLimiter:
    """Limits how many events, or how much of anything, one time window may have.

    It has no clock: time is passed in.
    """

    __slots__ = ("_allowed", "_count", "_window_ends", "_window_s")

    def __init__(self, allowed: float, window_s: float) -> None:
        self._allowed = allowed
        self._window_s = window_s
        self._window_ends = 0.0
        self._count = 0.0

    def check(self, now: float, what: str) -> None:
        """Count one event. Raises QuotaExceeded, which names the events and the limit."""
        if self.exceeded(now):
            message = f"too many {what}: at most {self._allowed:,} within {self._window_s:g} s"
            raise QuotaExceeded(message, retry_after_s=self.retry_after_s(now))

    def exceeded(self, now: float, amount: float = 1) -> bool:
        """Count one event, or another amount; return whether the window exceeds its maximum."""
        if now >= self._window_ends:
            self._window_ends = now + self._window_s
            self._count = 0.0
        self._count += amount
        return self._count > self._allowed

    def retry_after_s(self, now: float) -> float:
        """Return the seconds until the next window begins."""
        return max(0.0, self._window_ends - now)
