"""What `toolbus watch` shows, from one look at a room: a table, plain lines or JSON.

Names, codes and call ids are strangers' words: control characters in them are shown, not obeyed,
markup is none, and no word makes a line of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from toolbus.commands.call_rates import RateRow, SeenError
from toolbus.exit_codes import printable

__all__ = ["Look", "as_json", "as_lines", "as_screen", "census_lines"]

_COLUMNS = ("tool", "calls/s", "errors/s", "p50", "p99")
_MAX_CHARS = 40
_MAX_NAMES = 20
_SHOWN_ERRORS = 5
# Beside the rows and the errors: who and what is there, the table's head, the cursor's line.
_OTHER_LINES = 5
_LEAST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Look:
    """A room at one moment."""

    at: float
    """Seconds since the epoch."""
    room: str
    connected: bool
    people: Sequence[tuple[str, int]] | None
    """Names with how many connections each has; None where that may not be known."""
    toolkits: Sequence[tuple[str, str, int]] | None
    """Names with owner and hosts."""
    in_flight: int | None
    started: int
    """Since the look before, as `ended`, `failed` and `has_gap`."""
    ended: int
    failed: int
    has_gap: bool
    total: RateRow
    rows: Sequence[RateRow]
    errors: Sequence[tuple[SeenError, float]]
    """The last ones with their age in seconds, the newest last."""
    fresh: Sequence[SeenError]
    """Those since the look before."""


# JSON


def as_json(look: Look) -> dict[str, Any]:
    """Return a look as one JSON object; rates are of the last 10 s, times in seconds."""
    people, toolkits = look.people, look.toolkits
    return {
        "at": round(look.at, 3),
        "room": look.room,
        "connected": look.connected,
        "participants": people and [{"name": name, "connections": n} for name, n in people],
        "toolkits": toolkits
        and [{"name": name, "owner": owner, "hosts": n} for name, owner, n in toolkits],
        "in_flight": look.in_flight,
        "started": look.started,
        "ended": look.ended,
        "failed": look.failed,
        "has_gap": look.has_gap,
        "calls_per_s": round(look.total.calls_per_s, 3),
        "failed_per_s": round(look.total.failed_per_s, 3),
        "tools": [_json_row(row) for row in look.rows],
        "errors": [asdict(error.call) for error in look.fresh],
    }


def _json_row(row: RateRow) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(row).items() if name not in {"toolkit", "tool"}}
    rounded = {name: None if value is None else round(value, 6) for name, value in facts.items()}
    return {"toolkit": row.toolkit or None, "tool": row.tool or None, **rounded}


# Plain lines


def as_lines(look: Look) -> Iterator[str]:
    """Give a look as lines that begin with the time, for a pipe or a file."""
    clock = _clock(look)
    if look.has_gap:
        yield f"{clock} calls may be missing here"
    state = "" if look.connected else "  connection lost"
    yield f"{clock} {_summary(look)}{state}"
    for row in look.rows:
        yield f"{clock} {_method(row.toolkit, row.tool)}  {_rates(row)}"
    for error in look.fresh:
        trace = f"  trace {error.call.trace_id}" if error.call.trace_id else ""
        yield f"{clock} error {_error_words(error)}{trace}"


def census_lines(look: Look) -> Iterator[str]:
    """Give who and what is there, each in one line."""
    for words in (_people_words(look), _toolkit_words(look)):
        if words is not None:
            yield f"{_clock(look)} {words}"


def _clock(look: Look) -> str:
    return time.strftime("%H:%M:%S", time.localtime(look.at))


def _summary(look: Look) -> str:
    in_flight = "-" if look.in_flight is None else look.in_flight
    rates = f"{look.total.calls_per_s:.1f} calls/s  {look.total.failed_per_s:.1f} errors/s"
    return f"in flight {in_flight}  {rates}"


def _rates(row: RateRow) -> str:
    calls, errors, p50, p99 = _rate_cells(row)
    return f"{calls} calls/s  {errors} errors/s  p50 {p50}  p99 {p99}"


def _people_words(look: Look) -> str | None:
    if look.people is None:
        return None
    names = (f"{_shown(name)} x{n}" if n > 1 else _shown(name) for name, n in look.people)
    return f"here {sum(n for _, n in look.people)}: {_listed(names)}"


def _toolkit_words(look: Look) -> str | None:
    if look.toolkits is None:
        return None
    names = (f"{_shown(name)} ({hosts} {_hosts(hosts)})" for name, _, hosts in look.toolkits)
    return f"toolkits {len(look.toolkits)}: {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _MAX_NAMES
    return ", ".join([*shown[:_MAX_NAMES], *([f"{more} more"] if more > 0 else [])])


def _hosts(count: int) -> str:
    return "host" if count == 1 else "hosts"


# A terminal


def as_screen(look: Look, *, width: int, height: int) -> Group:
    """Return a look as what fits a terminal of this size."""
    errors = [*_error_lines(look.errors[-_SHOWN_ERRORS:])]
    most = max(_LEAST_ROWS, height - _OTHER_LINES - len(errors))
    state = _clock(look) if look.connected else "connection lost: trying again"
    heads = (f"room {look.room}  {_summary(look)}  {state}", _people_words(look))
    return Group(
        *(_line(words, width) for words in (*heads, _toolkit_words(look)) if words),
        _rate_table(look.rows, most),
        *(_line(words, width) for words in errors),
    )


def _line(words: str, width: int) -> Text:
    line = Text(words, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _rate_table(rows: Sequence[RateRow], most: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name == _COLUMNS[0] else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    shown = rows if len(rows) <= most else rows[: most - 1]
    for row in shown:
        cells = map(Text, (_method(row.toolkit, row.tool), *_rate_cells(row)))
        table.add_row(*cells, style="red" if row.failed_per_s else "")
    if len(shown) < len(rows):
        table.add_row(Text(f"{len(rows) - len(shown)} more"))
    return table


def _error_lines(errors: Sequence[tuple[SeenError, float]]) -> Iterator[str]:
    if errors:
        yield "last errors"
    for error, age_s in reversed(errors):
        yield f"  {_error_words(error)}  {age_s:.0f} s ago"
        if error.call.trace_id is not None:
            yield f"    trace {error.call.trace_id}"


# Cells


def _rate_cells(row: RateRow) -> tuple[str, str, str, str]:
    p50, p99 = (_duration(each) for each in (row.p50_s, row.p99_s))
    return f"{row.calls_per_s:.1f}", f"{row.failed_per_s:.1f}", p50, p99


def _error_words(error: SeenError) -> str:
    call = error.call
    host = "no host" if call.host is None else _shown(call.host)
    method, code = _method(call.toolkit, call.tool), _shown(call.code or "")
    return f"{method}  {code}  executed {call.executed}  {_shown(call.caller)} to {host}"


def _method(toolkit: str, tool: str) -> str:
    return f"{_shown(toolkit)}.{_shown(tool)}" if toolkit or tool else "others"


def _shown(words: str) -> str:
    safe = printable(words).replace("\n", "\\n").replace("\t", "\\t")
    return safe if len(safe) <= _MAX_CHARS else f"{safe[: _MAX_CHARS - 1]}…"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
