"""What `toolbus watch` shows: rates, percentiles and errors of calls; who and what is in the room.

Pure: it uses no room, terminal or clock; the caller passes the time. Memory is bounded even if
names are untrusted: `MAX_ROWS` rows with `MAX_DURATIONS` durations each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from toolbus.room.calls import CallReport, EndedCall, WaitingCall
from toolbus.room.events import RoomEvent
from toolbus.room.participants import ParticipantInfo
from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo

__all__ = [
    "MAX_DURATIONS",
    "MAX_ROWS",
    "WINDOW_S",
    "CallRates",
    "RateRow",
    "Roster",
    "SeenError",
    "SeenWait",
    "Superseded",
]

WINDOW_S = 10.0
"""Length in seconds of the sliding window for rates and percentiles."""
MAX_ROWS = 200
"""The number of tools with their own row; all others are counted together."""
MAX_DURATIONS = 2_000
"""Of each row: they are sorted for each picture."""
_MAX_ERRORS = 200
"""All calls of a busy room may fail, for as long as it is watched."""
_STEP_S = 0.1
"""Counts within this time are merged."""


@dataclass(frozen=True, slots=True)
class SeenError:
    """A call that ended with an error, and when its event was received."""

    call: EndedCall
    at: float


class SeenWait(NamedTuple):
    """A call that waits for a person, or did, and when its event was received."""

    call: WaitingCall
    at: float


@dataclass(frozen=True, slots=True)
class RateRow:
    """The statistics of one tool within the window."""

    toolkit: str
    """Empty for the row of all tools without their own row."""
    tool: str
    calls_per_s: float
    """Counts calls that ended."""
    failed_per_s: float
    p50_s: float | None
    """Median duration of calls that reached a host, without the time in which they waited for
    persons; None if there were none."""
    p99_s: float | None
    """The 99th percentile of the same durations."""


@dataclass(slots=True)
class _Row:
    counts: deque[list[float]] = field(default_factory=deque)
    """Time, number of calls that ended, number of those that failed."""
    durations: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MAX_DURATIONS)
    )
    """Time of the end, and duration."""

    def count(self, now: float, ended: float, failed: float) -> None:
        if not self.counts or now - self.counts[-1][0] >= _STEP_S:
            self.counts.append([now, 0.0, 0.0])
        self.counts[-1][1] += ended
        self.counts[-1][2] += failed

    def drop_old(self, now: float) -> bool:
        """Drop what is older than the window; return whether calls are left."""
        oldest = now - WINDOW_S
        while self.counts and self.counts[0][0] <= oldest:
            self.counts.popleft()
        while self.durations and self.durations[0][0] <= oldest:
            self.durations.popleft()
        return bool(self.counts)

    def row(self, toolkit: str, tool: str, seconds: float) -> RateRow:
        took = sorted(duration for _, duration in self.durations)
        return RateRow(
            toolkit,
            tool,
            sum(bucket[1] for bucket in self.counts) / seconds,
            sum(bucket[2] for bucket in self.counts) / seconds,
            _percentile(took, 0.50),
            _percentile(took, 0.99),
        )


class CallRates:
    """Aggregates the events of the call monitor.

    Args:
        began_at: When watching began, by the clock whose times are given later.
    """

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._rows: dict[tuple[str, str], _Row] = {}
        self._others = _Row()
        self._all = _Row()
        self._new_errors: deque[SeenError] = deque(maxlen=_MAX_ERRORS)
        self.errors: deque[SeenError] = deque(maxlen=_MAX_ERRORS)
        """The last errors, the newest at the end."""
        self.in_flight: int | None = None
        """Calls that have not ended; None until the first event."""
        self.held: int = 0
        """Calls that wait for a person."""
        self.waiting: list[SeenWait] = []
        """The oldest of these."""
        self._settled: deque[SeenWait] = deque(maxlen=_MAX_ERRORS)
        self._new_settled: deque[SeenWait] = deque(maxlen=_MAX_ERRORS)
        self.started: int = 0
        """Calls that started since the last `take_counts`."""
        self.ended: int = 0
        """Calls that ended since then."""
        self.failed: int = 0
        """Those of them that ended with an error."""
        self.has_gap: bool = False
        """Whether events may have been lost since then."""

    def add(self, event: CallReport, now: float) -> None:
        """Add one event of the call monitor."""
        self.in_flight, self.held = event.in_flight, event.held
        self.waiting = [SeenWait(call, now) for call in event.waiting if call.is_open]
        settled = [SeenWait(call, now) for call in event.waiting if not call.is_open]
        self._settled.extend(settled)
        self._new_settled.extend(settled)
        self.started += event.started
        self.ended += event.ended
        self.failed += event.failed
        self.has_gap = self.has_gap or event.has_gap
        self._all.drop_old(now)
        if event.ended:
            self._all.count(now, event.ended, event.failed)
        bad = [call for call in event.calls if call.code is not None]
        good = [call for call in event.calls if call.code is None]
        self._distribute(good, event.ended - event.failed, now)
        self._distribute(bad, event.failed, now, failed=True)
        for call in bad:
            self.errors.append(SeenError(call, now))
            self._new_errors.append(SeenError(call, now))

    def take_errors(self) -> list[SeenError]:
        """Return and forget the errors since the last call of this method, at most 200."""
        taken = list(self._new_errors)
        self._new_errors.clear()
        return taken

    def take_settled(self) -> list[SeenWait]:
        """Return and forget the waits that ended since the last call of this method."""
        taken = list(self._new_settled)
        self._new_settled.clear()
        return taken

    def settled(self, now: float) -> list[SeenWait]:
        """Return the waits that ended within the window."""
        while self._settled and self._settled[0].at <= now - WINDOW_S:
            self._settled.popleft()
        return list(self._settled)

    def take_counts(self) -> tuple[int, int, int, bool]:
        """Return `started`, `ended`, `failed` and `has_gap`, and reset them."""
        taken = (self.started, self.ended, self.failed, self.has_gap)
        self.started = self.ended = self.failed = 0
        self.has_gap = False
        return taken

    def total(self, now: float) -> RateRow:
        """Return the row of all calls of the room; its percentiles are None."""
        self._all.drop_old(now)
        return self._all.row("", "", self._seconds(now))

    def rows(self, now: float) -> list[RateRow]:
        """Return a row for each tool called within the window, the busiest first."""
        seconds = self._seconds(now)
        every = {**self._rows, ("", ""): self._others}
        found = [
            row.row(toolkit, tool, seconds)
            for (toolkit, tool), row in every.items()
            if row.drop_old(now)
        ]
        return sorted(found, key=lambda row: (-row.calls_per_s, row.toolkit, row.tool))

    def _seconds(self, now: float) -> float:
        return min(WINDOW_S, max(_STEP_S, now - self._began_at))

    def _distribute(
        self, calls: Iterable[EndedCall], ended: int, now: float, *, failed: bool = False
    ) -> None:
        """Distribute a count over the rows of the listed calls, which may be fewer."""
        calls = list(calls)
        if not calls:
            if ended > 0:
                self._others.drop_old(now)
                self._others.count(now, ended, ended * failed)
            return
        weight = max(ended, 0) / len(calls)
        for call in calls:
            row = self._row_of(call, now)
            row.count(now, weight, weight * failed)
            if call.host_id is not None:
                row.durations.append((now, call.duration_s - call.held_s))

    def _row_of(self, call: EndedCall, now: float) -> _Row:
        key = (call.toolkit, call.tool)
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            self._rows = {key: row for key, row in self._rows.items() if row.drop_old(now)}
        if key in self._rows or len(self._rows) < MAX_ROWS:
            row = self._rows.setdefault(key, _Row())
        else:
            row = self._others
        row.drop_old(now)
        return row


def _percentile(ordered: list[float], share: float) -> float | None:
    """Return the percentile by nearest rank."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None


