"""The toolkit `tools`: a model finds tools of a room, reads their definitions, and calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from toolbus.auth.participant_names import full_name
from toolbus.errors import InvalidArguments, NotFound, ToolFailed, Unavailable
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import TurnDefinitions
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.agent_state import SeenDefinitions
from toolbus.turns.model_tools import Trust, quoted, visible_schema
from toolbus.turns.turn_tools import NamingTool, ShownDefinitions
from toolbus.untrusted_text import SHOWN_CHARS, one_line, visible

__all__ = ["FoundTools", "SearchableTools", "search_toolkit"]

_NAME = "tools"
# What a model asks for is part of each further request to it.
_MAX_FOUND = 50
_MAX_DESCRIBED = 20
_MAX_DESCRIBED_BYTES = 100_000
"""Of the definitions in one result, some 25,000 tokens; but one is always there."""
_SEARCH_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "query": {
            "type": "string",
            "description": "A name or some words; empty lists all tools.",
            "default": "",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_FOUND, "default": 10},
    },
}
_DESCRIBE_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": _MAX_DESCRIBED,
            "description": "Names of tools, or of toolkits for all of their tools.",
        },
    },
    "required": ["names"],
}
_CALL_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "name": {"type": "string", "description": "The tool, as search and describe name it."},
        "arguments": {
            "type": ["object", "string"],
            "description": "Its arguments, an object that matches its input_schema.",
            "default": {},
        },
    },
    "required": ["name"],
    "additionalProperties": False,
}
_CHANGED = "The definition of this tool's toolkit has changed since it was described before."


@dataclass(frozen=True, slots=True)
class FoundTools:
    """What `SearchableTools.search` has found."""

    tools: list[ToolInfo]
    """The best first."""
    more: int
    """How many further tools there are."""
    left_out: int
    """How many toolkits of the room are not searched, because there are too many tools."""


class SearchableTools(Protocol):
    """The tools that the toolkit searches: a `ToolSearch`."""

    async def search(self, query: str, limit: int, hidden: Collection[str] = ()) -> FoundTools:
        """Find tools by names and words, but none of hidden toolkits. Raises `Unavailable`."""

    def find(self, name: str) -> ToolInfo:
        """Return a tool by its name. Raises `NotFound` and `Unavailable`."""

    def tools_of(self, toolkit: str) -> list[str]:
        """Return the names of the tools of a toolkit; none if it is not known."""


def search_toolkit(tools: SearchableTools) -> Toolkit:
    """Make the toolkit over the tools of a room."""
    return Toolkit(
        _NAME,
        [_Search(tools), _Describe(tools), _Call(tools)],
        title="Tools of the room",
        description="Finds, describes and calls the tools of the room.",
        rules=[
            "The tools of the room are not listed here: find them with search, read the"
            " input_schema of a tool with describe, then call it with call."
        ],
    )


class _Search(Tool):
    name = "search"
    description = "Find tools of the room by names and words; the best come first."
    read_only = True
    orchestration = True

    def __init__(self, tools: SearchableTools) -> None:
        super().__init__(input_schema=dict(_SEARCH_SCHEMA))
        self._tools = tools

    async def execute(
        self, context: ToolContext, /, *_: Any, query: str = "", limit: int = 10
    ) -> dict[str, Any]:
        """Return `{"tools": [{name, description, owner}], "more": n}`.

        `more` says how many further tools there are, and `left_out`, if there is one, how many
        toolkits of the room are not searched because there are too many tools.
        """
        shown = _shown(context)
        try:
            found = await self._tools.search(query, limit, shown.toolkits)
        except Unavailable as error:
            raise ToolFailed(error.message) from None  # with its words, which a model can use
        result: dict[str, Any] = {
            "tools": [_line(tool, shown) for tool in found.tools],
            "more": found.more,
        }
        if found.left_out:
            result["left_out"] = found.left_out
        return result


class _Describe(Tool):
    name = "describe"
    description = "Read the definitions of tools of the room, with the schemas of their arguments."
    read_only = True
    orchestration = True

    def __init__(self, tools: SearchableTools) -> None:
        super().__init__(input_schema=dict(_DESCRIBE_SCHEMA))
        self._tools = tools

    async def execute(
        self, context: ToolContext, /, *_: Any, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return `{"tools": [{name, description, input_schema, owner}]}`.

        Further keys are there only if they say something: `missing`, `[{name, reason}]`; and
        `left_out`, names whose definitions would have made the result too long.
        """
        shown = _shown(context)
        definitions: dict[str, dict[str, Any]] = {}
        missing: list[dict[str, str]] = []
        left_out: list[str] = []
        left = _MAX_DESCRIBED_BYTES
        for name in self._asked(names):
            if left < 0:
                left_out.append(name)
                continue
            try:
                tool = self._tools.find(name)
            except (NotFound, Unavailable) as error:
                missing.append({"name": name[:SHOWN_CHARS], "reason": error.message})
                continue
            definition = _definition(tool, shown)
            left -= len(json.dumps(definition))
            if left < 0 and definitions:
                left_out.append(tool.name)
                continue
            shown.show(tool)
            definitions[tool.name] = definition
            await asyncio.sleep(0)  # a schema that is new here takes 200 ms at most
        result: dict[str, Any] = {"tools": [*definitions.values()]}
        if missing:
            result["missing"] = missing
        if left_out:
            result["left_out"] = left_out[:_MAX_FOUND]
        return result

    def _asked(self, names: Sequence[str]) -> Iterable[str]:
        """Return the names of tools, each once; of a toolkit those of all its tools."""
        asked: dict[str, None] = {}
        for name in names:
            asked |= dict.fromkeys(self._tools.tools_of(name) or [name])
        return asked


