"""The arguments of a call, as servers send them: a tool runs with these or not at all.

Servers differ in how they send arguments: as text in pieces, as an object, both, a placeholder
before them, or the whole once more at the end. What means one object for certain becomes that
object. Anything else becomes an invalid use, whose result tells the model why. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolbus.models.reply_values import as_text
from toolbus.turns.tool_use import ToolUse
from toolbus.untrusted_text import one_line

__all__ = [
    "call_use",
    "cut_words",
    "is_placeholder",
    "joined_arguments",
    "settled_uses",
    "whole_object",
]

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_NAMELESS = "the model's API sent this call without the name of a tool"


def joined_arguments(pieces: Iterable[Any]) -> Any:
    """Return the arguments that came in pieces; None if there was none.

    Texts are parts of one text, and an object is whole.
    """
    given = [piece for piece in pieces if piece is not None]
    found = [piece for piece in given if piece != ""]
    if len(found) > 1:
        return _settled_text("".join(map(_text, found)))
    return next(iter(found or given), None)


def call_use(call_id: str, name: Any, given: Any, cut: str = "") -> ToolUse:
    """Return the use for a call, whose name and arguments are as they came.

    `cut` says why the reply was cut; empty if it was not. Arguments that are not whole then, or
    that had not begun, run nothing.
    """
    arguments = given
    if given is not None and not isinstance(given, Mapping):
        arguments = _settled_text(_text(given))
    if not isinstance(name, str) or not name:
        return ToolUse(call_id, "", arguments, invalid=_NAMELESS)
    invalid = ""
    if cut and (is_placeholder(arguments) or whole_object(arguments) is None):
        invalid = cut_words(cut)
    return ToolUse(call_id, name, arguments, invalid=invalid)


def cut_words(reason: str) -> str:
    """Return why a use does not run in which the reply was cut."""
    return f"the reply was cut here ({one_line(reason, 100)}). Write less at a time"


def settled_uses(uses: Sequence[ToolUse]) -> list[ToolUse]:
    """Return the uses of a reply, without the arguments of those that may have lost theirs.

    Where one call has arguments and no name, or those of several calls, they may be those of a call
    that has none: that call has unknown arguments, not the empty ones. So has each call where a
    part of arguments has no name: what is left of them may be an object too.
    """
    if not any(_may_be_of_another(use) for use in uses):
        return list(uses)
    nameless = [use.arguments for use in uses if not use.name]
    if not all(is_placeholder(given) or whole_object(given) is not None for given in nameless):
        return [replace(use, arguments=None) if use.name else use for use in uses]
    return [replace(use, arguments=None) if is_placeholder(use.arguments) else use for use in uses]


def _may_be_of_another(use: ToolUse) -> bool:
    """Whether a use has arguments that another one may have lost."""
    if not use.name:
        return not is_placeholder(use.arguments)
    try:
        json.loads(as_text(use.arguments))
    except json.JSONDecodeError as error:
        return error.msg == "Extra data" and error.doc[error.pos] == "{"
    except (ValueError, RecursionError):
        pass
    return False


def is_placeholder(arguments: object) -> bool:
    """Whether arguments are what servers also send in place of some that come later."""
    if not isinstance(arguments, str):
        return arguments is None or arguments == {}
    text = arguments.strip()
    return text in ("", "null") or (text[0] == "{" and text[1:].lstrip() == "}")


def whole_object(arguments: object) -> Mapping[str, Any] | None:
    """Return arguments that are one object, or its JSON text; else None."""
    if isinstance(arguments, Mapping):
        return arguments
    try:
        found = json.loads(as_text(arguments))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _settled_text(text: str) -> str:
    """Return a text of several JSON objects as the one that it means.

    Those of `{}` at the front stand in place of what follows, and an object that is repeated is
    the same one. Any other text stays as it is: it is not JSON, and its use does not run.
    """
    objects: list[str] = []
    different: set[str] = set()
    left = text.strip(" \t\r\n")
    position = 0
    try:
        while position < len(left):
            value, end = _decoder.raw_decode(left, position)
            if not isinstance(value, dict):
                return text
            if value or different:
                different.add(json.dumps(value, sort_keys=True))  # as values, 1 and true are equal
            objects.append(left[position:end])
            position = _SPACE.match(left, end).end()  # type: ignore[union-attr]  # it always matches
    except (ValueError, RecursionError):
        return text
    return text if len(different) > 1 or len(objects) < 2 else objects[-1]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
