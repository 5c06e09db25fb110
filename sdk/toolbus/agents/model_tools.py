"""A tool of a turn as a model is shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolbus.tools.tool_info import ToolInfo

__all__ = ["ModelTool"]


@dataclass(frozen=True, slots=True, eq=False)
class ModelTool:
    """A tool as a model is shown it: `Turn.model_tools` has one for each tool of `Turn.tools`.

    The same tool of the same definition has the same `input_schema` object in every turn of the
    process, so that what is derived from it can be kept by its identity.
    """

    name: str
    """The name for a provider: `Turn.provider_name`."""
    description: str
    """The description. What an owner wrote who is not trusted is quoted as data; hidden characters
    are visible."""
    input_schema: dict[str, Any]
    """The JSON Schema of the arguments. Not to be changed."""
    tool: ToolInfo
    """The tool itself."""
