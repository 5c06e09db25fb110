"""Makes text that others wrote safe to show: on a terminal, in a log, in a source file.

What `str.isprintable` refuses is escaped: control characters (C0 and C1), invisible characters,
characters that change the direction of text, lone surrogates. Pure; it cannot know where text is
written, so every writer calls it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["json_text", "one_line", "printable"]

_CUT = "…"


def printable(text: str, max_chars: int | None = None) -> str:
    r"""Escape text as `\x9b` or `\u202e`, except line ends and tabs.

    Args:
        text: The text.
        max_chars: Cut longer text to this length; the last character is then `…`.
    """
    return _escaped(text, "\n\t", max_chars)


def one_line(text: str, max_chars: int | None = None) -> str:
    r"""Escape text as `printable` does, and line ends and tabs too: as `\n` and `\t`."""
    return _escaped(text, "", max_chars)


def json_text(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    r"""Return a value as JSON in which such characters are `\uXXXX`: the value stays the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
    # Outside of strings JSON has only printable characters and the line ends of `indent`.
    return _replaced(text, "\n", lambda each: json.dumps(each)[1:-1])


def _escaped(text: str, kept: str, max_chars: int | None) -> str:
    # One more than is shown, to detect that it is cut.
    text = text if max_chars is None else text[: max_chars + 1]
    text = _replaced(text, kept, _python_escape)
    if max_chars is None or len(text) <= max_chars:
        return text
    return text[: max_chars - len(_CUT)] + _CUT


def _replaced(text: str, kept: str, escape: Callable[[str], str]) -> str:
    """Replace all characters that are not printable, except those that are kept."""
    if text.isprintable():
        return text
    hidden = [each for each in set(text) if not each.isprintable() and each not in kept]
    return text.translate({ord(each): escape(each) for each in hidden})


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
