"""How many calls wait for persons, and how long those waited that do no more: for the metrics.

Those of the hosts of one server. The rules that people have granted wait for nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import inf
from typing import get_args

from toolbus_server.calls.call_state import CallHold, HoldOutcome

__all__ = ["HoldStatistics", "Waits"]

_BOUNDS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 14_400.0, inf)
_OUTCOMES = [outcome for outcome in get_args(HoldOutcome) if outcome not in ("open", "taken_back")]


class Waits:
    """The waits that ended in one way, as a histogram."""

    def __init__(self) -> None:
        self.total_s = 0.0
        """How long they lasted together."""
        self._counts = [0] * len(_BOUNDS_S)

    def add(self, seconds: float) -> None:
        """Count a wait."""
        self.total_s += seconds
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Return the bounds in seconds, and how many waits were not longer."""
        return list(zip(_BOUNDS_S, accumulate(self._counts), strict=True))


class HoldStatistics:
    """The holds of one server."""

    def __init__(self) -> None:
        self.open = 0
        """How many there are now."""
        self.waits: dict[str, Waits] = {outcome: Waits() for outcome in _OUTCOMES}
        """Those that have ended, by their outcome."""

    def begin(self, hold: CallHold) -> None:
        """Count a hold that begins."""
        if hold.kind != "granted":
            self.open += 1

    def end(self, hold: CallHold) -> None:
        """Count one that has ended."""
        if hold.kind != "granted":
            self.open -= 1
            self.waits[hold.outcome].add(hold.settled_at - hold.opened_at)
