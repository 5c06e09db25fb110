"""Which tools and definitions of a toolkit a participant may list: computed in steps, and cached.

Pure. A toolkit has up to 1,000 tools, and a token may have hundreds of patterns; so a computation
pauses after every few comparisons, and its result serves all participants with the same grants.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from toolbus.auth.grants import SeenTools, ToolRights
from toolbus.wire import ToolManifest
from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit
from toolbus_server.registry.toolkit_definition import Definition

__all__ = ["MAX_CACHED_TOOLS", "STEP_EFFORT", "Listing", "Steps", "ToolVisibility"]

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A computation that pauses where it yields, and whose result is the value that it returns."""
Tools: TypeAlias = tuple[ToolManifest, ...]

STEP_EFFORT = 256
"""How many tools, or patterns that are tried one by one, one step compares: some 0.1 ms."""
MAX_CACHED_TOOLS = 256 * 1024
"""How many tools all cached results name together; one more empties the cache."""
_MAX_RESERVE = 16
"""Hosts choose how many there are, and all tools of each are compared for each reader (REG-14)."""


class Listing(NamedTuple):
    """What a participant may list of a toolkit."""

    tools: Tools
    """Those of the definition that serves."""
    reserve: tuple[Generation, ...]
    """The generations in reserve, the next to serve first; at most 16 are considered."""


class ToolVisibility:
    """Computes and caches what participants may see.

    Results are cached by grants and definition, for as long as both exist.
    """

    def __init__(self) -> None:
        self._cached: WeakKeyDictionary[ToolRights, WeakKeyDictionary[Definition, Tools]] = (
            WeakKeyDictionary()
        )
        self._cached_tools = 0

    def listed_tools(
        self, toolkit: RegisteredToolkit, participant: Participant, *, is_gone: bool = False
    ) -> Steps[Tools | None]:
        """Return the tools that a participant may see; None if it may not see the toolkit.

        Of one that is gone these are the tools that it could see until then. The result is that of
        the moment at which it is returned: definition and grants may change between two steps.
        """
        while True:
            if toolkit.is_present is is_gone or not toolkit.is_visible_to(participant):
                return None
            rights, definition = participant.rights, toolkit.serving.definition
            yield from definition.read_steps()
            tools = yield from self._tools(toolkit.name, definition, rights)
            if participant.rights is rights and toolkit.serving.definition is definition:
                break
        if toolkit.is_present is is_gone or not toolkit.is_visible_to(participant):
            return None
        if definition.is_name_only and rights.seen_in(toolkit.name).is_empty:
            return None
        return tools if tools or not definition.manifest.tools else None

    def listing(
        self, toolkit: RegisteredToolkit, participant: Participant
    ) -> Steps[Listing | None]:
        """Return the tools and the reserve that a participant may see; None if not the toolkit.

        The result is that of the moment at which it is returned.
        """
        while True:
            tools = yield from self.listed_tools(toolkit, participant)
            if tools is None:
                return None
            generations, rights, role = toolkit.generations, participant.rights, participant.role
            reserve = yield from self.listed_reserve(toolkit, participant)
            is_same = toolkit.generations is generations and participant.rights is rights
            if is_same and participant.role == role:
                return Listing(tools, reserve)

    def listed_reserve(
        self, toolkit: RegisteredToolkit, participant: Participant
    ) -> Steps[tuple[Generation, ...]]:
        """Return the generations in reserve that a participant may see.

        The result is that of the moment at which it is returned.
        """
        while True:
            generations, rights = toolkit.generations, participant.rights
            readable = []
            for generation in toolkit.reserve[:_MAX_RESERVE]:
                yield from generation.definition.read_steps()
                tools = yield from self._tools(toolkit.name, generation.definition, rights)
                if tools or not generation.definition.manifest.tools:
                    readable.append(generation)
            if toolkit.generations is generations and participant.rights is rights:
                return tuple(
                    generation
                    for generation in readable
                    if toolkit.is_visible_to(participant, generation)
                )

    def _tools(self, toolkit: str, definition: Definition, rights: ToolRights) -> Steps[Tools]:
        by_definition = self._cached.setdefault(rights, WeakKeyDictionary())
        known = by_definition.get(definition)
        if known is not None:
            return known
        seen = rights.seen_in(toolkit)
        if seen.is_empty:
            return ()
        if seen.everything:
            return definition.manifest.tools
        chosen = yield from _choose(definition.manifest.tools, seen)
        self._cached_tools += 1 + len(chosen)
        if self._cached_tools > MAX_CACHED_TOOLS:
            self._cached.clear()
            self._cached_tools = 1 + len(chosen)
        self._cached.setdefault(rights, WeakKeyDictionary())[definition] = chosen
        return chosen


def _choose(tools: Tools, seen: SeenTools) -> Steps[Tools]:
    chosen: list[ToolManifest] = []
    effort = 1 + seen.effort
    spent = 0
    for tool in tools:
        if seen.covers(tool.name):
            chosen.append(tool)
        spent += effort
        if spent >= STEP_EFFORT:
            yield
            spent = 0
    return tuple(chosen)
