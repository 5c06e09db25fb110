"""A toolkit of this process under another name in a turn."""

from __future__ import annotations

from dataclasses import dataclass

from toolbus.auth.grants import is_toolkit_name
from toolbus.chunks.json_values import shown
from toolbus.tools.toolkit import Toolkit

__all__ = ["LocalToolkit", "checked_alias"]

_FORM = "an alias is a lower-case letter, then up to 63 of a-z 0-9 _ -"


@dataclass(frozen=True, slots=True)
class LocalToolkit:
    """A toolkit for `Turn(always=[...])` that has another name there.

    Raises `TypeError` unless it is a toolkit, and `ValueError` for an invalid alias.
    """

    toolkit: Toolkit
    alias: str
    """Its name in the turn: its tools are `alias.tool`."""

    def __post_init__(self) -> None:
        if not isinstance(self.toolkit, Toolkit):
            raise TypeError(f"LocalToolkit takes a Toolkit, not {type(self.toolkit).__name__}")
        checked_alias(self.toolkit.name, self.alias)

    @property
    def name(self) -> str:
        """Its name in the turn."""
        return self.alias


def checked_alias(toolkit: str, alias: object) -> None:
    """Raise `ValueError` unless an alias has the form of a toolkit's name."""
    if not is_toolkit_name(alias):
        raise ValueError(f"toolkit {toolkit}: {shown(alias)} is not a name for it: {_FORM}")
