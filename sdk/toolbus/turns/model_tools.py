"""A tool of a turn as a model is shown it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.schemas.argument_schema import IdentityCache
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.seen_definitions import DefinitionKey, SeenDefinitions, definition_key
from toolbus.turns.tool_origins import Trust, quoted, visible_schema
from toolbus.turns.turn_calls import TurnEntry
from toolbus.untrusted_text import visible

__all__ = ["ModelTool", "ShownTools"]

_logger = bounded_logger("toolbus.turns.turn")
_MAX_LOGGED = 20
_CHANGED = "The definition of this tool's toolkit has changed since an earlier turn."


@dataclass(frozen=True, slots=True, eq=False)
class ModelTool:
    """A tool as a model is shown it: `Turn.model_tools` has one for each tool of `Turn.tools`.

    The same tool of the same definition has the same `input_schema` object in every turn of a
    room client, so that what is derived from it can be kept by its identity.
    """

    name: str
    """The name for a provider: `Turn.provider_name`."""
    description: str
    """The description. What somebody wrote who is not trusted is quoted as data, and cut after
    4,000 characters; hidden characters are visible."""
    input_schema: dict[str, Any]
    """The JSON Schema of the arguments. Not to be changed. In one of somebody who is not trusted
    hidden characters of descriptions and titles are visible."""
    tool: ToolInfo
    """The tool itself, with its words as they were written."""
    changed: bool = False
    """Whether the definition of its toolkit is another one than in an earlier turn with the same
    state: see `Turn.changed_definitions`."""


class ShownTools:
    """The tools of one turn as a model is shown them; those of changed definitions are logged.

    Args:
        entries: The tools.
        trust: Whose words are instructions.
        seen: The definitions that earlier turns have shown.
        name_of: Returns the name of a tool for providers.
    """

    def __init__(
        self,
        entries: Iterable[TurnEntry],
        trust: Trust,
        seen: SeenDefinitions,
        name_of: Callable[[str], str],
    ) -> None:
        self.trust: Trust = trust
        """Whose words are instructions."""
        self._name_of = name_of
        self._seen = seen
        self._made: dict[str, ModelTool] = {}
        self._definitions: dict[str, tuple[DefinitionKey, str]] = {}
        changed: dict[str, str] = {}
        for entry in entries:
            tool = entry.info
            if tool.toolkit in self._definitions or not (tool.owner or "mcp" in tool.annotations):
                continue  # others of this process are the program's own
            key = definition_key(tool)
            digest = entry.dispatch.digest
            self._definitions[tool.toolkit] = (key, digest)
            if seen.get(key) not in (None, digest) and not trust.is_pinned(digest):
                changed[tool.toolkit] = f"{tool.toolkit} of {tool.owner or 'this process'}"
        self._keys = {key for key, _ in self._definitions.values()}
        self.changed: tuple[str, ...] = tuple(changed)
        """The toolkits, by their names in the turn, that differ from an earlier turn."""
        if changed:
            _logger.warning(
                "definitions that have changed since an earlier turn with this state (%d): %s",
                len(changed),
                ", ".join([*changed.values()][:_MAX_LOGGED]),
            )

    def of(self, tool: ToolInfo) -> ModelTool:
        """Return a tool of the turn as a model is shown it; from now on it was shown."""
        made = self._made.get(tool.name)
        if made is None:
            made = self._made[tool.name] = self._make(tool)
            if (definition := self._definitions.get(tool.toolkit)) is not None:
                self._seen.add(*definition, shown_with=self._keys)
        return made

    def _make(self, tool: ToolInfo) -> ModelTool:
        is_changed = tool.toolkit in self.changed
        is_trusted = self.trust.of_tool(tool)
        texts = _texts(tool.input_schema)
        schema = tool.input_schema if is_trusted else texts.schema()
        description = texts.description(tool, is_trusted=is_trusted)
        if is_changed:
            description = f"{_CHANGED}\n\n{description}"
        return ModelTool(self._name_of(tool.name), description, schema, tool, is_changed)


class _ToolTexts:
    """The texts that are derived from the definition of one tool."""

    __slots__ = ("_described", "_description", "_schema", "source")

    def __init__(self, source: dict[str, Any]) -> None:
        self.source = source
        self._schema: dict[str, Any] | None = None
        self._described: tuple[object, ...] = ()
        self._description = ""

    def schema(self) -> dict[str, Any]:
        """Return the schema of a tool of somebody who is not trusted."""
        if self._schema is None:
            self._schema = visible_schema(self.source)
        return self._schema

    def description(self, tool: ToolInfo, *, is_trusted: bool) -> str:
        author = (tool.owner, tool.alias, tool.annotations.get("mcp"))
        described = (tool.description, None if is_trusted else author)
        if self._described != described:  # tools may share a schema
            text = visible(tool.description) if is_trusted else quoted(tool.description, tool)
            self._description = text
            self._described = described
        return self._description


# Turns follow each other with the same tools, whose schemas are the same objects for as long as a
# room client knows their definition. Not by its digest, which another server may claim for others.
_texts = IdentityCache(_ToolTexts)
