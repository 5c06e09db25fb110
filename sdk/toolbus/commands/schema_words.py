"""What a JSON Schema says, in a few words: types, values, defaults.

A schema is a stranger's. It may refer to itself, and be deep or wide beyond reason, so a reader
takes a bounded number of steps through it and says "..." of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from toolbus.commands.schema_bounds import bounds_of

__all__ = [
    "MAX_STEPS",
    "REST",
    "SchemaReader",
    "in_one_line",
    "json_words",
    "map_values",
    "values_of",
]

REST = "..."
"""Stands for what is not shown."""
MAX_STEPS = 4_000
"""How many parts of one schema are looked at."""

_MAX_DEPTH = 8
_MAX_BRANCHES = 64
_MAX_VALUES = 12
_MAX_TYPED_VALUES = 1_000
_MAX_WORDS_CHARS = 200
_MAX_JSON_CHARS = 80
_MAX_REFERENCE_CHARS = 256
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_JSON_TYPES: MappingProxyType[type, str] = MappingProxyType(
    {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
        type(None): "null",
    }
)


def in_one_line(text: object, max_chars: int) -> str:
    """Put a stranger's words into one line, cut; what is no text is none."""
    if not isinstance(text, str):
        return ""
    return _cut(" ".join(text[: 2 * max_chars].split()), max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - len(REST)] + REST


def json_words(value: Any) -> str:
    """Write a value as JSON in one line, cut, without writing more of it than is shown."""
    told = ""
    try:
        for part in _ENCODER.iterencode(value):
            told += part
            if len(told) > _MAX_JSON_CHARS:
                break
    except (ValueError, TypeError, RecursionError):
        return REST
    return _cut(told, _MAX_JSON_CHARS)


class SchemaReader:
    """Reads the parts of one schema, in a bounded number of steps for all of them together.

    Args:
        root: The whole schema, to which references are relative.
        max_steps: How many steps that are.
    """

    def __init__(self, root: Mapping[str, Any], max_steps: int = MAX_STEPS) -> None:
        self._root = root
        self._steps_left = max_steps

    def step(self) -> bool:
        """Count one part that is looked at; False once there were too many."""
        self._steps_left -= 1
        return self._steps_left >= 0

    # Types

    def types(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Name the JSON types that a schema lets through; none where it does not say."""
        return frozenset(self._types(schema, _MAX_DEPTH))

    def _types(self, schema: Mapping[str, Any], depth: int) -> Iterator[str]:
        if not self.step():
            return
        match schema.get("type"):
            case str(kind):
                yield kind
            case list(kinds):
                yield from (kind for kind in kinds[:_MAX_BRANCHES] if isinstance(kind, str))
            case _ if (values := values_of(schema)) is not None:
                few = values[:_MAX_TYPED_VALUES]
                yield from (_JSON_TYPES[type(each)] for each in few if type(each) in _JSON_TYPES)
            case _ if depth:
                for each in self.alternatives(schema):
                    yield from self._types(each, depth - 1)

    # Words

    def words(self, schema: Mapping[str, Any]) -> str:
        """Say a schema's type: `integer`, `array of string`, `"a" | "b"`, `any`."""
        return self._words(schema, _MAX_DEPTH)

    def _words(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, dict):
            return "any"
        if not depth or not self.step():
            return REST
        return in_one_line(self._uncut_words(schema, depth), _MAX_WORDS_CHARS)

    def _uncut_words(self, schema: dict[str, Any], depth: int) -> str:
        if (values := values_of(schema)) is not None:
            told = [json_words(value) for value in values[:_MAX_VALUES]]
            return " | ".join([*told, *([REST] if len(values) > len(told) else [])])
        match schema.get("type"):
            case "array":
                return self._array_words(schema, depth)
            case "object":
                return self._object_words(schema, depth)
            case str(kind):
                form = in_one_line(schema.get("format"), 40)
                return _with_bounds(f"{kind} ({form})" if form else kind, kind, schema)
            case list(kinds):
                few = kinds[:_MAX_BRANCHES]
                return " | ".join(_with_bounds(str(kind), kind, schema) for kind in few)
        told = [self._words(each, depth - 1) for each in self.alternatives(schema)]
        return " | ".join(dict.fromkeys(told)) or ("object" if "properties" in schema else "any")

    def _array_words(self, schema: dict[str, Any], depth: int) -> str:
        places, items = schema.get("prefixItems"), schema.get("items")
        if isinstance(places, list) and places:
            told = [self._words(each, depth - 1) for each in places[:_MAX_VALUES]]
            goes_on = len(places) > len(told) or isinstance(items, dict)
            return f"array ({', '.join([*told, *([REST] if goes_on else [])])})"
        words = _with_bounds("array", "array", schema)
        if not isinstance(items, dict):
            return words
        of = " " if words != "array" else " of "
        return f"{words}{of}{_as_one(self._words(items, depth - 1))}"

    def _object_words(self, schema: dict[str, Any], depth: int) -> str:
        values = map_values(schema)
        if schema.get("properties") or not values:
            return "object"
        told = dict.fromkeys(self._words(each, depth - 1) for each in values)
        return f"map of {_as_one(' | '.join(told))}"

    # Parts

    def alternatives(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what a schema refers to, or is one or all of."""
        found = self.all_of(schema)
        for keyword in ("anyOf", "oneOf"):
            found += _schemas_in(schema.get(keyword))
        return found

    def all_of(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what a schema refers to, and what it is all of."""
        found = self.referred(schema)
        return [*([] if found is None else [found]), *_schemas_in(schema.get("allOf"))]

    def referred(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a schema's `$ref` names within the root, if it names anything there."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in filter(None, reference[1:_MAX_REFERENCE_CHARS].split("/")):
            if not isinstance(found, dict):
                return None
            found = found.get(part.replace("~1", "/").replace("~0", "~"))
        return found if isinstance(found, dict) else None


def _with_bounds(words: str, kind: object, schema: Mapping[str, Any]) -> str:
    bounds = bounds_of(kind, schema)
    return f"{words} {bounds}" if bounds else words


def _as_one(words: str) -> str:
    return f"({words})" if " | " in words else words


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def map_values(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of those values of an object that it has no names for."""
    patterns = schema.get("patternProperties")
    by_pattern = islice(patterns.values(), _MAX_BRANCHES) if isinstance(patterns, dict) else []
    return _schemas_in([*by_pattern, schema.get("additionalProperties")])


def _schemas_in(several: Sequence[Any] | None) -> list[dict[str, Any]]:
    if not isinstance(several, list):
        return []
    return [each for each in several[:_MAX_BRANCHES] if isinstance(each, dict)]
