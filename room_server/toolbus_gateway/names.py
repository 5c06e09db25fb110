"""The names of tools for clients of MCP, which take at most 64 of `A-Z a-z 0-9 _ -`.

A name depends on its toolkit and its tool alone, never on what else is listed: clients keep lists
of allowed tools by name.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["MAX_NAME_CHARS", "listed_name"]

MAX_NAME_CHARS = 64
_HASH_CHARS = 10
_SEPARATOR = "__"


def listed_name(toolkit: str, tool: str) -> str:
    """Return the name of a tool: `toolkit__tool`.

    One that is too long, or could be that of two tools, ends with a hash of both names: `a__b.c`
    and `a.b__c` differ.
    """
    name = f"{toolkit}{_SEPARATOR}{tool}"
    # `a_.b` and `a._b` would both be `a___b`, which is found twice where it overlaps.
    is_clear = name.find(_SEPARATOR) == name.rfind(_SEPARATOR)
    if is_clear and len(name) <= MAX_NAME_CHARS:
        return name
    digest = sha256(f"{toolkit}.{tool}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}-{digest}"
