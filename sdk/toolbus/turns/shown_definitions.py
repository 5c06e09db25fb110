"""Tools of an agent's process that only name another tool: a turn calls that one in their place.

So the call is that of the named tool in every respect: middlewares and permissions see it, with its
owner and its arguments; rules about it hold, for any owner; records, spans and results have its
name; its chunks, files and progress pass as ever; and it is made for whom the turn is for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolbus.auth.participant_names import addressed_name
from toolbus.errors import DefinitionChanged, NotFound, Unavailable
from toolbus.room.room import Room
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import TurnDefinitions
from toolbus.turns.seen_definitions import SeenDefinitions, definition_key
from toolbus.turns.tool_origins import Trust
from toolbus.turns.turn_calls import RemoteDispatch, TurnEntry

__all__ = ["CallsByName", "NamingTool", "ShownDefinitions"]


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
    """The calls of a `NamingTool` in one turn.

    Args:
        tool: The tool.
        room: Makes the calls, for the turn's principal; None in a turn without a room.
        shown: The definitions that were shown, and the toolkits of the turn.
    """

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
