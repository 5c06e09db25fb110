"""Describes a JSON Schema as text: types, bounds, defaults, and a tree of its fields.

Schemas are untrusted: they may refer to themselves, and be deep or wide without limit. So a reader
takes a bounded number of steps through one schema and shows "..." for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any

from toolbus.schemas.keywords import HELD, JSON_TYPES
from toolbus.schemas.walker import held, joined, part_in, rewritten, target_of
from toolbus.untrusted_text import SHOWN_CHARS

__all__ = [
    "MAX_STEPS",
    "REST",
    "SchemaNode",
    "SchemaReader",
    "SchemaTree",
    "json_start",
    "node_lines",
    "shortened",
    "values_of",
    "with_short_texts",
]

REST = "..."
"""Stands for what is not shown."""
MAX_STEPS = 4_000
"""How many parts of one schema are read: references that lead back multiply them without end."""
_MAX_PATH = 32
"""Parts that are applied to one value, each within another: they may lead back to the first."""
# Others write the schemas: a reader of a terminal would scroll through thousands of lines.
_MAX_LEVELS = 8
_MAX_NODES = 300
_MAX_BRANCHES = 64
_MAX_VALUES = 12
_MAX_DESCRIPTION_CHARS = 1_000
_MAX_TYPE_WIDTH = 48

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_OTHERS = ("patternProperties", "additionalProperties")
"""Keywords with schemas of the values of an object that are not in `properties`."""
_PARTS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "properties", "items", "prefixItems", *_OTHERS}
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

    def types(self, schema: Mapping[str, Any], depth: int = _MAX_LEVELS) -> frozenset[str]:
        """Return the JSON types that a schema allows; empty if it does not restrict them."""
        if not depth or not self.step():
            return frozenset()
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return frozenset({kinds})
        if isinstance(kinds, list):
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        values = values_of(schema)
        if values is not None:
            return frozenset(
                JSON_TYPES[type(value)] for value in values if type(value) in JSON_TYPES
            )
        found = [self.types(part, depth - 1) for part in self.all_of(schema)]
        branches = [self.types(branch, depth - 1) for branch in _held(schema, "anyOf", "oneOf")]
        if all(branches):  # an alternative that allows any value makes the others say nothing
            found += branches
        return frozenset().union(*found)

    def type_text(self, schema: Any, depth: int = _MAX_LEVELS) -> str:
        """Return a schema's type as text: `integer`, `array of string`, `"a" | "b"`, `any`."""
        if not isinstance(schema, Mapping):
            return "any"
        if not depth or not self.step():
            return REST
        return _in_one_line(self._full_type_text(schema, depth))

    def _full_type_text(self, schema: Mapping[str, Any], depth: int) -> str:
        if (values := values_of(schema)) is not None:
            shown = [_json_text(value) for value in values[:_MAX_VALUES]]
            if len(values) > _MAX_VALUES:
                shown.append(REST)
            return " | ".join(shown)
        match schema.get("type"):
            case "array":
                return self._array_text(schema, depth)
            case "object":
                others = _held(schema, *_OTHERS)
                if schema.get("properties") or not others:
                    return "object"
                texts = dict.fromkeys(self.type_text(part, depth - 1) for part in others)
                return f"map of {_in_parentheses(' | '.join(texts))}"
            case str(kind):
                form = _in_one_line(schema.get("format"))
                return _with_bounds(f"{kind} ({form})" if form else kind, kind, schema)
            case list(kinds):
                few = kinds[:_MAX_BRANCHES]
                return " | ".join(_with_bounds(str(kind), kind, schema) for kind in few)
        texts = dict.fromkeys(
            self.type_text(branch, depth - 1) for branch in self.alternatives(schema)
        )
        return " | ".join(texts) or ("object" if "properties" in schema else "any")

    def _array_text(self, schema: Mapping[str, Any], depth: int) -> str:
        tuple_items, items = schema.get("prefixItems"), schema.get("items")
        if isinstance(tuple_items, list) and tuple_items:
            texts = [self.type_text(item, depth - 1) for item in tuple_items[:_MAX_VALUES]]
            if len(tuple_items) > _MAX_VALUES or isinstance(items, dict):
                texts.append(REST)
            return f"array ({', '.join(texts)})"
        text = _with_bounds("array", "array", schema)
        if not isinstance(items, dict):
            return text
        of = "array of" if text == "array" else text
        return f"{of} {_in_parentheses(self.type_text(items, depth - 1))}"

    def alternatives(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas under `$ref`, `allOf`, `anyOf` and `oneOf`."""
        return [*self.all_of(schema), *_held(schema, "anyOf", "oneOf")]

    def all_of(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas under `$ref` and `allOf`."""
        found = _held(schema, "allOf")
        if (target := self.resolve(schema)) is not None:
            found.insert(0, target)
        return found

    def applied(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return a schema, and all that it applies to the same value, each of them once."""
        found = [schema]
        seen = {id(schema)}
        for part in found:  # which grows
            if self.step():
                new = {id(inner): inner for inner in self.alternatives(part)}
                found += [new[key] for key in new if key not in seen]
                seen.update(new)
        return found

    def fields(self, schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the schemas of the fields of an object, also of what it applies in place."""
        found: dict[str, list[dict[str, Any]]] = {}
        for part in self.applied(schema):
            for name, field in part_in(part.get("properties")).items():
                found.setdefault(name, []).append(part_in(field))
        return {name: joined("allOf", fields) for name, fields in found.items()}

    def others(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the schema of values that are not in `properties`.

        None if no part of the schema says that there are others; {} if they may be anything.
        """
        found: list[dict[str, Any]] = []
        for part in self.applied(schema):
            found += _held(part, *_OTHERS)
            if part.get("additionalProperties") is True:
                found.append({})
        return joined("anyOf", found) if found else None

    def element(self, schema: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the schema of an element of an array; {} if it may be anything."""
        found: list[dict[str, Any]] = []
        for part in self.applied(schema):
            first = part.get("prefixItems")
            items = part.get("items")
            if isinstance(first, list) and index < len(first):
                items = first[index]
            if isinstance(items, dict):
                found.append(items)
        return joined("allOf", found) if found else {}

    def resolve(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the schema that `$ref` points to, if it is within the root."""
        found = target_of(self._root, schema.get("$ref"))
        return found if isinstance(found, dict) else None


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values under `const` or `enum`; None if there are none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _held(schema: Mapping[str, Any], *keywords: str) -> list[dict[str, Any]]:
    found = (part for part in held(schema, keywords) if isinstance(part, dict))
    return [*islice(found, _MAX_BRANCHES)]


# Bounds of numbers, texts and arrays


def _with_bounds(text: str, kind: object, schema: Mapping[str, Any]) -> str:
    """Return the name of a JSON type, and which of its values a schema allows."""
    bounds: list[str] = []
    match kind:
        case "integer" | "number":
            bounds = [*_number_bounds(schema)]
        case "string":
            bounds = [_length_bounds("string", schema), _in_one_line(schema.get("pattern"))]
        case "array":
            bounds = [_length_bounds("array", schema)]
    return " ".join(filter(None, [text, *bounds]))


def _number_bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    least, most, above, below, step = (_number_text(schema.get(name)) for name in names)
    bounds = [(">=", least), ("<=", most), (">", above), ("<", below), ("multiple of", step)]
    if least and most:
        yield f"{least}..{most}"
        bounds = bounds[2:]
    yield from (f"{sign} {bound}" for sign, bound in bounds if bound)


def _length_bounds(kind: str, schema: Mapping[str, Any]) -> str:
    least, most = (_number_text(schema.get(name)) for name in _LENGTHS[kind])
    if least in {"", "0"}:
        return f"of at most {most}" if most else ""
    if not most:
        return f"of at least {least}"
    return f"of {least}" if least == most else f"of {least}..{most}"


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
        if not isinstance(schema, Mapping):
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

    def _fields(self, schema: Mapping[str, Any], path: _Path, levels: int) -> Iterator[SchemaNode]:
        """Return the fields of an object, and `(others)` for values without a name."""
        properties = schema.get("properties")
        others = _held(schema, *_OTHERS)
        if not isinstance(properties, dict) or not properties:
            for part in others:
                yield from self._inside(part, path, levels)
            return
        required = schema.get("required")
        needed = required[:_MAX_NODES] if isinstance(required, list) else []
        fields = ((name, field, name in needed) for name, field in properties.items())
        yield from self._nodes_of(fields, path, levels)
        yield from self._nodes_of((("(others)", part, True) for part in others), path, levels)

    def _items(self, schema: Mapping[str, Any], path: _Path, levels: int) -> Iterator[SchemaNode]:
        """Return what the items of an array hold; items of a tuple by their index."""
        items = enumerate(islice(held(schema, ("prefixItems",)), _MAX_VALUES))
        nodes = [*self._nodes_of(((f"[{i}]", item, True) for i, item in items), path, levels)]
        if any(node.children or node.description for node in nodes):
            yield from nodes
        yield from self._inside(schema.get("items"), path, levels)

    def _branches(
        self, schema: Mapping[str, Any], path: _Path, levels: int
    ) -> Iterator[SchemaNode]:
        """Return the branches of `anyOf` and `oneOf`; of a single branch only its content."""
        branches = [
            (branch, children)
            for branch in _held(schema, "anyOf", "oneOf")
            if (children := tuple(self._inside(branch, path, levels)))
        ]
        if len(branches) == 1:
            yield from branches[0][1]
            return
        for number, (branch, children) in enumerate(branches):
            title = _in_one_line((self._reader.resolve(branch) or branch).get("title"))
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
            schema = part_in(part)
            text = self._reader.type_text(schema)
            if "default" in schema:
                text = f"{text} = {_json_text(schema['default'])}"
            elif not required:
                text = f"{text}, optional"
            target = self._reader.resolve(schema) or {}
            description = schema.get("description") or target.get("description")
            yield SchemaNode(
                _in_one_line(name),
                text,
                _in_one_line(description, _MAX_DESCRIPTION_CHARS),
                tuple(self._inside(schema, path, levels - 1)),
            )


def node_lines(nodes: Sequence[SchemaNode], indent: str) -> Iterator[str]:
    """Return nodes as indented lines; the columns of siblings are aligned."""
    width = max((len(node.name) for node in nodes), default=0)
    type_width = min(max((len(node.type_text) for node in nodes), default=0), _MAX_TYPE_WIDTH)
    for node in nodes:
        line = f"{indent}{node.name.ljust(width)}  {node.type_text.ljust(type_width)}"
        yield f"{line}  {node.description}".rstrip()
        yield from node_lines(node.children, indent + "  ")


# Short texts


def _in_one_line(text: object, max_chars: int = SHOWN_CHARS) -> str:
    """Return untrusted text in one line, cut; empty if it is not text."""
    if not isinstance(text, str):
        return ""
    return _cut(" ".join(text[: 2 * max_chars].split()), max_chars)


def _cut(text: str, max_chars: int = SHOWN_CHARS) -> str:
    return text if len(text) <= max_chars else text[: max_chars - len(REST)] + REST


def _in_parentheses(text: str) -> str:
    return f"({text})" if " | " in text else text


def _json_text(value: Any) -> str:
    """Return a value as JSON in one line, cut."""
    try:
        return _cut(json_start(value, SHOWN_CHARS))
    except (ValueError, TypeError, RecursionError):
        return REST


def json_start(value: Any, max_chars: int) -> str:
    """Return a value as JSON, or more than so many characters of its start."""
    text = ""
    for piece in _ENCODER.iterencode(value):
        text += piece
        if len(text) > max_chars:
            break
    return text


def _number_text(value: object) -> str:
    """Return a number as text, 1.0 as 1; empty if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        if not isfinite(value):
            return ""
        return _cut(str(int(value) if value == int(value) else value))
    except (OverflowError, ValueError):  # too many digits
        return REST


# Descriptions that are cut


_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose values are data, in which `description` is not a description."""


def shortened(text: str, limit: int) -> str:
    """Return a text of at most some characters, which ends after a sentence or a word."""
    if len(text) <= limit:
        return text
    start = text[: limit - 1]
    ends = (start.rfind(". ") + 1, max(start.rfind(" "), start.rfind("\n")), limit - 1)
    end = next(end for end in ends if end >= limit // 2)
    return f"{start[:end].rstrip()}…"


def with_short_texts(schema: Any, limit: int) -> Any:
    """Return a JSON Schema whose descriptions have at most some characters."""
    change = partial(with_short_texts, limit=limit)
    if isinstance(schema, list):
        return [change(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    written: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "description" and isinstance(value, str):
            written[keyword] = shortened(value, limit)
        elif keyword in HELD or keyword in _VALUES:
            written[keyword] = rewritten(keyword, value, change)
        else:
            written[keyword] = change(value)
    return written
