"""Describes a JSON Schema as text: types, bounds, defaults, and a tree of its fields.

Schemas are untrusted: they may refer to themselves, and be deep or wide without limit. So a reader
takes a bounded number of steps through one schema and shows "..." for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from toolbus.schemas.keywords import JSON_TYPES

__all__ = [
    "MAX_STEPS",
    "REST",
    "SchemaNode",
    "SchemaReader",
    "SchemaTree",
    "node_lines",
    "values_of",
]

REST = "..."
"""Stands for what is not shown."""
MAX_STEPS = 4_000
"""How many parts of one schema are read."""

_MAX_DEPTH = 8
_MAX_BRANCHES = 64
_MAX_VALUES = 12
_MAX_TYPED_VALUES = 1_000
_MAX_TYPE_CHARS = 200
_MAX_JSON_CHARS = 80
_MAX_REFERENCE_CHARS = 256
_MAX_NUMBER_CHARS = 24
_MAX_PATTERN_CHARS = 40

_MAX_NODES = 300
_MAX_LEVELS = 8
_MAX_PATH = 32
_MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 1_000
_MAX_TYPE_WIDTH = 48
_MAX_TUPLE_ITEMS = 16

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_LENGTHS: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
)
_PARTS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "additionalProperties", "items"}
    | {"patternProperties", "prefixItems"}
)


# Types: one schema as one short text


class SchemaReader:
    """Reads the parts of one schema, in a bounded number of steps for all of them together.

    Args:
        root: The whole schema; references are relative to it.
        max_steps: The number of steps.
    """

    def __init__(self, root: Mapping[str, Any], max_steps: int = MAX_STEPS) -> None:
        self._root = root
        self._steps_left = max_steps

    def step(self) -> bool:
        """Count one part that is read; False if there were too many."""
        self._steps_left -= 1
        return self._steps_left >= 0

    def types(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Return the JSON types that a schema allows; empty if it does not restrict them."""
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
                yield from (JSON_TYPES[type(value)] for value in few if type(value) in JSON_TYPES)
            case _ if depth:
                for branch in self.alternatives(schema):
                    yield from self._types(branch, depth - 1)

    def type_text(self, schema: Mapping[str, Any]) -> str:
        """Return a schema's type as text: `integer`, `array of string`, `"a" | "b"`, `any`."""
        return self._type_text(schema, _MAX_DEPTH)

    def _type_text(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, dict):
            return "any"
        if not depth or not self.step():
            return REST
        return _in_one_line(self._full_type_text(schema, depth), _MAX_TYPE_CHARS)

    def _full_type_text(self, schema: dict[str, Any], depth: int) -> str:
        if (values := values_of(schema)) is not None:
            shown = [_json_text(value) for value in values[:_MAX_VALUES]]
            return " | ".join([*shown, *([REST] if len(values) > len(shown) else [])])
        match schema.get("type"):
            case "array":
                return self._array_text(schema, depth)
            case "object":
                return self._object_text(schema, depth)
            case str(kind):
                form = _in_one_line(schema.get("format"), 40)
                return _with_bounds(f"{kind} ({form})" if form else kind, kind, schema)
            case list(kinds):
                few = kinds[:_MAX_BRANCHES]
                return " | ".join(_with_bounds(str(kind), kind, schema) for kind in few)
        texts = [self._type_text(branch, depth - 1) for branch in self.alternatives(schema)]
        return " | ".join(dict.fromkeys(texts)) or ("object" if "properties" in schema else "any")

    def _array_text(self, schema: dict[str, Any], depth: int) -> str:
        tuple_items, items = schema.get("prefixItems"), schema.get("items")
        if isinstance(tuple_items, list) and tuple_items:
            shown = [self._type_text(item, depth - 1) for item in tuple_items[:_MAX_VALUES]]
            has_more = len(tuple_items) > len(shown) or isinstance(items, dict)
            return f"array ({', '.join([*shown, *([REST] if has_more else [])])})"
        text = _with_bounds("array", "array", schema)
        if not isinstance(items, dict):
            return text
        of = " " if text != "array" else " of "
        return f"{text}{of}{_in_parentheses(self._type_text(items, depth - 1))}"

    def _object_text(self, schema: dict[str, Any], depth: int) -> str:
        values = _map_values(schema)
        if schema.get("properties") or not values:
            return "object"
        texts = dict.fromkeys(self._type_text(part, depth - 1) for part in values)
        return f"map of {_in_parentheses(' | '.join(texts))}"

    def alternatives(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas under `$ref`, `allOf`, `anyOf` and `oneOf`."""
        found = self.all_of(schema)
        for keyword in ("anyOf", "oneOf"):
            found += _schemas_in(schema.get(keyword))
        return found

    def all_of(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas under `$ref` and `allOf`."""
        found = self.resolve(schema)
        return [*([] if found is None else [found]), *_schemas_in(schema.get("allOf"))]

    def resolve(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the schema that `$ref` points to, if it is within the root."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in filter(None, unquote(reference[1:_MAX_REFERENCE_CHARS]).split("/")):
            if not isinstance(found, dict):
                return None
            found = found.get(part.replace("~1", "/").replace("~0", "~"))
        return found if isinstance(found, dict) else None


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values under `const` or `enum`; None if there are none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _map_values(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of an object's values that are not in `properties`."""
    patterns = schema.get("patternProperties")
    by_pattern = islice(patterns.values(), _MAX_BRANCHES) if isinstance(patterns, dict) else []
    return _schemas_in([*by_pattern, schema.get("additionalProperties")])


def _schemas_in(several: Sequence[Any] | None) -> list[dict[str, Any]]:
    if not isinstance(several, list):
        return []
    return [part for part in several[:_MAX_BRANCHES] if isinstance(part, dict)]


# Bounds of numbers, texts and arrays


def _with_bounds(text: str, kind: object, schema: Mapping[str, Any]) -> str:
    bounds = _bounds_of(kind, schema)
    return f"{text} {bounds}" if bounds else text


def _bounds_of(kind: object, schema: Mapping[str, Any]) -> str:
    """Return which values of a JSON type a schema allows; empty if it allows all."""
    match kind:
        case "integer" | "number":
            return " ".join(_number_bounds(schema))
        case "string":
            return " ".join(filter(None, (_length_bounds("string", schema), _pattern_of(schema))))
        case "array":
            return _length_bounds("array", schema)
    return ""


def _number_bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    least, most, above, below, step = (_number_text(schema.get(name)) for name in names)
    if least and most:
        yield f"{least}..{most}"
    else:
        yield from (f"{sign} {bound}" for sign, bound in ((">=", least), ("<=", most)) if bound)
    yield from (f"{sign} {bound}" for sign, bound in ((">", above), ("<", below)) if bound)
    if step:
        yield f"multiple of {step}"


def _length_bounds(kind: str, schema: Mapping[str, Any]) -> str:
    least, most = (_number_text(schema.get(name)) for name in _LENGTHS[kind])
    if least in {"", "0"}:
        return f"of at most {most}" if most else ""
    if not most:
        return f"of at least {least}"
    return f"of {least}" if least == most else f"of {least}..{most}"


def _pattern_of(schema: Mapping[str, Any]) -> str:
    pattern = schema.get("pattern")
    return _cut(pattern, _MAX_PATTERN_CHARS) if isinstance(pattern, str) else ""


# Trees: the fields of a schema, one node each


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One line of text, and the nodes below it."""

    name: str
    type_text: str = ""
    """The type, with default or `optional`."""
    description: str = ""
    children: tuple[SchemaNode, ...] = ()


_REST_NODE = SchemaNode(REST)
_Path = tuple[int, ...]
"""The identities of the schemas from the root to the current one; the root keeps them alive."""


class SchemaTree:
    """Reads one schema as a tree of nodes.

    Args:
        root: The whole schema.
        levels: The maximum number of levels. With 1, "..." is not shown for what is below.
        max_steps: How many parts of the schema are read.
    """

    def __init__(
        self, root: Mapping[str, Any], levels: int = _MAX_LEVELS, max_steps: int = MAX_STEPS
    ) -> None:
        self._root = root
        self._reader = SchemaReader(root, max_steps)
        self._levels = levels
        self.is_nested: bool = levels > 1
        """Whether it shows more than one level."""
        self._nodes_left = _MAX_NODES

    @property
    def type_text(self) -> str:
        """The type of the whole schema."""
        return self._reader.type_text(self._root)

    def nodes(self) -> tuple[SchemaNode, ...]:
        """Return the nodes of the first level."""
        return tuple(self._inside(self._root, (), self._levels))

    def _inside(self, schema: Any, path: _Path, levels: int) -> Iterator[SchemaNode]:
        if not isinstance(schema, dict):
            return
        if not levels:
            if self.is_nested and not _PARTS.isdisjoint(schema):
                yield _REST_NODE
            return
        if id(schema) in path or len(path) == _MAX_PATH or not self._reader.step():
            yield _REST_NODE
            return
        path = (*path, id(schema))
        for part in self._reader.all_of(schema):
            yield from self._inside(part, path, levels)
        yield from self._fields(schema, path, levels)
        yield from self._items(schema, path, levels)
        yield from self._branches(schema, path, levels)

    def _fields(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[SchemaNode]:
        """Return the fields of an object, and `(others)` for values without a name."""
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        needed = required[:_MAX_NODES] if isinstance(required, list) else []
        yield from self._nodes_of(
            ((name, field, name in needed) for name, field in named.items()), path, levels
        )
        others = _map_values(schema)
        if named:
            yield from self._nodes_of((("(others)", part, True) for part in others), path, levels)
            return
        for part in others:
            yield from self._inside(part, path, levels)

    def _items(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[SchemaNode]:
        """Return what the items of an array hold; items of a tuple by their index."""
        items = schema.get("prefixItems")
        if isinstance(items, list):
            indexed = ((f"[{i}]", item, True) for i, item in enumerate(items[:_MAX_TUPLE_ITEMS]))
            nodes = list(self._nodes_of(indexed, path, levels))
            if any(node.children or node.description for node in nodes):
                yield from nodes
        yield from self._inside(schema.get("items"), path, levels)

    def _branches(self, schema: dict[str, Any], path: _Path, levels: int) -> Iterator[SchemaNode]:
        """Return the branches of `anyOf` and `oneOf`; of a single branch only its content."""
        one_of = {key: schema.get(key) for key in ("anyOf", "oneOf")}
        branches = [
            (branch, children)
            for branch in self._reader.alternatives(one_of)
            if (children := tuple(self._inside(branch, path, levels)))
        ]
        if len(branches) == 1:
            yield from branches[0][1]
            return
        for number, (branch, children) in enumerate(branches):
            title = _in_one_line((self._reader.resolve(branch) or branch).get("title"), 64)
            text = title or self._reader.type_text(branch)
            yield SchemaNode("or" if number else "either", text, "", children)

    def _nodes_of(
        self, parts: Iterable[tuple[str, Any, bool]], path: _Path, levels: int
    ) -> Iterator[SchemaNode]:
        for name, part, required in parts:
            if self._nodes_left == 0:
                yield _REST_NODE
                return
            self._nodes_left -= 1
            schema = part if isinstance(part, dict) else {}
            yield SchemaNode(
                _in_one_line(name, _MAX_NAME_CHARS),
                self._type_and_default(schema, required),
                self._description(schema),
                tuple(self._inside(schema, path, levels - 1)),
            )

    def _type_and_default(self, schema: dict[str, Any], required: bool) -> str:
        text = self._reader.type_text(schema)
        if "default" in schema:
            return f"{text} = {_json_text(schema['default'])}"
        return text if required else f"{text}, optional"

    def _description(self, schema: dict[str, Any]) -> str:
        own = schema.get("description") or (self._reader.resolve(schema) or {}).get("description")
        return _in_one_line(own, _MAX_DESCRIPTION_CHARS)


def node_lines(nodes: Sequence[SchemaNode], indent: str) -> Iterator[str]:
    """Return nodes as indented lines; the columns of siblings are aligned."""
    width = max((len(node.name) for node in nodes), default=0)
    type_width = min(max((len(node.type_text) for node in nodes), default=0), _MAX_TYPE_WIDTH)
    for node in nodes:
        line = f"{indent}{node.name.ljust(width)}  {node.type_text.ljust(type_width)}"
        yield f"{line}  {node.description}".rstrip()
        yield from node_lines(node.children, indent + "  ")


# Short texts


def _in_one_line(text: object, max_chars: int) -> str:
    """Return untrusted text in one line, cut; empty if it is not text."""
    if not isinstance(text, str):
        return ""
    return _cut(" ".join(text[: 2 * max_chars].split()), max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - len(REST)] + REST


def _in_parentheses(text: str) -> str:
    return f"({text})" if " | " in text else text


def _json_text(value: Any) -> str:
    """Return a value as JSON in one line, cut; no more of it is encoded than is shown."""
    text = ""
    try:
        for part in _ENCODER.iterencode(value):
            text += part
            if len(text) > _MAX_JSON_CHARS:
                break
    except (ValueError, TypeError, RecursionError):
        return REST
    return _cut(text, _MAX_JSON_CHARS)


def _number_text(value: object) -> str:
    """Return a number as text, 1.0 as 1; empty if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        if not isfinite(value):
            return ""
        return _cut(str(int(value) if value == int(value) else value), _MAX_NUMBER_CHARS)
    except (OverflowError, ValueError):  # too many digits
        return REST
