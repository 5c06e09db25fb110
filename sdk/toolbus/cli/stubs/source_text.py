"""Writes untrusted text and values as Python source: literals, docstrings, comments, identifiers.

No text can end the literal, docstring or comment that it is in: quotes, backslashes and all
characters that are not printable are escaped.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from math import isfinite

from toolbus.untrusted_text import one_line

__all__ = ["camel_case", "comment", "docstring", "is_name", "literal"]

_MAX_TEXT_CHARS = 4_000
_MAX_NAME_CHARS = 64


def literal(value: object) -> str | None:
    """Return a text, number, boolean or None as source; None for any other value."""
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    if value is None or isinstance(value, bool | int):
        return repr(value)
    return repr(value) if isinstance(value, float) and isfinite(value) else None


def comment(text: str) -> str:
    """Return text as one line for a comment."""
    return one_line(text)


def docstring(text: str, indent: str) -> list[str]:
    """Return the lines of a docstring; none for empty text. Long text is cut."""
    text = text.strip()
    if len(text) > _MAX_TEXT_CHARS:
        text = f"{text[:_MAX_TEXT_CHARS].rstrip()} ..."
    text = re.sub(r'"(?="|\Z)', r"\"", text.replace("\\", "\\\\"))
    lines = [comment(line).rstrip() for line in text.split("\n")]
    if not text:
        return []
    if len(lines) > 1:
        inner = [f"{indent}{line}".rstrip() for line in lines[1:]]
        return [f'{indent}"""{lines[0]}', *inner, f'{indent}"""']
    return [f'{indent}"""{lines[0]}"""']


def is_name(text: str) -> bool:
    """Whether text can be a parameter or a field: an identifier that Python leaves unchanged."""
    return (
        text.isidentifier()
        and len(text) <= _MAX_NAME_CHARS
        and not keyword.iskeyword(text)
        and not text.startswith("__")  # a class changes such names
        and unicodedata.normalize("NFKC", text) == text
    )


def camel_case(text: str) -> str:
    """Return text as the name of a class: ASCII letters and digits, at most 64."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(f"{word[0].upper()}{word[1:]}" for word in words)[:_MAX_NAME_CHARS]
    return name if name and not name[0].isdigit() else f"T{name}"
