"""Translates JSON Schemas into annotations; objects with fields become TypedDicts.

Schemas are untrusted: they may refer to themselves, and be deep or wide without limit. What exceeds
a limit, and what has no equivalent in Python's types, is `Any`.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from toolbus.cli.stubs.source_text import camel_case, docstring, is_name, literal
from toolbus.schemas.text import SchemaReader, values_of

__all__ = ["Annotations", "Names", "TypedDictClass", "sorted_fields"]

_MAX_DEPTH = 32
_MAX_CHARS = 1_000
_MAX_VALUES = 200
_MAX_VALUE_CHARS = 200
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_SOURCES = {
    "Any": "typing",
    "ChunkStream": "toolbus",
    "Literal": "typing",
    "NotRequired": "typing",
    "TypedToolkitProxy": "toolbus",
    "TypedDict": "typing",
    **dict.fromkeys(("bool", "dict", "float", "int", "list", "str"), "builtins"),
}
"""Where the names that annotations use come from."""
_ANY = frozenset({"Any", "_Any"})


def sorted_fields(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Return name, schema and "is required" of an object's fields, required ones first, by name.

    The order in the schema does not count: it is not part of a toolkit's digest.
    """
    properties, required = schema.get("properties"), schema.get("required")
    names = {name for name in required if isinstance(name, str)} if _is_list(required) else set()
    fields = properties.items() if isinstance(properties, Mapping) else ()
    found = [(name, part, name in names) for name, part in fields]
    return sorted(found, key=lambda entry: (not entry[2], entry[0]))


@dataclass(slots=True)
class TypedDictClass:
    """A TypedDict; a field is its name, its annotation, and whether it is required."""

    name: str
    description: str
    fields: list[tuple[str, str, bool]] = field(default_factory=list)

    def lines(self, names: Names) -> list[str]:
        """Return its source: a class, or a call if a field's name is not possible in a class."""
        shown = [
            (key, text if is_required else f"{names.use('NotRequired')}[{text}]")
            for key, text, is_required in self.fields
        ]
        base = names.use("TypedDict")
        if all(is_name(key) and not names.is_type(key) for key, _ in shown):
            fields = [f"    {key}: {text}" for key, text in shown]
            return [f"class {self.name}({base}):", *docstring(self.description, "    "), *fields]
        fields = [f"        {literal(key)}: {text}," for key, text in shown]
        return [f"{self.name} = {base}(", f'    "{self.name}",', "    {", *fields, "    },", ")"]


class Names:
    """The names of one stub module: imports, classes, and TypedDicts in the order of first use.

    Args:
        methods: The names of the methods of its class. In there they hide types of these names, so
            such types are imported under another name.
    """

    def __init__(self, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)
        self._classes: set[str] = set()
        self._last_numbers: dict[str, int] = {}
        """The number behind the last name that was made of a text; 1 for none."""
        self.typed_dicts: list[TypedDictClass] = []

    def use(self, name: str) -> str:
        """Return how annotations write an imported or built-in type."""
        return f"_{name}" if name in self._methods else name

    def add_class(self, wanted: str) -> str:
        """Return a free name for a class, and take it."""
        base = camel_case(wanted)
        number = self._last_numbers.get(base, 1)
        name = base if number == 1 else f"{base}{number}"
        while name in self._methods or self.is_type(name) or keyword.iskeyword(name):
            number += 1
            name = f"{base}{number}"
        self._classes.add(name)
        self._last_numbers[base] = number
        return name

    def is_type(self, name: str) -> bool:
        """Whether annotations may use this name."""
        return name.removeprefix("_") in _SOURCES or name in self._classes

    def import_lines(self, source: str) -> list[str]:
        """Return the import statements that source with these names needs."""
        used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        by_module: dict[str, list[str]] = {}
        for name, module in sorted(_SOURCES.items()):
            written = self.use(name)
            if written in used and (module != "builtins" or written != name):
                alias = name if written == name else f"{name} as {written}"
                by_module.setdefault(module, []).append(alias)
        lines = [
            f"from {module} import {', '.join(by_module[module])}" for module in sorted(by_module)
        ]
        own = [line for line in lines if line.startswith("from toolbus ")]
        others = [line for line in lines if line not in own]
        return [*others, *([""] if own and others else []), *own]


