"""Makes text that others wrote safe to show: on a terminal, in a log, in a source file, to a model.

What `str.isprintable` refuses is escaped: control characters (C0 and C1), invisible characters,
characters that change the direction of text, lone surrogates. Pure; it cannot know where text is
written, so every writer calls it.

A model reads characters, not shapes: `visible` escapes for it what no reader would see, and leaves
what scripts and emoji need.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

__all__ = ["BLANK", "SHOWN_CHARS", "json_text", "one_line", "printable", "shortened", "visible"]

SHOWN_CHARS = 200
"""How much of a text of others a message shows, where nothing else decides its length."""

_CUT = "…"
BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Printable for `str.isprintable`, and without a shape: fillers and variation selectors."""
_ZWNJ, _ZWJ, _TEXT_STYLE, _EMOJI_STYLE = "\u200c", "\u200d", "\ufe0e", "\ufe0f"
_EMOJI = range(0x1F000, 0x1FB00)
"""Where Unicode adds emoji: one that this Python does not know yet is unassigned here."""
# Where scripts begin and end in which a joiner between two letters changes their shapes: Arabic and
# its relatives, those of India and of South-East Asia, Mongolian.
_JOINING = (
    *(0x600, 0x10A0, 0x1780, 0x1D00, 0xA800, 0xAC00, 0xFB50, 0xFE00, 0xFE70, 0xFEFD),
    *(0x10D00, 0x12000, 0x1E900, 0x1E960),
)


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


def shortened(text: str, max_chars: int | None) -> str:
    """Cut the middle out of a text that is longer: what decides may stand at its end.

    Args:
        text: The text, escaped before.
        max_chars: Its longest length, with the mark that says how many characters are left out;
            None cuts nothing.
    """
    if max_chars is None or len(text) <= max_chars:
        return text
    mark = " [... {:,} characters ...] "
    shown = max_chars - len(mark.format(len(text)))
    tail = shown // 3
    return text[: shown - tail] + mark.format(len(text) - shown) + text[len(text) - tail :]


def json_text(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    r"""Return a value as JSON in which such characters are `\uXXXX`: the value stays the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
    # Outside of strings JSON has only printable characters and the line ends of `indent`.
    return _replaced(text, "\n", lambda character: json.dumps(character)[1:-1])


def visible(text: str, max_chars: int | None = None) -> str:
    r"""Escape what a model would read and no person would see, as `\u200b` or `\U000e0041`.

    These are all that `printable` escapes, and blank characters that Unicode calls letters or
    marks. Not escaped are spaces of any width; U+200C and U+200D between letters of a script that
    joins them; U+200D between emoji; U+FE0E and U+FE0F after a character that has both styles. Tag
    characters and other variation selectors always are: text can be hidden in them. `\r\n` is a
    line end.

    Args:
        text: The text.
        max_chars: Cut longer text to this length; the last character is then `…`.
    """
    if max_chars is not None:
        text = text[: 2 * max_chars + 2]  # line ends may be two characters
    text = text.replace("\r\n", "\n")
    if max_chars is not None:
        text = text[: max_chars + 1]
    escapes = {found: _python_escape(found) for found in set(text) if _is_hidden(found)}
    if escapes:
        text = "".join(
            escapes[character] if character in escapes and not _has_effect(text, at) else character
            for at, character in enumerate(text)
        )
    return _cut(text, max_chars)


def _is_hidden(character: str) -> bool:
    if character.isprintable():
        return character in BLANK
    if character in "\n\t" or ord(character) in _EMOJI:
        return False
    return unicodedata.category(character) != "Zs"


def _has_effect(text: str, at: int) -> bool:
    """Whether a character without a shape changes how those beside it are read."""
    character = text[at]
    before = text[at - 1 : at]
    after = text[at + 1 : at + 2]
    if character in (_TEXT_STYLE, _EMOJI_STYLE):
        return _is_symbol(before) or before in {*"#*0123456789\u2139"}
    if character not in (_ZWNJ, _ZWJ) or not before or not after:
        return False
    if _joins(before) and _joins(after):
        return True
    is_emoji = _is_symbol(before) or before == _EMOJI_STYLE
    return character == _ZWJ and is_emoji and _is_symbol(after)


def _is_symbol(character: str) -> bool:
    """Whether it is an emoji, or another symbol or sign that may be drawn as one."""
    if not character or character in BLANK:
        return False
    return ord(character) in _EMOJI or unicodedata.category(character)[0] in "SP"


def _joins(character: str) -> bool:
    if character in BLANK or bisect_right(_JOINING, ord(character)) % 2 == 0:
        return False
    return unicodedata.category(character)[0] in "LM"


def _escaped(text: str, unescaped: str, max_chars: int | None) -> str:
    if max_chars is not None:
        text = text[: max_chars + 1]  # one more than is shown, to detect that it is cut
    return _cut(_replaced(text, unescaped, _python_escape), max_chars)


def _cut(text: str, max_chars: int | None) -> str:
    if max_chars is None or len(text) <= max_chars:
        return text
    return text[: max_chars - len(_CUT)] + _CUT


def _replaced(text: str, unescaped: str, escape: Callable[[str], str]) -> str:
    """Replace all characters that are not printable, except those in `unescaped`."""
    if text.isprintable():
        return text
    hidden = [
        character
        for character in set(text)
        if not character.isprintable() and character not in unescaped
    ]
    return text.translate({ord(character): escape(character) for character in hidden})


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
