"""How large the definition of a tool is in a prompt."""

from __future__ import annotations

import json

from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.tool_origins import Trust, quoted
from toolbus.turns.turn_tools import ProviderNames

__all__ = ["definition_bytes"]


def definition_bytes(tool: ToolInfo, trust: Trust) -> int:
    """Return about how many bytes the definition of a tool has in a request to a model.

    Args:
        tool: The tool.
        trust: Whose descriptions are shown as they are; others are quoted.
    """
    description = tool.description if trust.of_tool(tool) else quoted(tool.description, tool)
    shown = {
        "name": ProviderNames([tool.name]).name_of(tool.name),
        "description": description,
        "input_schema": tool.input_schema,
    }
    return len(
        json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    )
