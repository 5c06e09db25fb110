"""The bounds that a JSON Schema sets, in a few words: `1..99`, `of 1..80`, `^[a-z]+$`.

A schema is a stranger's: a bound that is none is left out, and each is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

__all__ = ["bounds_of"]

_MAX_NUMBER_CHARS = 24
_MAX_PATTERN_CHARS = 40
_REST = "..."
_LENGTHS: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
)


def bounds_of(kind: object, schema: Mapping[str, Any]) -> str:
    """Say which values of a JSON type a schema lets through; empty where it lets all."""
    match kind:
        case "integer" | "number":
            return " ".join(_of_number(schema))
        case "string":
            return " ".join(filter(None, (_of_length("string", schema), _of_pattern(schema))))
        case "array":
            return _of_length("array", schema)
    return ""


def _of_number(schema: Mapping[str, Any]) -> Iterator[str]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    least, most, above, below, step = (_number(schema.get(name)) for name in names)
    if least and most:
        yield f"{least}..{most}"
    else:
        yield from (f"{sign} {each}" for sign, each in ((">=", least), ("<=", most)) if each)
    yield from (f"{sign} {each}" for sign, each in ((">", above), ("<", below)) if each)
    if step:
        yield f"multiple of {step}"


def _of_length(kind: str, schema: Mapping[str, Any]) -> str:
    least, most = (_number(schema.get(name)) for name in _LENGTHS[kind])
    if least in {"", "0"}:
        return f"of at most {most}" if most else ""
    if not most:
        return f"of at least {least}"
    return f"of {least}" if least == most else f"of {least}..{most}"


def _of_pattern(schema: Mapping[str, Any]) -> str:
    pattern = schema.get("pattern")
    return _cut(pattern, _MAX_PATTERN_CHARS) if isinstance(pattern, str) else ""


def _number(value: object) -> str:
    """Write a number, 1.0 as 1; empty for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        if not isfinite(value):
            return ""
        return _cut(str(int(value) if value == int(value) else value), _MAX_NUMBER_CHARS)
    except (OverflowError, ValueError):  # more digits than anybody reads
        return _REST


def _cut(text: str, max_chars: int) -> str:
    text = text[: max_chars + 1]
    return text if len(text) <= max_chars else text[: max_chars - len(_REST)] + _REST
