"""What is inside a JSON Schema, as lines below each other: objects, what they hold, and so on.

A schema is a stranger's, so what is shown of it has an end: "..." stands where it comes back to
itself, and where it is deeper or wider than anybody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolbus.commands.schema_words import (
    MAX_STEPS,
    REST,
    SchemaReader,
    in_one_line,
    json_words,
    map_values,
)

__all__ = ["Node", "SchemaTree", "node_lines"]

_MAX_NODES = 300
_MAX_LEVELS = 8
_MAX_STEPS_IN = 32
_MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 1_000
_MAX_TYPE_WIDTH = 48
_MAX_PLACES = 16
_PARTS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "additionalProperties", "items"}
    | {"patternProperties", "prefixItems"}
)


@dataclass(frozen=True, slots=True)
class Node:
    """One line, and those that belong below it."""

    name: str
    words: str = ""
    """The type, and what may be left out."""
    description: str = ""
    inside: tuple[Node, ...] = ()


_REST_NODE = Node(REST)
_Path = tuple[int, ...]
"""The schemas that a look goes through, by identity: the root holds them all."""


class SchemaTree:
    """Looks into one schema.

    Args:
        root: The whole schema.
        levels: How many levels of nodes there may be; of a single one it is not said that there
            is more.
        max_steps: How many parts of the schema are looked at.
    """

    def __init__(
        self, root: Mapping[str, Any], levels: int = _MAX_LEVELS, max_steps: int = MAX_STEPS
    ) -> None:
        self._root = root
        self._reader = SchemaReader(root, max_steps)
        self._levels = levels
        self.goes_deep: bool = levels > 1
        """Whether it looks below the first level."""
        self._nodes_left = _MAX_NODES

    @property
    def words(self) -> str:
        """The type of the whole."""
        return self._reader.words(self._root)

    def nodes(self) -> tuple[Node, ...]:
        """Return what the whole has inside."""
        return tuple(self._inside(self._root, (), self._levels))

    def _inside(self, schema: Any, path: _Path, levels: int) -> Iterator[Node]:
        if not isinstance(schema, dict):
            return
        if not levels:
            if self.goes_deep and not _PARTS.isdisjoint(schema):
                yield _REST_NODE
            return
        if id(schema) in path or len(path) == _MAX_STEPS_IN or not self._reader.step():
            yield _REST_NODE
            return
        path = (*path, id(schema))
        for each in self._reader.all_of(schema):
            yield from self._inside(each, path, levels)
        yield from self._fields(schema, path, levels)
        yield from self._elements(schema, path, levels)
        yield from self._branches(schema, path, levels)

    def _fields(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[Node]:
        """Show what an object has by name, and what its other values are."""
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        needed = required[:_MAX_NODES] if isinstance(required, list) else []
        yield from self._made(
            ((name, each, name in needed) for name, each in named.items()), path, levels
        )
        others = map_values(schema)
        if named:
            yield from self._made((("(others)", each, True) for each in others), path, levels)
            return
        for each in others:
            yield from self._inside(each, path, levels)

    def _elements(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[Node]:
        """Show what an array holds: the elements of a tuple by their places."""
        places = schema.get("prefixItems")
        if isinstance(places, list):
            numbered = ((f"[{i}]", each, True) for i, each in enumerate(places[:_MAX_PLACES]))
            made = list(self._made(numbered, path, levels))
            if any(node.inside or node.description for node in made):
                yield from made
        yield from self._inside(schema.get("items"), path, levels)

    def _branches(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[Node]:
        """Show what is one of several; a single one that has anything inside stands for itself."""
        one_of = {key: schema.get(key) for key in ("anyOf", "oneOf")}
        told = [
            (each, inside)
            for each in self._reader.alternatives(one_of)
            if (inside := tuple(self._inside(each, path, levels)))
        ]
        if len(told) == 1:
            yield from told[0][1]
            return
        for number, (each, inside) in enumerate(told):
            title = in_one_line((self._reader.referred(each) or each).get("title"), 64)
            yield Node("or" if number else "either", title or self._reader.words(each), "", inside)

    def _made(
        self, parts: Iterable[tuple[str, Any, bool]], path: _Path, levels: int
    ) -> Iterator[Node]:
        for name, schema, required in parts:
            if self._nodes_left == 0:
                yield _REST_NODE
                return
            self._nodes_left -= 1
            told = schema if isinstance(schema, dict) else {}
            yield Node(
                in_one_line(name, _MAX_NAME_CHARS),
                self._type_and_default(told, required),
                self._description(told),
                tuple(self._inside(told, path, levels - 1)),
            )

    def _type_and_default(self, schema: dict[str, Any], required: bool) -> str:
        words = self._reader.words(schema)
        if "default" in schema:
            return f"{words} = {json_words(schema['default'])}"
        return words if required else f"{words}, optional"

    def _description(self, schema: dict[str, Any]) -> str:
        own = schema.get("description") or (self._reader.referred(schema) or {}).get("description")
        return in_one_line(own, _MAX_DESCRIPTION_CHARS)


def node_lines(nodes: Sequence[Node], indent: str) -> Iterator[str]:
    """Write nodes below each other, each column as wide as those beside it need."""
    width = max((len(node.name) for node in nodes), default=0)
    type_width = min(max((len(node.words) for node in nodes), default=0), _MAX_TYPE_WIDTH)
    for node in nodes:
        line = f"{indent}{node.name.ljust(width)}  {node.words.ljust(type_width)}"
        yield f"{line}  {node.description}".rstrip()
        yield from node_lines(node.inside, indent + "  ")
