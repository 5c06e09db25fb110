"""The tools that members see under one path, by their names for clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from toolbus_gateway.limits import LISTED_BYTES, LISTED_TOOLS
from toolbus_gateway.names import listed_name, own_name
from toolbus_gateway.tool_definitions import ToolDefinition

__all__ = ["MAX_COMPARED", "ListedTool", "Listing", "Target"]

_NEAR = 3
"""How many near names a client reads in place of a wrong one."""
MAX_COMPARED = 1_000
"""Names that a wrong one is compared with, 10 us for each, while other requests wait."""
_MAX_CHARS = 200
"""Of a wrong name that is compared."""


class Target(NamedTuple):
    """What a path names: a room as a whole, or one toolkit in it."""

    toolkit: str | None = None
    participant: str | None = None
    """The owner of the toolkit, where it is not the one that a bare name means."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool by the name that clients call it by."""

    name: str
    definition: ToolDefinition
    participant: str | None = None

    @property
    def full_name(self) -> str:
        """`toolkit.tool`."""
        return f"{self.definition.toolkit}.{self.definition.tool}"

    @property
    def wire(self) -> dict[str, Any]:
        """The tool as `tools/list` has it."""
        return {"name": self.name, **self.definition.body}


class Listing:
    """The tools under one path. It does not change; members with equal tools share it.

    Args:
        definitions: The tools; those that need what a client of MCP cannot send are left out.
        target: The path: under that of one toolkit its tools have their own names.
    """

    def __init__(self, definitions: Iterable[ToolDefinition], target: Target) -> None:
        name_of = listed_name if target.toolkit is None else own_name
        found: dict[str, ListedTool] = {}
        for definition in definitions:
            if not definition.needs:
                name = name_of(definition.toolkit, definition.tool)
                found.setdefault(name, ListedTool(name, definition, target.participant))
        self.tools: dict[str, ListedTool] = dict(sorted(found.items()))
        """By name, in the order of the names."""
        self.answers: dict[str, dict[str, Any]] = {}
        """Results of `tools/list` by revision, as they were sent. Not to be changed."""
        size = sum(tool.definition.bytes for tool in self.tools.values())
        self.is_searched: bool = len(self.tools) > LISTED_TOOLS or size > LISTED_BYTES
        """Whether there is so much that a search is listed in its place."""

    @cached_property
    def wire(self) -> list[dict[str, Any]]:
        """The tools as `tools/list` has them. Not to be changed."""
        return [tool.wire for tool in self.tools.values()]

    def near(self, name: str) -> list[str]:
        """Return the names that a wrong one may mean."""
        names = islice(self.tools, MAX_COMPARED)
        return get_close_matches(name[:_MAX_CHARS], names, n=_NEAR)
