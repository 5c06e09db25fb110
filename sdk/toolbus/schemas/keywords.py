"""The keywords of JSON Schema 2020-12: what each holds, and where that is applied. Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

__all__ = [
    "ANNOTATIONS",
    "CHILDREN",
    "DEFINITIONS",
    "HELD",
    "IN_PLACE",
    "JSON_TYPES",
    "SUBSCHEMAS",
    "UNEVALUATED",
    "Holds",
    "one_or_all",
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
UNEVALUATED = {"unevaluatedProperties": Holds.ONE, "unevaluatedItems": Holds.ONE}
"""Keywords that are not checked in schemas of others, nor read: see `foreign`."""
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
HELD = {**SUBSCHEMAS, **UNEVALUATED, "additionalItems": Holds.ONE, "dependencies": Holds.NAMED}
"""All keywords with subschemas, with two of older drafts; a dependency may be a list of names."""
ANNOTATIONS = frozenset(
    "$comment contentEncoding contentMediaType default deprecated description examples readOnly "
    "title writeOnly".split()
)
"""Keywords that check nothing."""


def types_of(part: dict[str, Any]) -> list[str]:
    """Return the types that a part names, as a list; empty if it names none."""
    kinds = part.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def one_or_all(values: list[str]) -> str | list[str]:
    """Return the only one of some types, or all of them: what `type` may be."""
    return values[0] if len(values) == 1 else values
