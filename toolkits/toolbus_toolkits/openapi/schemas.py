"""Schemas of a description to JSON Schema 2020-12, for the arguments of its tools. Pure.

Each schema that a `$ref` names becomes an entry of `$defs`, so that recursive ones need no special
case. What only a response has (`readOnly`) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from toolbus_toolkits.openapi.documents import Place, follow

__all__ = ["MAPS", "MAX_TEXT", "Definitions", "SchemaWriter", "is_hidden"]

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COPIED = frozenset(
    "const default dependentRequired deprecated format maxContains maxItems maxLength "
    "maxProperties minContains minItems minLength minProperties multipleOf title "
    "uniqueItems".split()
)
_EXCLUSIVE = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_NUMBERS = frozenset(keyword for pair in _EXCLUSIVE for keyword in pair)
_SCHEMAS = frozenset(
    "additionalProperties contains else if items not propertyNames then unevaluatedItems "
    "unevaluatedProperties".split()
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NOT_BESIDE_NULL = _LISTS | {"$ref", "const"}
"""Keywords that may refuse null, whatever the type beside them is."""
MAPS = frozenset({"dependentSchemas", "patternProperties", "properties"})
"""Keywords whose values are objects of schemas."""
MAX_TEXT = 4_000
"""Characters of one description, of which a room takes 1 MiB for all tools."""


class Definitions:
    """The schemas of one description that a `$ref` names, each written once for all tools.

    Args:
        dialect: The version of the description.
    """

    def __init__(self, dialect: Literal["2.0", "3.0", "3.1"]) -> None:
        self._is_old = dialect != "3.1"
        self._names: dict[int, str] = {}
        self._places: dict[str, Place] = {}
        self._written: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self._closures: dict[frozenset[str], frozenset[str]] = {}

    def writer(self) -> SchemaWriter:
        """Return a writer for the schemas of one tool."""
        return SchemaWriter(self, is_old=self._is_old)

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names of definitions and of those that they refer to. Raises `SpecError`."""
        key = frozenset(names)
        if key not in self._closures:
            found: set[str] = set()
            waiting = list(key)
            while waiting:
                name = waiting.pop()
                if name not in found:
                    found.add(name)
                    waiting.extend(self._definition(name)[1])
            self._closures[key] = frozenset(found)
        return self._closures[key]

    def definition(self, name: str) -> dict[str, Any]:
        """Return a definition by its name. Not to be changed. Raises `SpecError`."""
        return self._definition(name)[0]

    def references(self, name: str) -> set[str]:
        """Return the names of the definitions that one refers to itself. Raises `SpecError`."""
        return self._definition(name)[1]

    def _definition(self, name: str) -> tuple[dict[str, Any], set[str]]:
        if name not in self._written:
            writer = self.writer()
            self._written[name] = (writer.write(self._places[name]), writer.used)
        return self._written[name]

    def name(self, ref: str, target: Place) -> str:
        """Return the name of what a `$ref` refers to."""
        found = self._names.get(id(target.value))  # the places keep the documents alive
        if found is not None:
            return found
        base = re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.rpartition("/")[2])[:64] or "schema"
        name, number = base, 1
        while name in self._places:
            number += 1
            name = f"{base}_{number}"
        self._names[id(target.value)] = name
        self._places[name] = target
        return name


class SchemaWriter:
    """Writes the schemas of one tool; made by `Definitions.writer`.

    A `$ref` is to an entry of `$defs`, which is not written here.
    """

    def __init__(self, definitions: Definitions, *, is_old: bool) -> None:
        self._definitions = definitions
        self._is_old = is_old
        self.used: set[str] = set()
        """The names of the definitions that what was written refers to."""

    def write(self, place: Place) -> dict[str, Any]:
        """Return a schema. Raises `SpecError`."""
        if not isinstance(place.value, dict):
            return {"not": {}} if place.value is False else {}
        ref = place.value.get("$ref")
        if isinstance(ref, str):
            name = self._definitions.name(ref, follow(place))
            self.used.add(name)
            target: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
            schema = target if self._is_old else {**self._members(place), **target}
        else:
            schema = self._members(place)
        return self._with_null(schema, place)

    def _members(self, place: Place) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in place.value.items():
            member = self._member(key, value, place)
            if member is not None:
                written[key] = member
        if self._is_old:  # `exclusiveMinimum` of older versions is true or false
            for exclusive, limit in _EXCLUSIVE:
                if place.value.get(exclusive) is True and limit in written:
                    written[exclusive] = written.pop(limit)
        properties = place.get("properties")
        hidden = {
            name
            for name, schema in properties.members.items()
            if is_hidden(Place(schema, properties.resolver))
        }
        if hidden:
            for name in hidden:
                written["properties"].pop(name, None)
            if "required" in written:
                written["required"] = [name for name in written["required"] if name not in hidden]
        return written

    def _member(self, key: str, value: Any, place: Place) -> Any:
        """Return the value of a keyword; None if it is left out."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key == "default" and isinstance(value, int) and not -(2**63) <= value < 2**64:
            return None  # no manifest carries it
        if key in _COPIED or (key in _NUMBERS and is_number):
            return value
        if key in _SCHEMAS:
            return self._subschema(value, place)
        if key in _LISTS and isinstance(value, list):
            return [self._subschema(subschema, place) for subschema in value] or None
        if key in MAPS and isinstance(value, dict):
            return {name: self._subschema(subschema, place) for name, subschema in value.items()}
        return self._checked_member(key, value)

    def _checked_member(self, key: str, value: Any) -> Any:
        match key, value:
            case "type", str():
                return value if value in _TYPES else None
            case "type", list():
                return [name for name in value if isinstance(name, str) and name in _TYPES] or None
            case "required" | "enum", list():
                return value or None
            case "description", str():
                return value[:MAX_TEXT]
            case "pattern", str():
                return value
        return None

    def _subschema(self, value: Any, place: Place) -> Any:
        if isinstance(value, bool):
            return value
        return self.write(Place(value, place.resolver))

    def _with_null(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        """Write `nullable` of 3.0 as the type null; many write it beside `$ref`, and in 3.1 too."""
        kind = schema.get("type")
        is_listed = isinstance(kind, list) and "null" in kind
        if not (is_listed or place.flag("nullable") or place.flag("x-nullable")):
            return schema
        if "enum" in schema and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        if is_listed:
            return schema
        combined = _NOT_BESIDE_NULL.intersection(schema)
        if isinstance(kind, list) and not combined:
            schema["type"] = [*kind, "null"]
        elif isinstance(kind, str) and not combined:
            schema["type"] = [kind, "null"]
        elif combined:
            return {"anyOf": [schema, {"type": "null"}]}
        return schema


def is_hidden(place: Place) -> bool:
    """Return whether only a response has the values of a schema. Raises `SpecError`."""
    return follow(place).flag("readOnly")
