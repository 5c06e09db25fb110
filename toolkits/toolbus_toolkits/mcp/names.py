"""The names of servers and tools in a room, made from those that others chose.

A name depends on the original alone, never on the order of a list or on what else is there: the
same tool has the same name whichever servers are reachable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["tool_name", "tool_names", "toolkit_name"]

# Of toolkits and tools (PROTOCOL.md, REG-3); of names that are cut, a hash tells them apart.
_MAX_CHARS = 64
_HASH_CHARS = 8
_TAKEN = frozenset({"mcp"})
"""Names of toolkits that stand beside those of servers."""


def toolkit_name(server: str) -> str:
    """Return the name of a server's toolkit: lower case, with `-` for what a name cannot have.

    A name that loses more than its capital letters gets a hash of the original at its end, so that
    no two servers have one toolkit: `Web Search` is `web-search-` with 8 digits. So has the name
    `mcp`, which is that of the hub's own toolkit.
    """
    text = re.sub(r"[^a-z0-9_-]", "-", server.lower())
    text = text if re.match(r"[a-z]", text) else f"mcp-{text}"
    return _fitting(text, server, changed=text != server.lower() or text in _TAKEN)


def tool_name(original: str) -> str:
    """Return the name of a tool: what it cannot have becomes `_`, with a hash at its end."""
    text = re.sub(r"[^A-Za-z0-9_-]", "_", original)
    return _fitting(text, original, changed=text != original)


def tool_names(originals: Iterable[str]) -> dict[str, str]:
    """Return the original of each name.

    Where a tool's own name is one that was made for another tool, the tool that bears it keeps it.
    """
    found: dict[str, str] = {}
    for original in sorted(originals, key=lambda name: (tool_name(name) != name, name)):
        found.setdefault(tool_name(original), original)
    return found


def _fitting(text: str, original: str, *, changed: bool) -> str:
    if not changed and 0 < len(text) <= _MAX_CHARS:
        return text
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{text[: _MAX_CHARS - _HASH_CHARS - 1]}-{digest}"
