"""The parts of a tool's result that a model gets: one text, and the files that its API takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from toolbus.agents.tool_use import ToolResult, ToolUse
from toolbus.chunks.chunk_types import FileChunk

__all__ = ["ResultParts", "paired", "result_parts"]


class ResultParts(NamedTuple):
    """What a model gets of one result."""

    text: str
    """Never empty. Files that are sent are named in it: `[file 'a.png', image/png, 9 bytes]`."""
    files: tuple[FileChunk, ...]
    """The files that the provider takes, in order, in memory."""


def result_parts(result: ToolResult, takes: Any) -> ResultParts:
    """Split a result."""
    raise NotImplementedError


def paired(uses: Sequence[ToolUse], results: Iterable[ToolResult]) -> list[ToolResult]:
    """Return one result for each use, in the order of the uses."""
    raise NotImplementedError