class Annotations:
    """Makes the annotations of one schema and of its parts.

    Args:
        root: The whole schema; references are relative to it.
        names: The names of the module.
        prefix: The beginning of the names of its TypedDicts.
    """

    def __init__(self, root: Mapping[str, Any], names: Names, prefix: str) -> None:
        self._reader = SchemaReader(root)
        self._names = names
        self._prefix = prefix
        self._references: dict[str, str] = {}
        """The annotations of `$ref`s; Any while one is being made."""

    def of(self, schema: Any, hint: str = "", depth: int = 0) -> str:
        """Return the annotation of a part.

        Args:
            schema: The part.
            hint: The end of its name if it becomes a TypedDict.
            depth: How many parts it is in.
        """
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or not self._reader.step():
            return self._any
        text = self._unbounded(schema, hint, depth)
        return text if len(text) <= _MAX_CHARS else self._any

    @property
    def _any(self) -> str:
        return self._names.use("Any")

    def _unbounded(self, schema: dict[str, Any], hint: str, depth: int) -> str:
        if (values := values_of(schema)) is not None:
            return self._of_values(values)
        if "$ref" in schema:
            return self._of_reference(schema, depth)
        for keyword_ in ("anyOf", "oneOf"):
            if _is_list(parts := schema.get(keyword_)):
                return self._union(self.of(part, hint, depth + 1) for part in parts)
        if _is_list(parts := schema.get("allOf")) and len(parts) == 1:
            return self.of(parts[0], hint, depth + 1)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        kinds = kinds if _is_list(kinds) else [kinds]
        return self._union(self._of_kind(kind, schema, hint, depth) for kind in kinds)

    def _of_kind(self, kind: object, schema: dict[str, Any], hint: str, depth: int) -> str:
        match kind:
            case "null":
                return "None"
            case "array":
                return f"{self._names.use('list')}[{self._of_items(schema, hint, depth)}]"
            case "object":
                return self._of_object(schema, hint, depth)
            case str() if kind in _SCALARS:
                return self._names.use(_SCALARS[kind])
        return self._any

    def _of_items(self, schema: dict[str, Any], hint: str, depth: int) -> str:
        first, rest = schema.get("prefixItems"), schema.get("items")
        parts = [*first, *([] if rest is False else [rest])] if _is_list(first) else [rest]
        return self._union(self.of(part, f"{hint} item", depth + 1) for part in parts)

    def _of_object(self, schema: dict[str, Any], hint: str, depth: int) -> str:
        if sorted_fields(schema):
            return self.typed_dict(schema, hint, depth)
        values = self.of(schema.get("additionalProperties"), f"{hint} value", depth + 1)
        return f"{self._names.use('dict')}[{self._names.use('str')}, {values}]"

    def _of_reference(self, schema: dict[str, Any], depth: int) -> str:
        reference, target = str(schema["$ref"]), self._reader.resolve(schema)
        if target is None:
            return self._any
        if reference not in self._references:
            self._references[reference] = "Any"
            name = reference.rpartition("/")[2]
            if values_of(target) is None and target.get("type", "object") == "object":
                self._define_reference(reference, target, name, depth)
            else:
                self._references[reference] = self.of(target, name, depth + 1)
        found = self._references[reference]
        return self._any if found == "Any" else found

    def _define_reference(
        self, reference: str, target: dict[str, Any], name: str, depth: int
    ) -> None:
        """Make the annotation of a referenced object; a TypedDict may refer to itself."""
        if sorted_fields(target):
            made = self._new_typed_dict(target, name)
            self._references[reference] = made.name
            self._fill(made, target, name, depth)
        else:
            self._references[reference] = self.of(target, name, depth + 1)

    def typed_dict(self, schema: Mapping[str, Any], hint: str, depth: int = 0) -> str:
        """Make a TypedDict of an object's fields and return its name."""
        made = self._new_typed_dict(schema, hint)
        self._fill(made, schema, hint, depth)
        return made.name

    def _new_typed_dict(self, schema: Mapping[str, Any], hint: str) -> TypedDictClass:
        name = self._names.add_class(f"{self._prefix} {hint}")
        description = schema.get("description")
        made = TypedDictClass(name, description if isinstance(description, str) else "")
        self._names.typed_dicts.append(made)
        return made

    def _fill(self, made: TypedDictClass, schema: Mapping[str, Any], hint: str, depth: int) -> None:
        for key, part, is_required in sorted_fields(schema):
            text = self.of(part, f"{hint} {key}", depth + 1)
            made.fields.append((key, text, is_required))

    def _of_values(self, values: list[Any]) -> str:
        if not values or len(values) > _MAX_VALUES or not all(map(_is_literal, values)):
            return self._any
        shown = dict.fromkeys(
            text for value in values if (text := literal(value)) and text != "None"
        )
        parts = [f"{self._names.use('Literal')}[{', '.join(shown)}]"] if shown else []
        return self._union([*parts, *(["None"] if None in values else [])])

    def _union(self, texts: Iterable[str]) -> str:
        parts = list(dict.fromkeys(texts))
        if not parts or not _ANY.isdisjoint(parts):
            return self._any
        return " | ".join([*(part for part in parts if part != "None"), *_none_in(parts)])


def _none_in(parts: Collection[str]) -> list[str]:
    return ["None"] if "None" in parts else []


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_literal(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_VALUE_CHARS
    return value is None or isinstance(value, bool | int)