# The room: kept current from one list and the events after it


class Superseded(NamedTuple):
    """A definition that took over from another one."""

    toolkit: ToolkitInfo
    before: DefinitionInfo


class Roster:
    """Participants and toolkits, as far as the token permits to see them."""

    def __init__(self) -> None:
        self._participants: dict[str, str] | None = None
        """Names by connection id; None without permission."""
        self._toolkits: dict[tuple[str, str, bool], int] | None = None
        """Number of hosts by name, owner and visibility; None without permission."""
        self._superseded: list[Superseded] = []

    def set_participants(self, listed: Iterable[ParticipantInfo] | None) -> None:
        """Replace all participants; None without permission."""
        self._participants = (
            None if listed is None else {info.id: info.full_name for info in listed}
        )

    def set_toolkits(self, listed: Iterable[ToolkitInfo] | None) -> None:
        """Replace all toolkits; None without permission."""
        self._toolkits = None if listed is None else {_key(info): info.hosts for info in listed}

    def apply(self, event: RoomEvent) -> None:
        """Apply an event: a participant or toolkit was added, changed or removed."""
        participant, toolkit = event.participant, event.toolkit
        if participant is not None and self._participants is not None:
            if event.name == "participant_left":
                self._participants.pop(participant.id, None)
            else:
                self._participants[participant.id] = participant.full_name
        if toolkit is not None and event.superseded is not None:
            if len(self._superseded) < 100:
                self._superseded.append(Superseded(toolkit, event.superseded))
        if toolkit is not None and self._toolkits is not None:
            if event.name == "toolkit_removed":
                self._toolkits.pop(_key(toolkit), None)
            else:
                self._toolkits[_key(toolkit)] = toolkit.hosts

    def take_superseded(self) -> list[Superseded]:
        """Return the definitions that took over since the last time."""
        taken, self._superseded = self._superseded, []
        return taken

    def participants(self) -> list[tuple[str, int]] | None:
        """Return names with the number of their connections; None without permission."""
        if self._participants is None:
            return None
        return sorted(Counter(self._participants.values()).items())

    def toolkits(self) -> list[tuple[str, str, int]] | None:
        """Return toolkits with owner and number of hosts; None without permission."""
        if self._toolkits is None:
            return None
        return sorted((name, owner, hosts) for (name, owner, _), hosts in self._toolkits.items())


def _key(toolkit: ToolkitInfo) -> tuple[str, str, bool]:
    return toolkit.name, toolkit.full_owner, toolkit.public
