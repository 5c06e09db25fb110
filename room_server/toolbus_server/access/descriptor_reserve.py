"""Keeps a few file descriptors free: connections do not get the last ones of the process.

Key files, logs, name lookups and connections to Redis need descriptors too. It reads the limits of
the process; it opens and closes nothing.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable

from toolbus.bounded_logging import bounded_logger

__all__ = ["RESERVED_DESCRIPTORS", "DescriptorReserve", "raise_descriptor_limit"]

RESERVED_DESCRIPTORS = 32
"""Descriptors that no connection gets; half of all if the process may have fewer than 64."""
_LOG_INTERVAL_S = 60.0
"""The shortest time between two warnings."""
_REASON = "no_descriptors"
_logger = bounded_logger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, if the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # such as an unlimited hard limit on macOS
        _logger.info("the limit of open files stays %d: %s", soft, error)
        return soft
    return hard


class DescriptorReserve:
    """Decides which connections are dropped because descriptors are about to run out.

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
        self._refused[_REASON] += 1
        if self._now() >= self._next_warning_at:
            self._next_warning_at = self._now() + _LOG_INTERVAL_S
            _logger.warning(
                "new connections are dropped: nearly all of the %d file descriptors are in use; "
                "raise the limit of open files (ulimit -n, LimitNOFILE of systemd), or add servers",
                self._limit,
            )
        return True
