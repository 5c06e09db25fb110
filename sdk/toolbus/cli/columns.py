"""Text of commands that people and scripts read: aligned columns, ages, definitions of a toolkit.

It may be untrusted text: control characters and line ends are escaped.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from toolbus.diagnostics.spans import span_text
from toolbus.untrusted_text import SHOWN_CHARS, one_line

if TYPE_CHECKING:  # other packages print columns without a room
    from toolbus.records.call_record import CallRecord
    from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo

__all__ = [
    "age_text",
    "counted",
    "definition_text",
    "reserve_lines",
    "settlement_text",
    "show_columns",
    "terminal_columns",
    "wrapped",
]


def show_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length, the first of them the header.

    Into a pipe each is one line. On a terminal cells are wrapped where a line would be longer. If
    their longest words do not fit beside each other, each cell stands behind its name instead.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    for lines in _lines(cells, terminal_columns()):
        for line in lines:
            typer.echo(line)


def terminal_columns() -> int | None:
    """Return the width of the terminal; None if stdout is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, columns: int | None, further: str = "") -> list[str]:
    """Return the lines of a text, one at least; no word is cut.

    Args:
        text: The text.
        columns: The width of a line. None means unlimited.
        further: The indent of all lines but the first.
    """
    if columns is None or len(text) <= columns:
        return [text]
    return wrap(
        text, columns, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def _lines(cells: Sequence[Sequence[str]], columns: int | None) -> Iterator[list[str]]:
    """Return the lines of each row."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gaps = 2 * (len(widths) - 1)
    if columns is not None and sum(widths) + gaps > columns:
        least = [
            max((len(word) for cell in column for word in cell.split()), default=0)
            for column in zip(*cells, strict=True)
        ]
        if sum(least) + gaps > columns:
            head, *others = cells
            for row in others:
                named = [f"{name}: {cell}" for name, cell in zip(head, row, strict=True) if cell]
                yield [*_packed(named, columns)]
            return
        # Columns up to a width keep theirs, and wider ones get that width.
        for shared in range(columns, -1, -1):
            fitting = [
                min(width, max(low, shared)) for width, low in zip(widths, least, strict=True)
            ]
            if sum(fitting) + gaps <= columns:
                break
        widths = fitting
    for row in cells:
        parts = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        yield [
            "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
            for line in zip_longest(*parts, fillvalue="")
        ]


def _packed(parts: Sequence[str], columns: int) -> Iterator[str]:
    """Return lines of parts; one that is longer than a line is wrapped."""
    line, *rest = parts
    for part in rest:
        if len(line) + 2 + len(part) > columns:
            yield from wrapped(line, columns, "    ")
            line = ""
        line = f"{line}  {part}"
    yield from wrapped(line, columns, "    ")


def counted(count: int, noun: str) -> str:
    """Return a number of things: "1 host", "2 hosts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def age_text(at: float) -> str:
    """Return how long ago a time was, given in seconds since the epoch: "5 min ago"."""
    return f"{span_text(max(0.0, time.time() - at))} ago"


def settlement_text(record: CallRecord) -> str:
    """Return what a person decided about a recorded call; empty if it waited for nobody."""
    if not (record.settled or record.waited_s):
        return ""
    text = record.settled or "no answer"
    if record.settled == "changed":
        text = "approved with other arguments"
    if record.settled_by:
        text += f" by {record.settled_by}"
    text += f" after {record.waited_s:.1f} s"
    if record.granted:
        text += f", and always: {record.granted}"
    if record.settled_reason:
        text += f": {record.settled_reason}"
    return one_line(text, SHOWN_CHARS)


def definition_text(definition: DefinitionInfo | ToolkitInfo) -> str:
    """Return version and digest, shortened."""
    name = f"version {one_line(definition.version)}" if definition.version else "no version"
    return f"{name} (digest {one_line(definition.digest[:12])})"


def reserve_lines(info: ToolkitInfo) -> Iterator[str]:
    """Return a line for each definition in reserve: what it is, its hosts, and its last call."""
    for definition in info.reserve:
        last_call = "no known call"
        if definition.last_call_ms is not None:
            last_call = f"last call {age_text(definition.last_call_ms / 1000)}"
        hosts = counted(definition.hosts, "host")
        yield f"in reserve: {definition_text(definition)}, {hosts}, {last_call}"
