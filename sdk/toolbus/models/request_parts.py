"""What the requests of several providers have alike."""

from __future__ import annotations

from toolbus.agents.model_tools import ModelTool
from toolbus.agents.turn import Turn
from toolbus.models.schema_forms import Dialect, SchemaForm, schema_form

__all__ = ["system_text", "tool_form"]


def tool_form(tool: ModelTool, dialect: Dialect) -> SchemaForm:
    """Return the schema of a tool as a provider takes it.

    Raises `ValueError` with the tool's name if it takes none.
    """
    try:
        return schema_form(tool.input_schema, dialect)
    except ValueError as error:
        raise ValueError(f"{tool.tool.name}: {error}") from error


def system_text(turn: Turn, instructions: str) -> str:
    """Return the instructions and the prompt of the turn; empty if both are blank."""
    return "\n\n".join(text for text in (instructions, turn.prompt()) if text.strip())
