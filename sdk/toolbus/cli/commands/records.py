"""`toolbus records`: lists the calls that a host has recorded on this machine.

Names in records are those of other participants: control characters are escaped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from toolbus.cli.columns import age_text, settlement_text, show_columns
from toolbus.cli.commands.token import read_duration_s
from toolbus.cli.completion import complete_caller, complete_outcome, complete_recorded_tool
from toolbus.cli.error_report import reporting
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.records.sqlite_file import read_calls
from toolbus.settings import records_file
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line

__all__ = ["read_since", "records"]

_COLUMNS = ("when", "tool", "who", "for", "decision", "outcome", "executed", "took", "trace")


def records(  # noqa: PLR0913 - a parameter for each flag
    tool: Annotated[
        str | None,
        typer.Option(
            help="Only these tools: toolkit.tool or toolkit, with * as the wildcard.",
            autocompletion=complete_recorded_tool,
        ),
    ] = None,
    who: Annotated[
        str | None,
        typer.Option(help="Only calls of this participant.", autocompletion=complete_caller),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Only calls that ended so: ok, or the code of an error.",
            autocompletion=complete_outcome,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only calls that began since: 90s, 15m, 1h or 2d ago, or a date with or without "
            "a time, such as 2026-01-31T09:30."
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="The file of records. Default: records.db in TOOLBUS_HOME."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many calls at most.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List recorded calls, the newest first, refused ones too.

    `toolbus host --records` and `Records.sqlite` record them. No server is needed.
    """
    with reporting(as_json=json, local=True):
        try:
            chosen = CallFilter.of(tool, who, outcome, read_since(since))
        except ValueError as error:
            raise UsageError(str(error)) from error
        found = read_calls(path or records_file(os.environ), chosen, limit)
    if json:
        typer.echo(json_text([asdict(record) for record in found]))
    elif found:
        show_columns(_rows(found))
    else:
        typer.echo("no recorded call matches", err=True)


def read_since(text: str | None) -> float | None:
    """Return the seconds since the epoch of `--since`. Raises ValueError."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return time.time() - read_duration_s(text)
    except ValueError:
        raise ValueError(
            f"--since {text[:64]!r} is no time: write for example 15m, 1h, 2d, or 2026-01-31T09:30"
        ) from None


def _rows(found: Sequence[CallRecord]) -> list[tuple[str, ...]]:
    """Return a header and a row for each call; a column more for what some calls alone have."""
    rows = [_COLUMNS, *map(_row, found)]
    persons = [settlement_text(record) for record in found]
    arguments = [one_line(record.arguments or "", 80) for record in found]
    for name, cells in (("person", persons), ("arguments", arguments)):
        if any(cells):
            more = [name, *(cell or "-" for cell in cells)]
            rows = [(*row, cell) for row, cell in zip(rows, more, strict=True)]
    return rows


def _row(record: CallRecord) -> tuple[str, ...]:
    decision: str = record.decision
    if record.decided_by:
        decision = f"{decision} ({record.decided_by})"
    duration = f"{record.duration_s:.1f} s"
    if record.duration_s < 1:
        duration = f"{record.duration_s * 1_000:.1f} ms"
    cells = (record.tool, record.caller, record.principal, decision, record.outcome)
    return (
        age_text(record.started_at),
        *(one_line(cell, SHOWN_CHARS) or "-" for cell in cells),
        record.executed,
        duration,
        record.trace_id or "-",
    )
