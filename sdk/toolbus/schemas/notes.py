"""What a schema loses on its way to a provider, as text in the descriptions of its parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolbus.schemas.text import json_start
from toolbus.untrusted_text import visible

__all__ = ["described", "note", "notes_of"]

_MAX_NOTE_CHARS = 300
"""Of one: a `default` may have kilobytes, and notes are part of each request to a model."""
_MAX_NOTES_CHARS = 1_000
"""Of all notes of one part: what is cut is checked by the tool all the same."""
_OF_TYPE = {
    "string": (
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "contentEncoding",
        "contentMediaType",
    ),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": (
        *("minItems", "maxItems", "uniqueItems", "prefixItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
    ),
    "object": (
        *("minProperties", "maxProperties", "propertyNames", "patternProperties"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    ),
}
_OF_ANY = ("not", "if", "then", "else", "allOf", "oneOf", "$dynamicRef", "default", "examples")
_SILENT = {"default": None, "uniqueItems": False, "minItems": 0, "minLength": 0}
"""Keywords with values that say nothing to a model."""


def notes_of(part: dict[str, Any], kinds: Iterable[str], retained: Iterable[str]) -> list[str]:
    """Return a note for each keyword of a part that says something and is not retained."""
    names = [name for kind in kinds for name in _OF_TYPE.get(kind.replace("integer", "number"), ())]
    return [
        note(name, part[name])
        for name in dict.fromkeys([*names, *_OF_ANY])
        if name in part
        and name not in retained
        and not (name in _SILENT and part[name] is _SILENT[name])
    ]


def note(name: str, value: Any) -> str:
    """Return a note about a keyword: its value is cut if it is long.

    Hidden characters are visible: a value of arguments has become words for a reader here.
    """
    text = json_start(value, _MAX_NOTE_CHARS)
    if len(text) > _MAX_NOTE_CHARS:
        return f"{name}: {visible(text[:_MAX_NOTE_CHARS])}..."
    return f"{name}: {visible(text)}"


def described(description: Any, notes: Iterable[str]) -> dict[str, str]:
    """Return the field `description` of a part, with notes behind it; empty if there is nothing."""
    text = "; ".join(dict.fromkeys(notes))
    if len(text) > _MAX_NOTES_CHARS:
        text = f"{text[:_MAX_NOTES_CHARS]}..."
    parts = [description] if isinstance(description, str) and description else []
    if text:
        parts.append(f"({text})")
    return {"description": " ".join(parts)} if parts else {}
