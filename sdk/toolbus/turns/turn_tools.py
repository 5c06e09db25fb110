"""The tools of one turn by their names: the turn's own, those for the APIs of models, those named.

Providers take at most 64 of `A-Z a-z 0-9 _ -`, so the dot of `toolkit.tool` becomes `__`. Where
that would be too long or could be read in two ways, the name ends with a hash.

A `NamingTool` of an agent's process only names another tool: the turn calls that one in its place.
So the call is that of the named tool in every respect: middlewares and permissions see it, with its
owner and its arguments; rules about it hold, for any owner; records, spans and results have its
name; its chunks, files and progress pass as ever; and it is made for whom the turn is for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from itertools import count
from typing import Any

from toolbus.auth.participant_names import addressed_name
from toolbus.chunks.json_values import shown
from toolbus.errors import DefinitionChanged, NotFound, Unavailable
from toolbus.room.room import Room
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import TurnDefinitions
from toolbus.turns.agent_state import SeenDefinitions, definition_key
from toolbus.turns.model_tools import Trust
from toolbus.turns.tool_groups import ActiveGroups
from toolbus.turns.turn_calls import LocalDispatch, RemoteDispatch, TurnEntry

__all__ = [
    "MAX_PROVIDER_NAME_CHARS",
    "CallsByName",
    "NamingTool",
    "ProviderNames",
    "ShownDefinitions",
    "TurnTools",
    "without_namespace",
]

MAX_PROVIDER_NAME_CHARS = 64
"""The longest name that every provider takes."""
_HASH_CHARS = 10
"""Of 40 bits; names that are still equal get a number."""
_NAMESPACES = ("functions.", "default_api.", "default_api:")
"""What models of OpenAI and of Gemini at times put before a name: tools are shown to them so."""
_MAX_NAME_CHARS = 129
"""Of an unknown name that is compared with others: two names of 64 and a dot."""
_MAX_COMPARED = 1_000
"""Names that an unknown one is compared with, 10 us for each."""
_MAX_COMPARED_BY_MODEL = 10_000
"""Names that all unknown ones of a model's uses are compared with: a reply may have thousands."""
_MAX_LISTED_CHARS = 1_000
"""Of the names in the error for an unknown one."""


class TurnTools:
    """The table of a turn's tools; it does not change."""

    def __init__(self, entries: Mapping[str, TurnEntry], groups: ActiveGroups) -> None:
        self._entries = entries
        self._groups = groups
        self._left_to_compare = _MAX_COMPARED_BY_MODEL
        self.provider_names: ProviderNames = ProviderNames(entries)
        """The names for providers, also of tools of inactive groups."""

    def listed(self) -> tuple[ToolInfo, ...]:
        """Return the tools that can be called now."""
        active = self._groups.is_active
        return tuple(entry.info for entry in self._entries.values() if active(entry.group))

    def prompt_texts(self) -> list[str]:
        """Return what the active toolkits of this process have for the prompt now."""
        toolkits = {
            entry.info.toolkit: entry.dispatch
            for entry in self._entries.values()
            if self._groups.is_active(entry.group) and isinstance(entry.dispatch, LocalDispatch)
        }
        return [text for dispatch in toolkits.values() if (text := dispatch.prompt_text())]

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
        entry = self._entries.get(name) or self.find(name)
        if entry is None:
            raise _not_in_turn(name, self._entries)
        return entry

    def of_model(self, name: str) -> TurnEntry:
        """Return the tool that a model names, which may put a namespace before the name.

        Raises `NotFound` with the names that the model was given: those of active groups, and for
        providers unless the name has a dot, which no such name has.
        """
        entry = self.find_by_model(name)
        if entry is None:
            name = without_namespace(name)
            known = [tool.name for tool in self.listed()]
            if "." not in name or "__" in name:
                known = [self.provider_name(tool_name) for tool_name in known]
            compared = min(len(known), _MAX_COMPARED, self._left_to_compare)
            self._left_to_compare -= compared
            error = _not_in_turn(name, known, compared)
            for other in self._entries.values():
                if other.naming is not None:  # models call by its name what they have found
                    error.message += f"; a tool of the room is called with {other.info.name}"
                    break
            raise error
        return entry

    def find_by_model(self, name: str) -> TurnEntry | None:
        """Return the tool that a model names; None if there is none."""
        # In this order: a toolkit may have the name of the namespace.
        return self.find(name) or self.find(without_namespace(name))

    def check_active(self, entry: TurnEntry) -> None:
        """Raise `ToolInactive` for a tool of an inactive group."""
        self._groups.check(entry.info.name, entry.group)

    def find(self, name: str) -> TurnEntry | None:
        """Return a tool by its name, or by that for providers; None if there is none."""
        entry = self._entries.get(name)
        if entry is None and (tool := self.provider_names.tool_of(name)) is not None:
            entry = self._entries[tool]
        return entry


