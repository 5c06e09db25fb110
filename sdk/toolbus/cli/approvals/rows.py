"""Rows of the live table: columns as wide as their contents, and what is left for the purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size

__all__ = ["fitted_words", "table_lines"]

_COLUMNS = ("id", "age", "tool", "who", "why", "left")
_BY_NEED = ("tool", "left", "id", "who", "age")
"""The columns that a narrow terminal shows are the first of these."""
_RIGHT = ("age", "left")
_LEAST = 10
"""Characters below which a part of a text says nothing."""
_MARK = "> "
_GAP = 2


def table_lines(rows: Sequence[Mapping[str, str]], chosen: int, columns: int) -> list[str]:
    """Return the line of the header, and one for each row.

    Args:
        rows: The cells of each row, by column.
        chosen: Which row has the mark.
        columns: The width of the terminal.
    """
    widths = _widths(rows, columns - len(_MARK))
    head = {name: name for name in widths}
    lines: list[str] = []
    for at, row in enumerate([head, *rows], -1):
        cells: list[str] = []
        for name, width in widths.items():
            cell = fitted_words(row[name], width)
            if name in _RIGHT:
                cell = " " * (width - cell_len(cell)) + cell
            cells.append(set_cell_size(cell, width))
        mark = _MARK if at == chosen else " " * len(_MARK)
        lines.append((mark + (" " * _GAP).join(cells)).rstrip())
    return lines


def _widths(rows: Sequence[Mapping[str, str]], left: int) -> dict[str, int]:
    """Return the columns that are shown, in their order, with their widths."""
    needs = {name: max(cell_len(row[name]) for row in [{name: name}, *rows]) for name in _COLUMNS}
    # A long name leaves something for the purpose.
    needs["who"] = min(needs["who"], max(_LEAST, left // 3))
    widths: dict[str, int] = {}
    for name in _BY_NEED:
        width = min(needs[name], left) if not widths else needs[name]
        if name == "who" and _LEAST <= left < width:
            width = left
        if width > left:
            continue
        widths[name] = width
        left -= width + _GAP
    if left >= _LEAST:
        widths["why"] = min(needs["why"], left)
    return {name: widths[name] for name in _COLUMNS if name in widths}


def fitted_words(text: str, width: int) -> str:
    """Return the beginning of a text that fits, cut between two words; one word may be too long."""
    if cell_len(text) <= width:
        return text
    cut = set_cell_size(text, max(0, width - 1))
    if " " in cut and text[len(cut) : len(cut) + 1] != " ":
        cut = cut.rpartition(" ")[0]
    return f"{cut.rstrip()}…"
