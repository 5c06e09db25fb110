"""Reads a JSON Schema as a type of Python. What that is, source or a type, a subclass says.

Schemas are untrusted: they may refer to themselves, and be deep or wide without limit. What exceeds
a limit, and what has no equivalent in Python's types, is `Any`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeGuard, TypeVar

from toolbus.schemas.text import MAX_STEPS, SchemaReader, values_of

__all__ = ["PythonTypes", "sorted_fields"]

# Others write the schemas; a person reads the types, in a signature or a stub.
_MAX_DEPTH = 32
_MAX_VALUES = 200
_MAX_VALUE_CHARS = 200

T = TypeVar("T")


def sorted_fields(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Return name, schema and "is required" of an object's fields, required ones first, by name.

    The order in the schema does not count: it is not part of a toolkit's digest.
    """
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    names = {name for name in required if isinstance(name, str)} if _is_list(required) else set()
    found = [(name, part, name in names) for name, part in properties.items()]
    return sorted(found, key=lambda entry: (not entry[2], entry[0]))


class PythonTypes(ABC, Generic[T]):
    """Makes the types of one schema and of its parts.

    Args:
        root: The whole schema; references are relative to it.
        max_steps: How many parts are read.
    """

    def __init__(self, root: Mapping[str, Any], max_steps: int = MAX_STEPS) -> None:
        self._reader = SchemaReader(root, max_steps)
        self._references: dict[str, T] = {}
        """The types of `$ref`s; what stands for one while it is being made. "" is for none."""

    def of(self, schema: Any, hint: str = "", depth: int = 0) -> T:
        """Return the type of a part, which is in `depth` others.

        If it becomes a TypedDict, `hint` is the end of its name.
        """
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or not self._reader.step():
            return self.any
        if (values := values_of(schema)) is not None:
            return self._of_values(values)
        if "$ref" in schema:
            return self._of_reference(schema, depth)
        for keyword in ("anyOf", "oneOf"):
            if _is_list(parts := schema.get(keyword)):
                return self._union(self.of(part, hint, depth + 1) for part in parts)
        if _is_list(parts := schema.get("allOf")) and len(parts) == 1:
            return self.of(parts[0], hint, depth + 1)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        if not _is_list(kinds):
            kinds = [kinds]
        # Each name once: an array of an array of many equal names would be read again and again.
        kinds = dict.fromkeys(kind for kind in kinds if isinstance(kind, str))
        return self._union(self._of_kind(kind, schema, hint, depth) for kind in kinds)

    def typed_dict(
        self, schema: Mapping[str, Any], hint: str, depth: int = 0, reference: str = ""
    ) -> T:
        """Make a TypedDict of an object's fields; its name ends with `hint`.

        `reference` refers to it, perhaps in its own fields.
        """
        description = schema.get("description")
        text = description if isinstance(description, str) else ""
        self._references[reference] = begun = self.begin_dict(hint, text)
        fields = [
            (key, self.of(part, f"{hint} {key}", depth + 1), is_required)
            for key, part, is_required in sorted_fields(schema)
        ]
        self._references[reference] = made = self.end_dict(begun, hint, fields)
        return made

    def _of_kind(self, kind: str, schema: dict[str, Any], hint: str, depth: int) -> T:
        match kind:
            case "array":
                parts = [schema.get("items")]
                if _is_list(first := schema.get("prefixItems")):
                    parts = [*first, *(part for part in parts if part is not False)]
                return self.list_of(
                    self._union(self.of(part, f"{hint} item", depth + 1) for part in parts)
                )
            case "object" if sorted_fields(schema):
                return self.typed_dict(schema, hint, depth)
            case "object":
                others = schema.get("additionalProperties")
                return self.dict_of(self.of(others, f"{hint} value", depth + 1))
        return self.scalar(kind)

    def _of_reference(self, schema: dict[str, Any], depth: int) -> T:
        target = self._reader.resolve(schema)
        if target is None:
            return self.any
        reference = str(schema["$ref"])
        if reference not in self._references:
            self._references[reference] = self.any
            name = reference.rpartition("/")[2]
            is_object = values_of(target) is None and target.get("type", "object") == "object"
            if is_object and sorted_fields(target):
                self.typed_dict(target, name, depth, reference)
            else:
                self._references[reference] = self.of(target, name, depth + 1)
        return self._references[reference]

    def _of_values(self, values: list[Any]) -> T:
        if not values or len(values) > _MAX_VALUES or not all(map(_is_literal, values)):
            return self.any
        parts = []
        if shown := [value for value in values if value is not None]:
            parts.append(self.literal(shown))
        if None in values:
            parts.append(self.scalar("null"))
        return self._union(parts)

    def _union(self, types: Iterable[T]) -> T:
        parts = list(dict.fromkeys(types))
        if not parts or self.any in parts:
            return self.any
        return self.union(parts)

    # What a type is

    @property
    @abstractmethod
    def any(self) -> T:
        """The type of any value."""

    @abstractmethod
    def scalar(self, kind: str) -> T:
        """Return the type for string, integer, number, boolean or null; `any` for another name."""

    @abstractmethod
    def literal(self, values: list[str | int]) -> T:
        """Return the type of these values."""

    @abstractmethod
    def list_of(self, item: T) -> T:
        """Return the type of a list."""

    @abstractmethod
    def dict_of(self, value: T) -> T:
        """Return the type of a dict whose keys are texts."""

    @abstractmethod
    def union(self, parts: list[T]) -> T:
        """Return the type of values of one of several types, or the only one of them."""

    @abstractmethod
    def begin_dict(self, hint: str, description: str) -> T:
        """Return what stands for a TypedDict in its own fields."""

    @abstractmethod
    def end_dict(self, begun: T, hint: str, fields: list[tuple[str, T, bool]]) -> T:
        """Return the TypedDict: of each field the name, the type, and whether it is required."""


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_literal(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_VALUE_CHARS
    return value is None or isinstance(value, bool | int)
