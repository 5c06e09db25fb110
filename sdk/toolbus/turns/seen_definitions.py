"""Which definitions of toolkits a model was shown, so that a changed one is noticed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from toolbus.tools.tool_info import ToolInfo

__all__ = ["MAX_DEFINITIONS", "DefinitionKey", "SeenDefinitions", "definition_key"]

MAX_DEFINITIONS = 1_000
"""The most definitions that a state keeps."""
_MAX_CHARS = 1_024  # names of participants have at most 128, and issuers may be addresses


class DefinitionKey(NamedTuple):
    """A toolkit by whose it is; a definition is one state of it."""

    owner: str
    """The name of the identity that registered it; empty for one of the agent's process."""
    issuer: str
    toolkit: str
    """Its own name."""


def definition_key(tool: ToolInfo) -> DefinitionKey:
    """Return the key of a tool's toolkit."""
    return DefinitionKey(tool.owner, tool.issuer, tool.own_name.partition(".")[0])


class SeenDefinitions:
    """The digest of each toolkit as it was last shown, the one shown longest ago first.

    Beyond 1,000 toolkits, that one is forgotten, and its next definition is taken as a new one.

    Args:
        entries: Owner, issuer, toolkit and digest of each.

    Raises `ValueError` for anything else.
    """

    def __init__(self, entries: Iterable[Iterable[str]] = ()) -> None:
        self._digests: dict[DefinitionKey, str] = {}
        for entry in entries:
            texts = tuple(entry) if isinstance(entry, list | tuple) else ()
            if len(texts) != 4 or not all(
                isinstance(text, str) and len(text) <= _MAX_CHARS for text in texts
            ):
                raise ValueError("must be a list of owner, issuer, toolkit and digest")
            self.add(DefinitionKey(*texts[:3]), texts[3])

    def get(self, key: DefinitionKey) -> str | None:
        """Return the digest of a toolkit as it was last shown; None if it was not."""
        return self._digests.get(key)

    def add(
        self, key: DefinitionKey, digest: str, shown_with: Collection[DefinitionKey] = ()
    ) -> None:
        """Note that a definition is shown.

        Args:
            key: Its toolkit.
            digest: The definition.
            shown_with: The toolkits of the same turn. None of them is forgotten for this one: else
                others who add toolkits to a room could make an agent forget them.
        """
        self._digests.pop(key, None)
        if len(self._digests) >= MAX_DEFINITIONS:
            oldest = next(iter(self._digests))
            if oldest in shown_with:
                return
            del self._digests[oldest]
        self._digests[key] = digest

    def to_plain(self) -> list[list[str]]:
        """Return the entries as lists of text."""
        return [[*key, digest] for key, digest in self._digests.items()]
