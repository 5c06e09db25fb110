"""The tools of one turn by their names: the turn's own, and those for the APIs of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from toolbus.agents.provider_names import ProviderNames, without_namespace
from toolbus.agents.tool_groups import ActiveGroups
from toolbus.agents.turn_calls import TurnEntry
from toolbus.chunks.json_values import shown
from toolbus.errors import NotFound
from toolbus.tools.tool_info import ToolInfo

__all__ = ["TurnTools"]

_MAX_NAME_CHARS = 129
"""Of an unknown name that is compared with others: two names of 64 and a dot."""
_MAX_COMPARED = 1_000
"""Names that an unknown one is compared with, 10 us for each."""
_MAX_LISTED_CHARS = 1_000
"""Of the names in the error for an unknown one."""


class TurnTools:
    """The table of a turn's tools; it does not change.

    Args:
        entries: The tools by name, in the order in which they are listed.
        groups: Which groups are active: tools of the others are not listed.
    """

    def __init__(self, entries: Mapping[str, TurnEntry], groups: ActiveGroups) -> None:
        self._entries = entries
        self._groups = groups
        self.provider_names: ProviderNames = ProviderNames(entries)
        """The names for providers, also of tools of inactive groups."""

    def listed(self) -> tuple[ToolInfo, ...]:
        """Return the tools that can be called now."""
        active = self._groups.is_active
        return tuple(each.info for each in self._entries.values() if active(each.group))

    def provider_name(self, name: str) -> str:
        """Return the name of a tool for providers. Raises `NotFound`."""
        found = self.provider_names.name_of(name)
        if found is None:
            raise _not_in_turn(name, self._entries)
        return found

    def named(self, provider_name: str) -> ToolInfo:
        """Return the tool that has a name for providers. Raises `NotFound`."""
        tool = self.provider_names.tool_of(provider_name)
        if tool is None:
            raise _not_in_turn(provider_name, self._entries)
        return self._entries[tool].info

    def of_program(self, name: str) -> TurnEntry:
        """Return the tool that a program names. Raises `NotFound`, with the names of all tools."""
        entry = self._find(name)
        if entry is None:
            raise _not_in_turn(name, self._entries)
        return entry

    def of_model(self, name: str) -> TurnEntry:
        """Return the tool that a model names, which may put a namespace before the name.

        Raises `NotFound` with the names that the model was given: those of active groups, and for
        providers unless the name has a dot, which no such name has.
        """
        entry = self._find(name)
        if entry is None:  # else a toolkit has the name of the namespace
            name = without_namespace(name)
            entry = self._find(name)
        if entry is None:
            known = [each.name for each in self.listed()]
            if "." not in name or "__" in name:
                known = [self.provider_name(each) for each in known]
            raise _not_in_turn(name, known)
        return entry

    def _find(self, name: str) -> TurnEntry | None:
        """Return a tool by its name, or by that for providers; None if there is none."""
        entry = self._entries.get(name)
        if entry is None and (tool := self.provider_names.tool_of(name)) is not None:
            entry = self._entries[tool]
        return entry


def _not_in_turn(tool: object, present: Iterable[str]) -> NotFound:
    """Make the error for an unknown tool; near names come first, and the text is bounded."""
    names = list(present)
    asked = str(tool)[:_MAX_NAME_CHARS]
    near = [each for each in names if each.endswith((f".{asked}", f"__{asked}"))]
    near = near or [each for each in names if asked.endswith(f".{each}")]
    near = near or get_close_matches(asked, names[:_MAX_COMPARED], n=3, cutoff=0.8)
    shown_names: list[str] = []
    left = _MAX_LISTED_CHARS
    for name in dict.fromkeys([*near, *names]):
        left -= len(name) + 2
        if left < 0:
            break
        shown_names.append(name)
    more = len(names) - len(shown_names)
    listed = ", ".join(shown_names) + (f", and {more:,} more" if more else "")
    hint = f"did you mean {near[0]}? Its" if near else "its"
    return NotFound(f"{shown(tool)} is not in this turn; {hint} tools: {listed or 'none'}")
