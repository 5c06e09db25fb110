"""Prints rows as aligned columns, for commands whose output people and scripts read."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from toolbus.untrusted_text import one_line

__all__ = ["show_columns"]


def show_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length, the first of them the header.

    Cells may be untrusted text: control characters and line ends are escaped.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())
