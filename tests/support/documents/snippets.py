"""The fenced blocks of a Markdown file, and the output that their console lines show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?$")
_COMMENT = re.compile(r"<!-- (?P<text>.+) -->")
# What differs in each run: ids, ports, durations, their bars, and columns whose width depends on
# them.
_VARYING = (
    (re.compile(r"\b[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:#"),
    (re.compile(r"\d+\.\d+ ms|~\d+ ms"), "# ms"),
    (re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE), "##:##:## "),
    (re.compile(r"\|[━ ]+\|"), "|#|"),
    (re.compile(r"(?<=\S) {2,}"), "  "),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    language: str
    title: str
    lines: tuple[str, ...]
    line_number: int
    note: str = ""
    """The HTML comment on the line above the block."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and the lines that it prints.

    A line `...` stands for any lines, `...` within a line for any text.
    """

    command: str
    prints: tuple[str, ...]


def blocks_of(markdown: str) -> Iterator[Block]:
    """Yield the fenced blocks.

    Raises:
        ValueError: A fence is broken.
    """
    opened: re.Match[str] | None = None
    began, lines, note = 0, list[str](), ""
    for number, line in enumerate(markdown.splitlines(), 1):
        if opened is None and line.startswith("```"):
            opened, began, lines = _FENCE.match(line), number, []
            if opened is None:
                raise ValueError(f"line {number}: {line} opens no block that is known here")
        elif opened is not None and line == "```":
            yield Block(opened["language"], opened["title"] or "", tuple(lines), began, note)
            opened, note = None, ""
        elif opened is None:
            comment = _COMMENT.fullmatch(line)
            note = comment["text"] if comment else ""
        else:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"line {began}: the block does not end")


def steps_of(block: Block) -> list[Step]:
    """Read a console block.

    Raises:
        ValueError: It does not begin with a command.
    """
    steps: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            steps.append((line[2:], []))
        elif steps:
            steps[-1][1].append(line)
        else:
            raise ValueError(f"line {block.line_number}: a console block begins with a command")
    return [Step(command, tuple(prints)) for command, prints in steps]


def settled(text: str) -> str:
    """Remove from a text what differs in each run."""
    for varying, constant in _VARYING:
        text = varying.sub(constant, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def pattern_of(prints: Sequence[str]) -> re.Pattern[str]:
    """Compile the expected output, to be found in a settled text whose lines all end."""
    parts = [
        r"(?:.*\n)*?" if line == "..." else _line_pattern(line) + r"\n"
        for line in settled("\n".join(prints)).splitlines()
    ]
    return re.compile("".join(parts))


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))
