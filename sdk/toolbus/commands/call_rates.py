"""From news of calls to the rows of a table: rates, percentiles and the last errors.

Pure: it knows neither a room nor a terminal nor a clock; times are given to it. What it keeps is
bounded, whatever strangers call their tools: `MAX_ROWS` rows of `MAX_DURATIONS` durations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

from toolbus.call_news import CallNews, EndedCall

__all__ = ["MAX_DURATIONS", "MAX_ROWS", "WINDOW_S", "CallRates", "RateRow", "SeenError"]

WINDOW_S = 10.0
"""What rates and percentiles are of."""
MAX_ROWS = 200
"""Tools that have a row of their own; the rest is counted as others."""
MAX_DURATIONS = 2_000
"""Of one row: the last ones."""
_MAX_ERRORS = 200
# Counts that come closer to each other than this are kept as one.
_STEP_S = 0.1
_LEAST_S = 0.1


@dataclass(frozen=True, slots=True)
class SeenError:
    """A call that ended with an error, and when that was told."""

    call: EndedCall
    at: float


@dataclass(frozen=True, slots=True)
class RateRow:
    """What the calls of one tool were like within the window."""

    toolkit: str
    """Empty for the calls that have no row of their own."""
    tool: str
    calls_per_s: float
    """Of calls that ended."""
    failed_per_s: float
    p50_s: float | None
    """Half of the calls that reached a host took no longer; None where there were none."""
    p99_s: float | None
    """The same for 99 of 100."""


@dataclass(slots=True)
class _Row:
    counts: deque[list[float]] = field(default_factory=deque)
    """When, how many ended, how many of them failed."""
    durations: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MAX_DURATIONS)
    )
    """When, and how long."""

    def count(self, now: float, ended: float, failed: float) -> None:
        if not self.counts or now - self.counts[-1][0] >= _STEP_S:
            self.counts.append([now, 0.0, 0.0])
        self.counts[-1][1] += ended
        self.counts[-1][2] += failed

    def is_idle(self, now: float) -> bool:
        """Forget what is older than the window; return whether nothing is left."""
        oldest = now - WINDOW_S
        while self.counts and self.counts[0][0] <= oldest:
            self.counts.popleft()
        while self.durations and self.durations[0][0] <= oldest:
            self.durations.popleft()
        return not self.counts

    def row(self, toolkit: str, tool: str, seconds: float) -> RateRow:
        took = sorted(duration for _, duration in self.durations)
        return RateRow(
            toolkit,
            tool,
            sum(each[1] for each in self.counts) / seconds,
            sum(each[2] for each in self.counts) / seconds,
            _percentile(took, 0.50),
            _percentile(took, 0.99),
        )


class CallRates:
    """What the news of calls comes to.

    Args:
        began_at: When watching began, by the clock whose times are given later.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._rows: dict[tuple[str, str], _Row] = {}
        self._others = _Row()
        self._all = _Row()
        self._fresh: deque[SeenError] = deque(maxlen=_MAX_ERRORS)
        self.errors: deque[SeenError] = deque(maxlen=_MAX_ERRORS)
        """The last ones, the newest at the end."""
        self.in_flight: int | None = None
        """Calls that have not ended; None until that was told."""
        self.started: int = 0
        """Calls that came, since the last `take_counts`."""
        self.ended: int = 0
        """Calls that ended, since then."""
        self.failed: int = 0
        """Of those, the ones with an error."""
        self.has_gap: bool = False
        """Whether there may have been calls since then of which nothing was told."""

    def note(self, news: CallNews, now: float) -> None:
        """Take notice of what has become of calls."""
        self.in_flight = news.in_flight
        self.started += news.started
        self.ended += news.ended
        self.failed += news.failed
        self.has_gap = self.has_gap or news.has_gap
        self._all.is_idle(now)
        if news.ended:
            self._all.count(now, news.ended, news.failed)
        bad = [call for call in news.calls if call.code is not None]
        good = [call for call in news.calls if call.code is None]
        self._share(good, news.ended - news.failed, now)
        self._share(bad, news.failed, now, failed=True)
        for call in bad:
            self.errors.append(SeenError(call, now))
            self._fresh.append(SeenError(call, now))

    def take_errors(self) -> list[SeenError]:
        """Give the errors that came since this was asked last, at most 200, and forget them."""
        taken = list(self._fresh)
        self._fresh.clear()
        return taken

    def take_counts(self) -> tuple[int, int, int, bool]:
        """Give `started`, `ended`, `failed` and `has_gap`, and begin to count anew."""
        taken = (self.started, self.ended, self.failed, self.has_gap)
        self.started = self.ended = self.failed = 0
        self.has_gap = False
        return taken

    def total(self, now: float) -> RateRow:
        """Say what all calls of the room come to; its percentiles are None."""
        self._all.is_idle(now)
        return self._all.row("", "", self._seconds(now))

    def rows(self, now: float) -> list[RateRow]:
        """Give a row for each tool that was called within the window, the busiest first."""
        return sorted(self._live(now), key=lambda row: (-row.calls_per_s, row.toolkit, row.tool))

    def _live(self, now: float) -> Iterator[RateRow]:
        seconds = self._seconds(now)
        for (toolkit, tool), row in self._rows.items():
            if not row.is_idle(now):
                yield row.row(toolkit, tool, seconds)
        if not self._others.is_idle(now):
            yield self._others.row("", "", seconds)

    def _seconds(self, now: float) -> float:
        return min(WINDOW_S, max(_LEAST_S, now - self._began_at))

    def _share(
        self, calls: Iterable[EndedCall], ended: int, now: float, *, failed: bool = False
    ) -> None:
        """Share a count out among the rows by the calls that are named, which may be fewer."""
        calls = list(calls)
        if not calls:
            if ended > 0:
                self._others.is_idle(now)
                self._others.count(now, ended, ended if failed else 0)
            return
        weight = max(ended, 0) / len(calls)
        for call in calls:
            row = self._row_of(call, now)
            row.count(now, weight, weight if failed else 0)
            if call.host_id is not None:
                row.durations.append((now, call.duration_s))

    def _row_of(self, call: EndedCall, now: float) -> _Row:
        key = (call.toolkit, call.tool)
        row = self._rows.get(key)
        if row is None and len(self._rows) >= MAX_ROWS:
            self._rows = {key: row for key, row in self._rows.items() if not row.is_idle(now)}
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                row = self._others
            else:
                row = self._rows[key] = _Row()
        row.is_idle(now)
        return row


def _percentile(ordered: list[float], share: float) -> float | None:
    """Find the value that this share of all does not exceed (nearest rank)."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None
