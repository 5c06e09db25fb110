"""Descriptions that are cut where a toolkit is too large for a room. Pure."""

from __future__ import annotations

from typing import Any

from toolbus.schemas.keywords import SUBSCHEMAS, Holds

__all__ = ["shortened", "with_short_texts"]

_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose values are data, in which `description` is not a description."""


def shortened(text: str, limit: int) -> str:
    """Return a text of at most some characters, which ends after a sentence or a word."""
    if len(text) <= limit:
        return text
    start = text[: limit - 1]
    end = start.rfind(". ") + 1
    if end < limit // 2:
        end = max(start.rfind(" "), start.rfind("\n"))
    return f"{start[: end if end >= limit // 2 else limit - 1].rstrip()}…"


def with_short_texts(schema: Any, limit: int) -> Any:
    """Return a JSON Schema whose descriptions have at most some characters."""
    if isinstance(schema, list):
        return [with_short_texts(item, limit) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _member(key, value, limit) for key, value in schema.items()}


def _member(key: str, value: Any, limit: int) -> Any:
    if key == "description" and isinstance(value, str):
        return shortened(value, limit)
    if key in _VALUES:
        return value
    if SUBSCHEMAS.get(key) is Holds.NAMED and isinstance(value, dict):
        return {name: with_short_texts(subschema, limit) for name, subschema in value.items()}
    return with_short_texts(value, limit)
