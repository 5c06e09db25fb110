"""The subschemas of a JSON Schema: what each keyword holds, and where it is applied. Pure.

The keywords are those of draft 2020-12. What depends on this table: how a schema of somebody else
is read, what it costs, and which checks stay right when another one is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any

__all__ = [
    "ANNOTATIONS",
    "CHILDREN",
    "DEFINITIONS",
    "IN_PLACE",
    "JSON_TYPES",
    "SUBSCHEMAS",
    "UNEVALUATED",
    "Holds",
    "Part",
    "types_of",
]

JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}


class Holds(Enum):
    """What a keyword with subschemas holds."""

    ONE = auto()
    LIST = auto()
    NAMED = auto()
    """A map from names, or patterns, to schemas."""


IN_PLACE = {
    "allOf": Holds.LIST,
    "anyOf": Holds.LIST,
    "oneOf": Holds.LIST,
    "not": Holds.ONE,
    "if": Holds.ONE,
    "then": Holds.ONE,
    "else": Holds.ONE,
    "dependentSchemas": Holds.NAMED,
}
"""Keywords whose subschemas are applied to the same value, as `$ref` is."""
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
"""Keywords that are not checked in schemas of others, nor read: see `foreign_schemas`."""
CHILDREN = {
    "properties": Holds.NAMED,
    "patternProperties": Holds.NAMED,
    "additionalProperties": Holds.ONE,
    "propertyNames": Holds.ONE,
    "prefixItems": Holds.LIST,
    "items": Holds.ONE,
    "contains": Holds.ONE,
}
"""Keywords whose subschemas are applied to the properties, their names, or the items of a value."""
DEFINITIONS = {"$defs": Holds.NAMED, "definitions": Holds.NAMED, "contentSchema": Holds.ONE}
"""Keywords whose subschemas are applied only where a `$ref` leads to them."""
SUBSCHEMAS = {**IN_PLACE, **CHILDREN, **DEFINITIONS}
ANNOTATIONS = frozenset(
    {
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
"""Keywords that check nothing."""


def types_of(part: dict[str, Any]) -> list[str]:
    """Return the types that a part names, as a list; empty if it names none."""
    kinds = part.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


class Part:
    """A subschema that is an object.

    Args:
        parent: The subschema that it is in; None for the whole schema.
        keyword: The keyword of the parent that holds it.
        name: Its index or its name in the keyword; None if the keyword holds one schema.
        level: How many objects and lists it is in, with itself.
    """

    __slots__ = (
        "accepts_more",
        "children",
        "fields",
        "is_gone",
        "keyword",
        "level",
        "name",
        "parent",
        "referrers",
        "target",
    )

    def __init__(self, parent: Part | None, keyword: str, name: str | None, level: int) -> None:
        self.parent: Part | None = parent
        self.keyword: str = keyword
        self.name: str | None = name
        self.level: int = level
        self.fields: dict[str, Any] = {}
        """What is kept of it. Subschemas in it are a `Part` or a boolean."""
        self.children: dict[tuple[str, ...], Part] = {}
        """The subschemas by what a JSON pointer has for them."""
        self.target: Part | None = None
        """Where its `$ref` leads."""
        self.referrers: list[Part] = []
        self.is_gone: bool = False
        """Whether it is in a keyword that was dropped."""
        self.accepts_more: bool = False
        """Whether something of it is not checked."""

    @property
    def path(self) -> list[str]:
        """The keys that lead to it in the schema as it is now."""
        steps: list[str] = []
        part = self
        while part.parent is not None:
            steps += [part.keyword] if part.name is None else [part.name, part.keyword]
            part = part.parent
        return steps[::-1]

    def under(self, keyword: str) -> Iterator[Part]:
        """Yield the subschemas of a keyword, those that are objects."""
        held = self.fields.get(keyword)
        if type(held) is Part:
            yield held
        elif keyword in SUBSCHEMAS and isinstance(held, dict | list):
            items: Iterable[Any] = held.values() if isinstance(held, dict) else held
            yield from (item for item in items if type(item) is Part)

    def in_place(self) -> Iterator[Part]:
        """Yield the subschemas that are applied to the same value."""
        if self.target is not None:
            yield self.target
        for keyword in self.fields:
            if keyword in IN_PLACE:
                yield from self.under(keyword)
