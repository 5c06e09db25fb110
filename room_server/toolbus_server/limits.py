"""What one server grants one connection, and a meter for what may be done only so often."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolbus.wire import MAX_DEPTH, MAX_FRAME_BYTES, MAX_HEADER_BYTES

__all__ = ["Limits", "Meter"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that the server enforces; participants read them in their welcome."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """One websocket message."""
    max_header_bytes: int = MAX_HEADER_BYTES
    """All of a frame but its opaque parts."""
    max_depth: int = MAX_DEPTH
    """Arrays and maps within each other."""
    max_calls: int = 4_096
    """Calls that one participant may have in flight; one more is `quota_exceeded`."""
    max_toolkits: int = 1_024
    """Toolkits that one participant may host; one more is `quota_exceeded`."""
    max_room_toolkits: int = 20_000
    """Toolkits that one room may have, with kept names; one more is `quota_exceeded`."""
    max_streams: int = 512
    """Calls with streams that one participant may have in flight; one more is `quota_exceeded`."""
    max_hops: int = 16
    """Calls within calls; one deeper is `loop_detected`."""
    call_timeout_ms: int = 60_000
    """The deadline of a call that names none."""
    stream_idle_ms: int = 30_000
    """How long the host of a stream may be silent, unless its call says so."""
    reservation_ms: int = 30_000
    """How long the name of a toolkit whose last host is lost stays its owner's."""

    def to_wire(self) -> dict[str, Any]:
        """Return them as they stand in a welcome."""
        return asdict(self)


class Meter:
    """Counts events and says when they come too often. Knows no clock: time is handed in.

    Args:
        allowed: How many events may come within one window, or how much of anything.
        window_s: How long a window lasts.
    """

    __slots__ = ("_allowed", "_count", "_window_ends", "_window_s")

    def __init__(self, allowed: float, window_s: float) -> None:
        self._allowed = allowed
        self._window_s = window_s
        self._window_ends = 0.0
        self._count = 0.0

    def exceeded(self, now: float, amount: float = 1) -> bool:
        """Count one event, or another amount; return whether it is too much for its window."""
        if now >= self._window_ends:
            self._window_ends = now + self._window_s
            self._count = 0.0
        self._count += amount
        return self._count > self._allowed

    def pause_s(self, now: float) -> float:
        """Say how long it is until events may come again."""
        return max(0.0, self._window_ends - now)
