"""Logs refused connections: why, with which key id, from where; never the token.

Anyone who reaches the port can cause these lines. So each reason, key id and address has one a
minute, all together have 20, and what is left out is counted in the first line after that minute,
or when the server stops.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from toolbus.auth.jws import read_header
from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.bounded_logging import bounded_logger

__all__ = ["RefusedConnections"]

_logger = bounded_logger("toolbus_server.access.admission")
_WINDOW_S = 60.0
_MAX_LINES = 20
_MAX_SHOWN_CHARS = 64


class RefusedConnections:
    """The log of one server's refused connections, within a budget.

    Args:
        now: Returns monotonic seconds.
        level: The level of its lines.
    """

    def __init__(self, now: Callable[[], float], level: int = logging.WARNING) -> None:
        self._now = now
        self._level = level
        self._window_ends = float("-inf")
        self._logged: set[tuple[str, str, str]] = set()
        self._left_out: Counter[str] = Counter()
        """By reason, which is one of a closed set."""

    def refused(self, reason: str, token: str, address: str) -> None:
        """Log one refusal, unless there were too many or the same already.

        Args:
            reason: Why, as `toolbus_connections_refused_total` names it.
            token: What was sent; empty for nothing, or if it is not the reason.
            address: From where, in the form in which connections are counted.
        """
        if self._now() >= self._window_ends:
            self._begin_window()
        # The header is parsed for lines that are written, not for each token of a flood.
        if len(self._logged) < _MAX_LINES:
            key = reason, _shown_key_id(token), address[:_MAX_SHOWN_CHARS]
            if key not in self._logged:
                self._logged.add(key)
                _logger.log(self._level, "connection refused: %s (%sfrom %s)", *key)
                return
        self._left_out[reason] += 1

    def _begin_window(self) -> None:
        self._window_ends = self._now() + _WINDOW_S
        self._logged.clear()
        self.log_left_out()

    def log_left_out(self) -> None:
        """Log how many refusals were left out so far, if any were."""
        if self._left_out:
            counts = ", ".join(f"{reason} {count}" for reason, count in self._left_out.items())
            text = "further connections were refused, not logged one by one: %s"
            _logger.log(self._level, text, counts)
            self._left_out.clear()


def _shown_key_id(token: str) -> str:
    """Return the key id that a token names, for a line; it may be any text."""
    if not 0 < len(token) <= MAX_JWT_BYTES:
        return ""
    try:
        key_id = read_header(token).get("kid")
    except (ValueError, LookupError):
        return ""
    return f"kid {key_id[:_MAX_SHOWN_CHARS]!r}, " if isinstance(key_id, str) else ""
