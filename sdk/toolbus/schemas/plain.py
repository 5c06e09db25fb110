"""Writes a schema for providers that take every keyword below the root. Pure."""

from __future__ import annotations

from typing import Any

from toolbus.schemas.argument_schema import ArgumentSchema
from toolbus.schemas.keywords import DEFINITIONS, UNEVALUATED, types_of
from toolbus.schemas.merging import declared
from toolbus.schemas.notes import note
from toolbus.schemas.reduction import Definitions, with_note
from toolbus.schemas.walker import rewritten

__all__ = ["plain_object"]

_GONE = DEFINITIONS.keys() | {"$schema", "$comment"}
_OPEN_OR_CLOSED = ("additionalProperties", *UNEVALUATED)
"""Keywords that are kept where they are true or false."""


def plain_object(
    source: ArgumentSchema, root: dict[str, Any], names: dict[str, str]
) -> dict[str, Any]:
    """Write a root.

    Args:
        source: The schema.
        root: Its root, as `root_object` returns it.
        names: Other names of its properties.
    """
    properties = {
        name: with_note(schema, note("name", name)) if name in names else schema
        for name, schema in root.get("properties", {}).items()
    }
    copy = _Copy(source)
    written = copy.part({"type": "object", **root, "properties": properties})
    written["properties"] = {
        names.get(name, name): schema for name, schema in written["properties"].items()
    }
    if "required" in written:
        written["required"] = [names.get(name, name) for name in written["required"]]
    if definitions := copy.definitions.written(copy.part):
        written["$defs"] = definitions
    return written


class _Copy:
    def __init__(self, source: ArgumentSchema) -> None:
        self._source = source
        self.definitions = Definitions()

    def part(self, schema: Any) -> dict[str, Any]:
        """Write a part: an object, with `items` for an array, and references to definitions."""
        if not isinstance(schema, dict):
            return {"not": {}} if schema is False else {}
        written: dict[str, Any] = {}
        schema = declared(schema)
        for keyword, value in schema.items():
            if keyword in _GONE:
                continue
            written[keyword] = self._value(keyword, value)
        if "array" in types_of(schema) and not isinstance(schema.get("items"), dict):
            # OpenAI refuses an array without `items`, and `items` that is a boolean.
            if schema.get("items") is False:
                most = len(schema.get("prefixItems", ()))
                written["maxItems"] = min(most, schema.get("maxItems", most))
            written["items"] = {}
        return written

    def _value(self, keyword: str, value: Any) -> Any:
        if keyword == "$ref":
            target = self._source.target(value)
            return self.definitions.reference(True if target is None else target, value)
        if keyword in _OPEN_OR_CLOSED and isinstance(value, bool):
            return value
        return rewritten(keyword, value, self.part)
