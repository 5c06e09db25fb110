"""Renders a snapshot of a room for `toolbus watch`: as a table, plain lines or JSON.

Names, codes and call ids are untrusted text: control characters and line ends are escaped, and
markup is not interpreted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from toolbus.cli.columns import counted, definition_text, wrapped
from toolbus.cli.watched_room import RateRow, SeenError, SeenWait, Superseded
from toolbus.room.calls import WaitingCall
from toolbus.untrusted_text import SHOWN_CHARS, one_line

__all__ = [
    "RoomSnapshot",
    "as_json",
    "as_lines",
    "as_screen",
    "roster_lines",
    "superseded_lines",
]

_NAMES = 20
_SHOWN_ERRORS = 5
_SHOWN_WAITS = 5
_RATES = 42
"""The width of the columns of numbers."""
_OTHER_LINES = 2
"""Lines beside texts and rows: table header, cursor."""


@dataclass(frozen=True, slots=True)
class RoomSnapshot:
    """A room at one point in time."""

    at: float
    """Seconds since the epoch."""
    room: str
    connected: bool
    participants: Sequence[tuple[str, int]] | None
    """Names with the number of their connections; None without permission."""
    toolkits: Sequence[tuple[str, str, int]] | None
    """Names with owner and number of hosts; None without permission."""
    in_flight: int | None
    started: int
    """Since the previous snapshot, as `ended`, `failed` and `has_gap`."""
    ended: int
    failed: int
    has_gap: bool
    total: RateRow
    rows: Sequence[RateRow]
    errors: Sequence[tuple[SeenError, float]]
    """The last errors with their age in seconds, the newest last."""
    new_errors: Sequence[SeenError]
    """The errors since the previous snapshot."""
    superseded: Sequence[Superseded] = ()
    """The definitions that took over since the previous snapshot."""
    held: int = 0
    """Calls that wait for a person."""
    waiting: Sequence[tuple[SeenWait, float]] = ()
    """The oldest of these, with the seconds since they were reported."""
    settled: Sequence[SeenWait] = ()
    """The waits that ended within the window."""
    new_settled: Sequence[SeenWait] = ()
    """Those that ended since the previous snapshot."""


# JSON


def as_json(snapshot: RoomSnapshot) -> dict[str, Any]:
    """Return a snapshot as one JSON object; rates cover the last 10 s, times are in seconds."""
    participants, toolkits = snapshot.participants, snapshot.toolkits
    return {
        "at": round(snapshot.at, 3),
        "room": snapshot.room,
        "connected": snapshot.connected,
        "participants": participants
        and [{"name": name, "connections": n} for name, n in participants],
        "toolkits": toolkits
        and [{"name": name, "owner": owner, "hosts": n} for name, owner, n in toolkits],
        "in_flight": snapshot.in_flight,
        "held": snapshot.held,
        "started": snapshot.started,
        "ended": snapshot.ended,
        "failed": snapshot.failed,
        "has_gap": snapshot.has_gap,
        "calls_per_s": round(snapshot.total.calls_per_s, 3),
        "failed_per_s": round(snapshot.total.failed_per_s, 3),
        "tools": [_json_row(row) for row in snapshot.rows],
        "waiting": [
            asdict(wait.call) | {"held_s": round(wait.call.held_s + since_s, 3)}
            for wait, since_s in snapshot.waiting
        ],
        "settled": [asdict(wait.call) for wait in snapshot.new_settled],
        "errors": [asdict(error.call) for error in snapshot.new_errors],
        "superseded": [
            {
                "toolkit": toolkit.name,
                "owner": toolkit.full_owner,
                "from": {"version": before.version, "digest": before.digest},
                "to": {"version": toolkit.version, "digest": toolkit.digest},
            }
            for toolkit, before in snapshot.superseded
        ],
    }


def _json_row(row: RateRow) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(row).items() if name not in {"toolkit", "tool"}}
    rounded = {name: value and round(value, 6) for name, value in facts.items()}
    return {"toolkit": row.toolkit or None, "tool": row.tool or None, **rounded}


# Plain lines


def as_lines(snapshot: RoomSnapshot) -> Iterator[str]:
    """Return a snapshot as lines that begin with the time, for a pipe or a file."""
    clock = _clock(snapshot)
    if snapshot.has_gap:
        yield f"{clock} some calls may be missing"
    summary = _summary(snapshot)
    if not snapshot.connected:
        summary = f"{summary}  connection lost"
    yield f"{clock} {summary}"
    for row in snapshot.rows:
        yield f"{clock} {_rate_text(row)}"
    for text in _wait_lines(snapshot, snapshot.new_settled):
        yield f"{clock} {text}"
    for error in snapshot.new_errors:
        text = _error_text(error)
        if error.call.trace_id:
            text = f"{text}  trace {_escaped(error.call.trace_id)}"
        yield f"{clock} error {text}"
    yield from superseded_lines(snapshot)


def roster_lines(snapshot: RoomSnapshot) -> Iterator[str]:
    """Return one line with the participants and one with the toolkits."""
    for text in (_participants_text(snapshot), _toolkits_text(snapshot)):
        if text is not None:
            yield f"{_clock(snapshot)} {text}"


def superseded_lines(snapshot: RoomSnapshot) -> Iterator[str]:
    """Return a line for each definition that took over."""
    for toolkit, before in snapshot.superseded:
        now = definition_text(toolkit)
        yield (
            f"{_clock(snapshot)} toolkit {_escaped(toolkit.name)}: {now} supersedes "
            f"{definition_text(before)}"
        )


def _clock(snapshot: RoomSnapshot) -> str:
    return time.strftime("%H:%M:%S", time.localtime(snapshot.at))


def _summary(snapshot: RoomSnapshot) -> str:
    in_flight = "-" if snapshot.in_flight is None else snapshot.in_flight
    rates = f"{snapshot.total.calls_per_s:.1f} calls/s  {snapshot.total.failed_per_s:.1f} errors/s"
    waiting = f"waiting for a person {snapshot.held}  " if snapshot.held else ""
    return f"in flight {in_flight}  {waiting}{rates}"


def _participants_text(snapshot: RoomSnapshot) -> str | None:
    listed = snapshot.participants
    if listed is None:
        return None
    names = (f"{_escaped(name)} x{n}" if n > 1 else _escaped(name) for name, n in listed)
    return f"participants {sum(n for _, n in listed)}: {_joined(names)}"


def _toolkits_text(snapshot: RoomSnapshot) -> str | None:
    if snapshot.toolkits is None:
        return None
    names = (f"{_escaped(name)} ({counted(hosts, 'host')})" for name, _, hosts in snapshot.toolkits)
    return f"toolkits {len(snapshot.toolkits)}: {_joined(names)}"


def _joined(names: Iterable[str]) -> str:
    shown = list(names)
    if len(shown) > _NAMES:
        shown[_NAMES:] = [f"{len(shown) - _NAMES} more"]
    return ", ".join(shown)


# A terminal


def as_screen(snapshot: RoomSnapshot, *, width: int, height: int) -> Group:
    """Return a snapshot for a terminal of this size; long lines are wrapped."""
    state = _clock(snapshot) if snapshot.connected else "connection lost, reconnecting"
    head = f"room {_escaped(snapshot.room)}  {_summary(snapshot)}  {state}"
    heads = (head, _participants_text(snapshot), _toolkits_text(snapshot))
    above = [_line(text, width) for text in heads if text]
    texts = (
        *_wait_lines(snapshot, snapshot.settled[-_SHOWN_WAITS:]),
        *_error_lines(snapshot.errors[-_SHOWN_ERRORS:]),
    )
    below = [_line(text, width) for text in texts]
    used = sum(line.plain.count("\n") + 1 for line in (*above, *below))
    max_rows = max(3, height - used - _OTHER_LINES)
    return Group(*above, _rates(snapshot.rows, max_rows, width), *below)


def _line(text: str, width: int) -> Text:
    return Text("\n".join(wrapped(text, width)), overflow="fold")


def _rates(rows: Sequence[RateRow], max_rows: int, width: int) -> Table | Group:
    """Return a table; where it would cut names, the lines that a pipe gets."""
    longest = max((len(_method(row.toolkit, row.tool)) for row in rows), default=0)
    if longest + _RATES > width:
        return Group(*(_line(_rate_text(row), width) for row in rows[:max_rows]))
    return _rate_table(rows, max_rows)


def _rate_table(rows: Sequence[RateRow], max_rows: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tool", no_wrap=True)
    for name in ("calls/s", "errors/s", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = rows
    if len(rows) > max_rows:
        shown = rows[: max_rows - 1]
    for row in shown:
        cells = map(Text, (_method(row.toolkit, row.tool), *_rate_cells(row)))
        table.add_row(*cells, style="red" if row.failed_per_s else "")
    if len(shown) < len(rows):
        table.add_row(Text(f"{len(rows) - len(shown)} more"))
    return table


def _wait_lines(snapshot: RoomSnapshot, settled: Iterable[SeenWait]) -> Iterator[str]:
    """Return a line for each call that waits for a person, the oldest first, and that did."""
    shown = snapshot.waiting[:_SHOWN_WAITS]
    for wait, since_s in shown:
        text = f"waits for a person, {_duration(wait.call.held_s + since_s)} now"
        yield _wait_text(wait.call, text)
    if snapshot.held > len(shown):
        yield f"{snapshot.held - len(shown)} more wait for a person"
    for wait in settled:
        text = f"{_escaped(wait.call.outcome)} after {_duration(wait.call.held_s)}"
        yield _wait_text(wait.call, text)


def _wait_text(call: WaitingCall, text: str) -> str:
    who = f"{_escaped(call.caller)} to {_escaped(call.host)}"
    if call.caller == call.host:  # it asks before it makes the call
        who = _escaped(call.caller)
    return f"{_method(call.toolkit, call.tool)}  {text}  {who}"


def _error_lines(errors: Sequence[tuple[SeenError, float]]) -> Iterator[str]:
    if errors:
        yield "last errors"
    for error, age_s in reversed(errors):
        yield f"  {_error_text(error)}  {age_s:.0f} s ago"
        if error.call.trace_id is not None:
            yield f"    trace {_escaped(error.call.trace_id)}"


# Cells


def _rate_text(row: RateRow) -> str:
    calls, errors, p50, p99 = _rate_cells(row)
    rates = f"{calls} calls/s  {errors} errors/s  p50 {p50}  p99 {p99}"
    return f"{_method(row.toolkit, row.tool)}  {rates}"


def _rate_cells(row: RateRow) -> tuple[str, str, str, str]:
    p50, p99 = (_duration(duration_s) for duration_s in (row.p50_s, row.p99_s))
    return f"{row.calls_per_s:.1f}", f"{row.failed_per_s:.1f}", p50, p99


def _error_text(error: SeenError) -> str:
    call = error.call
    host = _escaped(call.host or "no host")
    method, code = _method(call.toolkit, call.tool), _escaped(call.code or "")
    return f"{method}  {code}  executed {call.executed}  {_escaped(call.caller)} to {host}"


def _method(toolkit: str, tool: str) -> str:
    return f"{_escaped(toolkit)}.{_escaped(tool)}" if toolkit or tool else "(others)"


def _escaped(text: str) -> str:
    return one_line(text, SHOWN_CHARS)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s"
