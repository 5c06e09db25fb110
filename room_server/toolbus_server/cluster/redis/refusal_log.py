"""Logs the scripts that Redis refuses: when that begins, when it ends, and a count each minute."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from toolbus.bounded_logging import bounded_logger

__all__ = ["REPEAT_S", "RefusalLog"]

REPEAT_S = 60.0
"""The shortest time between two lines about one script that is still refused."""
_MAX_TARGETS = 1_000
"""Limit of the keys that are remembered for one script."""
_logger = bounded_logger(__name__)


@dataclass(slots=True)
class _Refused:
    """A script that is refused for some keys."""

    targets: set[Hashable] = field(default_factory=set)
    count: int = 0
    next_line_at: float = float("-inf")
    is_logged: bool = False


class RefusalLog:
    """The refusals of one node.

    Args:
        now: Returns the time in seconds, from any start.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refused: dict[str, _Refused] = {}

    def refused(self, script: str, target: Hashable, reason: str) -> None:
        """Record that Redis refused a script for some keys."""
        state = self._refused.setdefault(script, _Refused())
        state.count += 1
        if len(state.targets) < _MAX_TARGETS:
            state.targets.add(target)
        if self._now() < state.next_line_at:
            return
        state.next_line_at, state.is_logged = self._now() + REPEAT_S, True
        if state.count == 1:
            _logger.error("Redis refuses the script %s: %s", script, reason)
        else:
            message = "Redis still refuses the script %s, %d times until now: %s"
            _logger.error(message, script, state.count, reason)

    def accepted(self, script: str, target: Hashable) -> None:
        """Record that Redis ran a script; the end of a refusal is logged."""
        state = self._refused.get(script)
        if state is None:
            return
        state.targets.discard(target)
        if state.targets:
            return
        if state.is_logged:
            message = "Redis runs the script %s again, after %d refusals"
            _logger.warning(message, script, state.count)
        state.count, state.is_logged = 0, False
