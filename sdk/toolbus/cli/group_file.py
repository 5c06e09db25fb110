"""Files of groups: toolkits that an agent switches on and off together, for people to write.

    [[group]]
    name = "times"
    description = "Dates and time zones."
    toolkits = ["clock"]

A file with a mistake is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from toolbus.diagnostics.exit_codes import UsageError
from toolbus.permissions.toml_file import TomlFile, TomlFileError, TomlKey
from toolbus.permissions.toml_lines import KeyPath
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import AnyBuilder
from toolbus.turns.tool_groups import ToolGroup
from toolbus.turns.turn_toolkits import RequiredToolkit

__all__ = ["GroupFileError", "read_group_file"]

T = TypeVar("T")

_MAX_GROUPS = 100
"""A model chooses among their descriptions, so more are of no use."""
_TEXT = {"type": "string"}
_NAMES = {"type": "array", "maxItems": 100}
_GROUP_KEYS: Mapping[str, TomlKey] = {
    "name": TomlKey("A lower-case letter, then a-z 0-9 _ -.", _TEXT, is_required=True),
    "description": TomlKey("What the model activates it for.", _TEXT, is_required=True),
    "instructions": TomlKey("How to use the tools together, while it is active.", _TEXT),
    "active": TomlKey("Whether it is active at first.", {"type": "boolean"}),
    "toolkits": TomlKey("Toolkits that run in the agent: as of `toolbus host`.", _NAMES),
    "required": TomlKey("Toolkits of others: as of `--require`.", _NAMES),
    "offer": TomlKey("Toolkits that are built on request: as of `--offer`.", _NAMES),
}
_FILE_KEYS: Mapping[str, TomlKey] = {
    "group": TomlKey("The groups.", {"type": "array", "maxItems": _MAX_GROUPS})
}


class GroupFileError(TomlFileError):
    """A file of groups cannot be used; the text names the file, the line, and what to write."""


def read_group_file(
    path: Path,
    toolkit: Callable[[str], Toolkit],
    required: Callable[[str], RequiredToolkit],
    builder: Callable[[str], AnyBuilder],
) -> list[ToolGroup]:
    """Read a file of groups, and make what they have.

    Args:
        path: The file.
        toolkit: Makes a toolkit of a text of `toolkits`; it may raise `UsageError`.
        required: Reads a text of `required`; it may raise `ValueError`.
        builder: Makes a builder of a text of `offer`; it may raise `UsageError`.

    Raises `GroupFileError` for the first mistake that is found.
    """
    file = TomlFile(path, {"": _FILE_KEYS, "group": _GROUP_KEYS}, GroupFileError)
    groups: list[ToolGroup] = []
    for at, values in file.tables("group"):
        name = values["name"]
        if any(group.name == name for group in groups):
            raise file.error((*at, "name"), f"there is a group {name!r} already")
        _check_words(file, at, values)
        groups.append(
            ToolGroup(
                name,
                values["description"],
                _made(file, (*at, "toolkits"), values, toolkit),
                required=_made(file, (*at, "required"), values, required),
                builders=_made(file, (*at, "offer"), values, builder),
                instructions=values.get("instructions", ""),
                active=values.get("active", False),
            )
        )
    return groups


def _check_words(file: TomlFile, at: KeyPath, values: Mapping[str, Any]) -> None:
    """Refuse a name or a description that a group cannot have."""
    try:
        ToolGroup(values["name"], "of any")
    except ValueError as error:
        raise file.error((*at, "name"), str(error)) from None
    try:
        ToolGroup(values["name"], values["description"])
    except ValueError as error:
        raise file.error((*at, "description"), str(error)) from None


def _made(
    file: TomlFile, at: KeyPath, values: Mapping[str, Any], make: Callable[[str], T]
) -> list[T]:
    """Return what is made of the texts of a list."""
    made = []
    for place, text in file.items(at, values):
        try:
            made.append(make(text))
        except (TypeError, UsageError, ValueError) as error:
            raise file.error(place, str(error)) from error
    return made
