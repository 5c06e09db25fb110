"""The time that a node is without Redis: two lines in the log, and a number for the metrics."""

from __future__ import annotations

from collections.abc import Callable

from toolbus.bounded_logging import bounded_logger

__all__ = ["RedisOutage"]

_logger = bounded_logger(__name__)


class RedisOutage:
    """Whether a node is without Redis, and since when.

    Args:
        now: The loop's clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began_at: float | None = None

    def failed(self, reason: str) -> None:
        """Record a lost connection or a failed attempt; the first of an outage is logged."""
        if self._began_at is None:
            self._began_at = self._now()
            _logger.warning("Redis is unavailable: %s", reason)
        else:
            _logger.info("Redis is still unavailable: %s", reason)

    def ended(self) -> None:
        """Record that the node has joined the other nodes."""
        if self._began_at is not None:
            _logger.warning("Redis is available again, after %.1f s", self.lasts_s)
            self._began_at = None

    @property
    def lasts_s(self) -> float:
        """Seconds since the outage began; 0 without one."""
        return 0.0 if self._began_at is None else self._now() - self._began_at
