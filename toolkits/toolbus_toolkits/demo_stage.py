"""Where the scenes of the demo are played: what is said of each, and whether it kept its word.

Knows nothing of rooms or processes. A scene says what it is about to do and what is expected, does
it, and returns what was seen; anything it raises means that it did not do what it says.
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
from toolbus.trace_tree import sanitised

__all__ = ["MAX_COLUMNS", "Scene", "SceneFailed", "Stage", "play", "table"]

MAX_COLUMNS = 100
_INDENT = 4
_LABEL_CHARS = 10
_SCENE_S = 25.0
_ALL_S = 50.0


class SceneFailed(Exception):
    """A scene saw something else than it had promised; the text says what."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One thing that is shown."""

    title: str
    about_to: str
    """What it is about to do, in one line."""
    expected: str
    """What must come of it, in one line."""
    act: Callable[[], Awaitable[str]]
    """Does it and returns what was seen; raises if that is not what was expected."""


class Stage:
    """Prints to a terminal in colour, elsewhere plainly, and never wider than 100 columns.

    Args:
        file: Where to print; stdout unless given.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        out = sys.stdout if file is None else file
        if (reconfigure := getattr(out, "reconfigure", None)) is not None:
            reconfigure(errors="replace")  # a terminal without box-drawing characters shows "?"
        self._console = Console(file=out, highlight=False)
        width = self._console.width if self._console.is_terminal else MAX_COLUMNS
        self._console.width = min(width, MAX_COLUMNS)

    def say(self, text: str, style: str = "") -> None:
        """Print words that wrap."""
        self._console.print(Text(text, style))

    def verbatim(self, lines: Iterable[str], style: str = "") -> None:
        """Print lines as they are, to be read in columns or copied."""
        for line in lines:
            self._console.print(Text(line, style), soft_wrap=True)

    def tables(self, *shown: Table) -> None:
        """Print tables beside each other where they fit."""
        beside = Columns(shown, padding=(0, 3))
        self._console.print(Padding(beside, (0, 0, 1, _INDENT), expand=False))

    def points(self, title: str, points: Iterable[str]) -> None:
        """Print a list of short texts; what others wrote is made safe for a terminal."""
        self.verbatim([" " * _INDENT + title], "italic")
        self.verbatim(f"{' ' * _INDENT}- {sanitised(point, 90)}" for point in points)

    def open(self, number: int, scene: Scene) -> None:
        """Announce a scene."""
        self._console.print()
        self._console.print(Text(f"{number:2}  {scene.title}", "bold"))
        self._fact("about to", scene.about_to)
        self._fact("expected", scene.expected)

    def close(self, seen: str, took_s: float, *, kept: bool) -> None:
        """Say what was seen, and whether that was what had been promised."""
        mark, style = ("✓ seen", "green") if kept else ("✗ seen", "bold red")
        self._fact(mark, f"{seen}  [{took_s:.1f}s]", style)

    def _fact(self, label: str, words: str, style: str = "") -> None:
        lines = wrap(
            words,
            width=max(20, self._console.width - _INDENT - _LABEL_CHARS),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for index, line in enumerate(lines):
            shown = " " * _INDENT + (label if index == 0 else "").ljust(_LABEL_CHARS)
            text = Text.assemble((shown, style or "dim"), (line, style))
            self._console.print(text, soft_wrap=True)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, max_chars: int = 40
) -> Table:
    """Make a small table; what others wrote is made safe for a terminal, and cut."""
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
    return f"{value:,}" if isinstance(value, int | float) else sanitised(value, max_chars)


async def play(scenes: Sequence[Scene], stage: Stage, *, limit_s: float = _ALL_S) -> bool:
    """Play scenes in their order and return whether each did what it says.

    After one that did not, the others are left out: they build on each other. All of them together
    have `limit_s`.
    """
    began = time.monotonic()
    for number, scene in enumerate(scenes, start=1):
        stage.open(number, scene)
        scene_began = time.monotonic()
        left_s = min(_SCENE_S, limit_s - (scene_began - began))
        kept = True
        try:
            async with asyncio.timeout(left_s) as limit:
                seen = await scene.act()
        except Exception as error:
            kept = False
            seen = f"not within {left_s:.0f} s" if limit.expired() else _reason(error)
        stage.close(seen, time.monotonic() - scene_began, kept=kept)
        if not kept:
            stage.say(f"\nscene {number} did not do what it says: {seen}", "bold red")
            return False
    stage.say(
        f"\n{len(scenes)} scenes, each did what it says  [{time.monotonic() - began:.1f} s]", "bold"
    )
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, SceneFailed):
        return str(error)
    if isinstance(error, RoomException):
        return f"{error.code}, executed: {error.executed}: {sanitised(error.message, 200)}"
    return f"{type(error).__name__}: {sanitised(error, 300)}"
