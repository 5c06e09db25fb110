"""A tool of a turn as a model is told of it: words and schema, and nothing that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["TurnTool"]


@dataclass(frozen=True, slots=True)
class TurnTool:
    """A tool that a turn can call, as a model is told of it."""

    name: str
    """`toolkit.tool`."""
    description: str
    input_schema: dict[str, Any]
    """A JSON Schema of the arguments. Not to be changed."""
    toolkit: str
    tool: str
    title: str = ""
    """For people."""
    rules: tuple[str, ...] = ()
    """How the tool is to be used, in its author's words for models."""
    toolkit_rules: tuple[str, ...] = ()
    """How the tools of its toolkit are to be used together: the same for each of them."""
    read_only: bool = False
    """Its author says that it changes nothing."""

    @classmethod
    def of(cls, toolkit: ToolkitManifest, tool: ToolManifest) -> TurnTool:
        """Take what a toolkit's manifest says of one of its tools."""
        return cls(
            f"{toolkit.name}.{tool.name}",
            tool.description,
            tool.input_schema,
            toolkit.name,
            tool.name,
            title=tool.title,
            rules=tool.rules,
            toolkit_rules=toolkit.rules,
            read_only=tool.read_only,
        )
