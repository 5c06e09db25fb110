"""The names of tools for clients of MCP, which take at most 64 of `A-Z a-z 0-9 _ -`.

A name depends on its toolkit and its tool alone, never on what else is listed: clients keep lists
of allowed tools by name.
"""

from __future__ import annotations

from hashlib import sha256

from toolbus_gateway.limits import MAX_NAME_CHARS

__all__ = ["SEARCH_NAMES", "listed_name", "own_name"]

_HASH_CHARS = 10
_SEPARATOR = "__"
SEARCH_NAMES = {f"tools{_SEPARATOR}{tool}": tool for tool in ("search", "describe", "call")}
"""The tools of the gateway that stand in place of a long list, by their names.

No tool of a room has one of these names, whether or not there is a long list: a client that allows
`tools__call` would else allow what anybody hosts as `tools.call`.
"""


def listed_name(toolkit: str, tool: str) -> str:
    """Return the name of a tool under the path of a room: `toolkit__tool`.

    One that is too long, could be that of two tools, or is one of `SEARCH_NAMES` ends with a hash
    of both names: `a__b.c` and `a.b__c` differ.
    """
    name = f"{toolkit}{_SEPARATOR}{tool}"
    # `a_.b` and `a._b` would both be `a___b`, which is found twice where it overlaps.
    is_clear = name.find(_SEPARATOR) == name.rfind(_SEPARATOR)
    if is_clear and len(name) <= MAX_NAME_CHARS and name not in SEARCH_NAMES:
        return name
    return _hashed(name, toolkit, tool)


def own_name(toolkit: str, tool: str) -> str:
    """Return the name of a tool under the path of its toolkit: its own, with few exceptions."""
    return _hashed(tool, toolkit, tool) if tool in SEARCH_NAMES else tool


def _hashed(name: str, toolkit: str, tool: str) -> str:
    digest = sha256(f"{toolkit}.{tool}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}-{digest}"