def _not_in_turn(tool: object, present: Iterable[str], compared: int = _MAX_COMPARED) -> NotFound:
    """Make the error for an unknown tool; near names come first, and the text is bounded."""
    names = list(present)
    asked = str(tool)[:_MAX_NAME_CHARS]
    endings = (f".{asked}", f"__{asked}")
    near = [name for name in names if name.endswith(endings)]
    near = near or [name for name in names if asked.endswith(f".{name}")]
    near = near or get_close_matches(asked, names[:compared], n=3, cutoff=0.8)
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


class ProviderNames:
    """The table of one turn: each tool has one name, and no two tools have the same.

    Args:
        tools: All tools, as `toolkit.tool`. The order matters only if two hashes are equal.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self._by_tool: dict[str, str] = {}
        self._by_name: dict[str, str] = {}
        for tool in tools:
            name = next(
                candidate for candidate in _candidates(tool) if candidate not in self._by_name
            )
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
    for number in count():
        digest = sha256(f"{tool}{number or ''}".encode()).hexdigest()[:_HASH_CHARS]
        yield f"{plain[: MAX_PROVIDER_NAME_CHARS - _HASH_CHARS - 1]}-{digest}"


@dataclass(frozen=True, slots=True)
class ShownDefinitions:
    """What a turn has shown: a tool in its process finds it as `run.shown_definitions`."""

    trust: Trust
    """Whose words are instructions."""
    seen: SeenDefinitions
    """The definitions that were shown with the same state."""
    toolkits: set[str] = field(default_factory=set)

    def is_trusted(self, tool: ToolInfo) -> bool:
        """Whether the description, the rules and the schema of a tool are instructions."""
        return self.trust.of_tool(tool)

    def has_changed(self, tool: ToolInfo) -> bool:
        """Whether the definition of a tool's toolkit is another one than was shown before."""
        if self.trust.is_pinned(tool.digest):
            return False
        return self.seen.get(definition_key(tool)) not in (None, tool.digest)

    def show(self, tool: ToolInfo) -> None:
        """Note that the definition of a tool's toolkit is shown."""
        self.seen.add(definition_key(tool), tool.digest)


class NamingTool(Tool):
    """A tool whose arguments name a tool of the agent's room, and have the arguments for it."""

    @abstractmethod
    def named(self, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the named tool and its arguments, which are not checked.

        Args:
            arguments: Those of a call, which match the schema.
        """

    @abstractmethod
    def find(self, name: str) -> ToolInfo:
        """Return a tool of the room. Raises `NotFound`, or why there is none now."""


class CallsByName:
    """The calls of a `NamingTool` in one turn."""

    def __init__(self, tool: NamingTool, room: Room | None, shown: TurnDefinitions) -> None:
        self._tool = tool
        self._room = room
        self._shown = shown

    def read(self, arguments: dict[str, Any]) -> tuple[str, Any]:
        """Return the named tool and its arguments. Raises `InvalidArguments`."""
        return self._tool.named(self._tool.read_arguments(arguments))

    def entry(self, name: str, group: str) -> TurnEntry:
        """Return a tool that is not in the turn.

        Args:
            name: Its name.
            group: The group of the `NamingTool`: while it is inactive, no call of it begins.

        Raises:
            NotFound: There is none of this name, or its toolkit is another one in this turn.
            DefinitionChanged: The model was shown another definition: it has to read this one.
            Unavailable: The turn has no room.
        """
        if self._room is None:
            text = "a turn without a room has no further tools"
            raise Unavailable(text, executed="no", retryable=False)
        info = self._tool.find(name)
        if info.toolkit in self._shown.toolkits:
            text = f"{info.toolkit} is a toolkit of this turn itself, without {info.name}"
            raise NotFound(text)
        if self._shown.has_changed(info):
            raise DefinitionChanged(
                f"the definition of {info.toolkit} has changed since it was described: describe"
                f" {info.name} again",
                executed="no",
                details={"toolkit": info.toolkit, "digest": info.digest},
            )
        owner = addressed_name(info.owner, info.alias)
        dispatch = RemoteDispatch(self._room, info.own_name, owner, info.digest)
        return TurnEntry(info, dispatch, group)
