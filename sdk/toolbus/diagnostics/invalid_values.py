"""The further invalid values that an `invalid_arguments` names, as lines for people and models."""

from __future__ import annotations

from toolbus.errors import InvalidArguments, RoomException
from toolbus.untrusted_text import one_line

__all__ = ["further_values"]

_MAX_VALUES = 32
_MAX_CHARS = 450


def further_values(error: RoomException) -> list[str]:
    """Return the invalid values of an error but the first, which its message names.

    Its details come from another participant: what is not as ERR-6 says is left out.
    """
    named = error.details.get("all")
    if not isinstance(error, InvalidArguments) or not isinstance(named, list):
        return []
    lines: list[str] = []
    for entry in named[1:_MAX_VALUES]:
        match entry:
            case {"path": str(path), "message": str(message)}:
                lines.append(one_line(f"{path}: {message}" if path else message, _MAX_CHARS))
    return lines
