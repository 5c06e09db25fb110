"""Runs the scenes of the demo, and prints the expected and the actual result of each.

Independent of rooms and processes. A scene describes its action and the expected result, performs
it, and returns the actual result; it raises if that is not the expected one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolbus import RoomException
from toolbus.untrusted_text import one_line

__all__ = ["MAX_COLUMNS", "Scene", "SceneFailed", "SceneOutput", "run_scenes", "table"]

MAX_COLUMNS = 100
"""Longer lines are hard to read."""
_INDENT = 4
_LABEL_CHARS = 10
"""The width of the column of labels."""
_SCENE_S = 300.0
"""After which a scene is taken to hang; far above what one takes on a machine with much to do."""


class SceneFailed(Exception):
    """A scene had another result than expected; the text says which."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One step of the demo."""

    title: str
    action: str
    """What it does, in one line."""
    expected: str
    """The expected result, in one line."""
    run: Callable[[], Awaitable[str]]
    """Performs it and returns the actual result; raises if that is not the expected one."""


class SceneOutput:
    """Prints to a terminal in colour, elsewhere plainly, and never wider than 100 columns.

    Args:
        file: Where to print; stdout unless given.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        out = file or sys.stdout
        if (reconfigure := getattr(out, "reconfigure", None)) is not None:
            reconfigure(errors="replace")  # a terminal without box-drawing characters shows "?"
        self._console = Console(file=out, highlight=False)
        width = self._console.width if self._console.is_terminal else MAX_COLUMNS
        self._console.width = min(width, MAX_COLUMNS)

    def print_text(self, text: str, style: str = "") -> None:
        """Print a text that wraps."""
        self._console.print(Text(text, style))

    def verbatim(self, lines: Iterable[str], style: str = "") -> None:
        """Print lines as they are, to be read in columns or copied."""
        for line in lines:
            self._console.print(Text(line, style), soft_wrap=True)

    def print_tables(self, *shown: Table) -> None:
        """Print tables beside each other where they fit."""
        beside = Columns(shown, padding=(0, 3))
        self._console.print(Padding(beside, (0, 0, 1, _INDENT), expand=False))

    def print_list(self, title: str, points: Iterable[str]) -> None:
        """Print a list of short texts; untrusted text is made safe for a terminal."""
        self.verbatim([" " * _INDENT + title], "italic")
        self.verbatim(f"{' ' * _INDENT}- {one_line(str(point), 90)}" for point in points)

    def open(self, number: int, scene: Scene) -> None:
        """Print what a scene does, before it runs."""
        self._console.print()
        self._console.print(Text(f"{number:2}  {scene.title}", "bold"))
        self._fact("action", scene.action)
        self._fact("expected", scene.expected)

    def close(self, seen: str, took_s: float, *, succeeded: bool) -> None:
        """Print the actual result, and whether it was the expected one."""
        mark, style = ("✓ result", "green") if succeeded else ("✗ result", "bold red")
        self._fact(mark, f"{seen}  [{took_s:.1f}s]", style)

    def _fact(self, label: str, text: str, style: str = "") -> None:
        lines = wrap(
            text,
            width=max(20, self._console.width - _INDENT - _LABEL_CHARS),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for index, line in enumerate(lines):
            shown = " " * _INDENT + (label if index == 0 else "").ljust(_LABEL_CHARS)
            printed = Text.assemble((shown, style or "dim"), (line, style))
            self._console.print(printed, soft_wrap=True)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, max_chars: int = 40
) -> Table:
    """Make a small table; untrusted text is made safe for a terminal, and cut."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="italic",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    cells = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | float) for row in cells)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text(_cell(value, max_chars)) for value in row))
    return made


def _cell(value: object, max_chars: int) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else one_line(str(value), max_chars)


async def run_scenes(
    scenes: Sequence[Scene], output: SceneOutput, *, limit_s: float = _SCENE_S
) -> bool:
    """Run scenes in their order and return whether each had the expected result.

    After one that had not, the others are skipped: they build on each other. Each may take
    `limit_s`.
    """
    began = time.monotonic()
    for number, scene in enumerate(scenes, start=1):
        output.open(number, scene)
        scene_began = time.monotonic()
        succeeded = True
        try:
            async with asyncio.timeout(limit_s) as limit:
                seen = await scene.run()
        except Exception as error:
            succeeded = False
            seen = f"not within {limit_s:.0f} s" if limit.expired() else _reason(error)
        output.close(seen, time.monotonic() - scene_began, succeeded=succeeded)
        if not succeeded:
            output.print_text(f"\nscene {number} failed: {seen}", "bold red")
            return False
    output.print_text(
        f"\nall {len(scenes)} scenes had the expected result  [{time.monotonic() - began:.1f} s]",
        "bold",
    )
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, SceneFailed):
        return str(error)
    if isinstance(error, RoomException):
        return f"{error.code}, executed: {error.executed}: {one_line(error.message, 200)}"
    return f"{type(error).__name__}: {one_line(str(error), 300)}"