class _Call(NamingTool):
    name = "call"
    description = "Call a tool of the room that search has found and describe has described."
    open_world = True
    destructive = True

    def __init__(self, tools: SearchableTools) -> None:
        super().__init__(input_schema=dict(_CALL_SCHEMA))
        self._tools = tools

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return super().read_arguments(arguments)
        except InvalidArguments as error:
            # A model that lists a tool's arguments beside its name has to read where they belong.
            error.message += "; the arguments of the tool go into `arguments`"
            raise

    def named(self, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        return arguments["name"], arguments.get("arguments", {})

    def find(self, name: str) -> ToolInfo:
        return self._tools.find(name)

    def reached(self, arguments: Mapping[str, Any]) -> str:
        name = arguments.get("name")
        return name if isinstance(name, str) else ""

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Any:
        """Refuse: a turn calls the named tool in place of this one."""
        raise context.refuse(Unavailable("tools are called by name in a turn", retryable=False))


def _shown(context: ToolContext) -> TurnDefinitions:
    """Return what the turn has shown. Outside of turns only tools of this process are trusted."""
    return run_of(context).shown_definitions or ShownDefinitions(Trust(), SeenDefinitions())


def _line(tool: ToolInfo, shown: TurnDefinitions) -> dict[str, Any]:
    text = visible(" ".join(tool.description.split()), SHOWN_CHARS)
    is_trusted = shown.is_trusted(tool)
    if is_trusted:
        return {"name": tool.name, "description": text}
    return {"name": tool.name, "description": quoted(text, tool), **_owner(tool)}


def _definition(tool: ToolInfo, shown: TurnDefinitions) -> dict[str, Any]:
    is_trusted = shown.is_trusted(tool)
    as_shown = visible if is_trusted else partial(quoted, tool=tool)
    description = as_shown(tool.description)
    if shown.has_changed(tool):
        description = f"{_CHANGED}\n\n{description}"
    definition: dict[str, Any] = {
        "name": tool.name,
        "description": description,
        "input_schema": tool.input_schema,
    }
    if rules := [*tool.rules, *tool.toolkit_rules]:
        definition["rules"] = as_shown("\n".join(rules))
    if not is_trusted:
        definition |= {"input_schema": visible_schema(tool.input_schema), **_owner(tool)}
    return definition


def _owner(tool: ToolInfo) -> dict[str, str]:
    return {"owner": one_line(full_name(tool.owner, tool.alias), SHOWN_CHARS)}
