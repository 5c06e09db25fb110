"""The names of tools for the APIs of models, and the way back from them.

Providers take at most 64 of `A-Z a-z 0-9 _ -`, so the dot of `toolkit.tool` becomes `__`. Where
that would be too long or could be read in two ways, the name ends with a hash. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

__all__ = ["MAX_PROVIDER_NAME_CHARS", "ProviderNames", "without_namespace"]

MAX_PROVIDER_NAME_CHARS = 64
"""The longest name that every provider takes."""
_HASH_CHARS = 10
_NAMESPACES = ("functions.", "default_api.", "default_api:")
"""What models of OpenAI and of Gemini at times put before a name: tools are shown to them so."""


class ProviderNames:
    """The table of one turn: each tool has one name, and no two tools have the same.

    Args:
        tools: All tools, as `toolkit.tool`. The order matters only if two hashes are equal.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self._by_tool: dict[str, str] = {}
        self._by_name: dict[str, str] = {}
        for tool in tools:
            name = next(each for each in _candidates(tool) if each not in self._by_name)
            self._by_tool[tool] = name
            self._by_name[name] = tool

    def name_of(self, tool: str) -> str | None:
        """Return the name of a tool for a provider; None if it is not in the table."""
        return self._by_tool.get(tool)

    def tool_of(self, name: str) -> str | None:
        """Return the tool of such a name; None if it is not in the table."""
        return self._by_name.get(name)


def without_namespace(name: str) -> str:
    """Return a name as a model wrote it, without the namespace that some models put before it."""
    for namespace in _NAMESPACES:
        if name.startswith(namespace):
            return name.removeprefix(namespace)
    return name


def _candidates(tool: str) -> Iterator[str]:
    toolkit, _, name = tool.partition(".")
    plain = f"{toolkit}__{name}"
    # The first `__` is where the toolkit's name ends, unless that has one or ends with `_`.
    if plain.index("__") == len(toolkit) and len(plain) <= MAX_PROVIDER_NAME_CHARS:
        yield plain
    number = 0
    while True:
        digest = sha256(f"{tool}{number or ''}".encode()).hexdigest()[:_HASH_CHARS]
        yield f"{plain[: MAX_PROVIDER_NAME_CHARS - _HASH_CHARS - 1]}-{digest}"
        number += 1
