"""Text of commands that people and scripts read: aligned columns, ages, definitions of a toolkit.

It may be untrusted text: control characters and line ends are escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from toolbus.untrusted_text import one_line

if TYPE_CHECKING:  # other packages print columns without a room
    from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo

__all__ = ["age_text", "counted", "definition_text", "reserve_lines", "show_columns"]


def show_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length, the first of them the header."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


def counted(count: int, noun: str) -> str:
    """Return a number of things: "1 host", "2 hosts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def age_text(at: float) -> str:
    """Return how long ago a time was, given in seconds since the epoch: "5 min ago"."""
    age_s = max(0, int(time.time() - at))
    for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= seconds:
            return f"{age_s // seconds} {unit} ago"
    return f"{age_s} s ago"


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
