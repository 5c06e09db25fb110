"""Decodes `$'...'` as the manual of bash says."""

from __future__ import annotations

import re

from toolbus_toolkits.shell.reading.parts import UnreadableError

__all__ = ["decode_ansi_c"]

_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL
)
_NAMED = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}


def _decode_escape(match: re.Match[str]) -> str:
    octal, hexadecimal, short, long, named = match.groups()
    if named is not None:
        if named in _NAMED:
            return _NAMED[named]
        if named in "cuUx":
            raise UnreadableError(f"`\\{named}` in `$'...'` is not read")
        return "\\" + str(named)
    code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
    # A NUL ends the text there, single bytes above ASCII may be part of a letter, and what letters
    # above ASCII become depends on the locale.
    if not 0 < code < 0x80:
        raise UnreadableError("a character of `$'...'` is not read")
    return chr(code)


def decode_ansi_c(text: str) -> str:
    """Return what bash makes of the text between `$'` and `'`.

    Raises:
        UnreadableError: It has an escape that is not known for sure.
    """
    return _ESCAPE.sub(_decode_escape, text)
