"""Schemas of a description to JSON Schema 2020-12, for the arguments of one tool. Pure.

Each schema that a `$ref` names becomes an entry of `$defs`, so that recursive ones need no special
case. What only a response has (`readOnly`) is left out.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from toolbus_toolkits.openapi.references import Place, follow

__all__ = ["SchemaWriter", "is_binary"]

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COPIED = frozenset(
    {
        "const",
        "default",
        "dependentRequired",
        "deprecated",
        "format",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "multipleOf",
        "title",
        "uniqueItems",
    }
)
_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
_SCHEMAS = frozenset(
    {
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"dependentSchemas", "patternProperties", "properties"})
_MAX_TEXT = 4_000


class SchemaWriter:
    """Writes the schemas of one tool, which share their `$defs`.

    Args:
        dialect: The version of the description.
        patterns: Whether regular expressions are kept.
    """

    def __init__(self, dialect: Literal["2.0", "3.0", "3.1"], *, patterns: bool = True) -> None:
        self._old = dialect != "3.1"
        self._patterns = patterns
        self._names: dict[int, str] = {}
        self._used: set[str] = set()
        self._waiting: list[tuple[str, Place]] = []
        self._defs: dict[str, Any] = {}

    def write(self, place: Place) -> dict[str, Any]:
        """Return a schema, whose `$ref` are to entries of `defs`. Raises `SpecError`."""
        if not isinstance(place.value, dict):
            return {"not": {}} if place.value is False else {}
        ref = place.value.get("$ref")
        if isinstance(ref, str):
            target = {"$ref": f"#/$defs/{self._name(ref, follow(place))}"}
            return target if self._old else {**self._members(place), **target}
        schema = self._members(place)
        return self._with_null(schema, place) if self._old else schema

    def defs(self) -> dict[str, Any]:
        """Return the `$defs` of everything written so far. Raises `SpecError`."""
        while self._waiting:
            name, place = self._waiting.pop()
            self._defs[name] = self.write(place)
        return dict(sorted(self._defs.items()))

    def _name(self, ref: str, target: Place) -> str:
        """Return the name in `$defs` of what a `$ref` refers to."""
        found = self._names.get(id(target.value))  # the documents live as long as the writer
        if found is not None:
            return found
        base = re.sub(r"[^A-Za-z0-9_.-]+", "_", ref.rpartition("/")[2])[:64] or "schema"
        name, number = base, 1
        while name in self._used:
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        self._names[id(target.value)] = name
        self._waiting.append((name, target))
        return name

    def _members(self, place: Place) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in place.value.items():
            member = self._member(key, value, place)
            if member is not None:
                written[key] = member
        if self._old:
            _use_exclusive_numbers(written, place.value)
        hidden = _hidden(place)
        if hidden:
            for name in hidden:
                written["properties"].pop(name, None)
            if "required" in written:
                written["required"] = [each for each in written["required"] if each not in hidden]
        return written

    def _member(self, key: str, value: Any, place: Place) -> Any:
        """Return the value of a keyword; None if it is left out."""
        if key in _COPIED:
            return value
        if key in _NUMBERS:
            return value if _is_number(value) else None
        if key in _SCHEMAS:
            return self._subschema(value, place)
        if key in _LISTS and isinstance(value, list):
            return [self._subschema(each, place) for each in value] or None
        if key in _MAPS and isinstance(value, dict):
            if key == "patternProperties" and not self._patterns:
                return None
            return {name: self._subschema(each, place) for name, each in value.items()}
        return self._checked_member(key, value)

    def _checked_member(self, key: str, value: Any) -> Any:
        match key, value:
            case "type", str():
                return value if value in _TYPES else None
            case "type", list():
                return [each for each in value if each in _TYPES] or None
            case "required" | "enum", list():
                return value or None
            case "description", str():
                return value[:_MAX_TEXT]
            case "pattern", str():
                return value if self._patterns else None
        return None

    def _subschema(self, value: Any, place: Place) -> Any:
        if isinstance(value, bool):
            return value
        return self.write(Place(value, place.resolver))

    def _with_null(self, schema: dict[str, Any], place: Place) -> dict[str, Any]:
        """Write `nullable` of 3.0 as the type null."""
        if not (place.flag("nullable") or place.flag("x-nullable")):
            return schema
        if "enum" in schema and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        kind = schema.get("type")
        combined = _LISTS.intersection(schema)
        if isinstance(kind, str) and not combined:
            schema["type"] = [kind, "null"]
        elif combined:
            return {"anyOf": [schema, {"type": "null"}]}
        return schema


def is_binary(place: Place) -> bool:
    """Return whether the values of a schema are the bytes of a file."""
    value = follow(place).value
    if not isinstance(value, dict):
        return False
    if value.get("type") == "file" or value.get("format") == "binary":
        return True
    media_type = value.get("contentMediaType")
    return isinstance(media_type, str) and "contentEncoding" not in value


def _hidden(place: Place) -> set[str]:
    """Return the properties that a request does not have."""
    properties = place.value.get("properties")
    if not isinstance(properties, dict):
        return set()
    return {
        name
        for name, each in properties.items()
        if isinstance(each, dict) and each.get("readOnly") is True
    }


def _use_exclusive_numbers(written: dict[str, Any], value: dict[str, Any]) -> None:
    """Replace the boolean `exclusiveMinimum` of older versions by the number."""
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if value.get(exclusive) is True and limit in written:
            written[exclusive] = written.pop(limit)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
