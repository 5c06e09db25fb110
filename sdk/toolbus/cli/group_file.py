"""Files of groups: toolkits that an agent switches on and off together, for people to write.

    [[group]]
    name = "times"
    description = "Dates and time zones."
    toolkits = ["clock"]

A file with a mistake is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field, field_validator

from toolbus.diagnostics.exit_codes import UsageError
from toolbus.permissions.toml_file import Place, TomlFile, TomlFileError, TomlTable
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.builders import AnyBuilder
from toolbus.turns.tool_groups import ToolGroup
from toolbus.turns.turn_toolkits import RequiredToolkit

__all__ = ["GroupFileError", "read_group_file"]

T = TypeVar("T")


class GroupFileError(TomlFileError):
    """A file of groups cannot be used; the text names the file, the line, and what to write."""


class _GroupKeys(TomlTable):
    name: str
    description: str
    instructions: str = ""
    active: bool = False
    toolkits: list[str] = Field([], max_length=100)
    """Toolkits that run in the agent: as of `toolbus host`."""
    required: list[str] = Field([], max_length=100)
    """Toolkits of others: as of `--require`."""
    offer: list[str] = Field([], max_length=100)
    """Toolkits that are built on request: as of `--offer`."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        ToolGroup(name, "of any")  # raises
        return name

    @field_validator("description")
    @classmethod
    def _check_description(cls, description: str) -> str:
        ToolGroup("any", description)  # raises
        return description


class _GroupFileKeys(TomlTable):
    group: list[_GroupKeys] = Field([], max_length=100)
    """A model chooses among their descriptions, so more are of no use."""


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
    file = TomlFile(path, _GroupFileKeys, GroupFileError)
    groups: list[ToolGroup] = []
    for index, keys in enumerate(file.content.group):
        at: Place = ("group", index)
        if any(group.name == keys.name for group in groups):
            raise file.error((*at, "name"), f"there is a group {keys.name!r} already")
        groups.append(
            ToolGroup(
                keys.name,
                keys.description,
                _made(file, (*at, "toolkits"), keys.toolkits, toolkit),
                required=_made(file, (*at, "required"), keys.required, required),
                builders=_made(file, (*at, "offer"), keys.offer, builder),
                instructions=keys.instructions,
                active=keys.active,
            )
        )
    return groups


def _made(
    file: TomlFile[_GroupFileKeys], at: Place, texts: Sequence[str], make: Callable[[str], T]
) -> list[T]:
    """Return what is made of the texts of a list."""
    made = []
    for index, text in enumerate(texts):
        try:
            made.append(make(text))
        except (TypeError, UsageError, ValueError) as error:
            raise file.error((*at, index), str(error)) from error
    return made
