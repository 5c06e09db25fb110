"""The schemas of results as clients of MCP compile them: JSON objects, in a form that all know.

A client compiles each output schema that a list has, and checks each result with it. One that does
not compile there costs the client all tools of the list (the client for TypeScript) or each result
of the tool (that for Python). So a schema is read as everywhere in toolbus, whatever draft it is
of, and one that clients may read in different ways is left out.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from toolbus.schemas.foreign import usable_schema
from toolbus.schemas.keywords import types_of
from toolbus.schemas.walker import parts_of, rewritten, target_of

__all__ = ["RESULT", "OutputSchema", "output_schema"]

RESULT = "result"
"""The property that holds a result which is not an object."""
_MAX_HOPS = 32
"""References from one to the next, which may lead in a circle."""
_PORTABLE = re.compile(
    r"""(?:
        [^\\()\[\]{}]
      | \\(?:[dDwWsSbB] | [nrtfv] | [\^$\\.*+?()\[\]{}|/] | x[0-9A-Fa-f]{2} | u[0-9A-Fa-f]{4})
      | \((?:\?:|(?!\?)) | \)
      | \{\d+(?:,\d*)?\}
      | \[(?:[^\\\[\]] | \\(?:[dDwWsS] | [nrtfv] | [\^$\\.*+?()\[\]{}|/-] | x[0-9A-Fa-f]{2}))+\]
    )*""",
    re.VERBOSE,
)
"""Patterns that Python and ECMAScript, with its flag `u`, read alike, as far as they compile."""
_POSSESSIVE = re.compile(r"[*+?}]\+")
"""What Python alone knows."""


class OutputSchema(NamedTuple):
    """What a tool returns, for clients."""

    schema: dict[str, Any] | None
    """A JSON Schema whose `type` is "object"; None if there is none that all clients can read."""
    is_wrapped: bool = False
    """Whether the value stands in an object as its `result`."""


def output_schema(schema: dict[str, Any] | None) -> OutputSchema:
    """Return what clients are to check results with.

    It accepts all that `schema` accepts. What depends on the place of a schema in a document is
    written as JSON pointers, or is not checked: `$id`, `$anchor`, `$dynamicRef`.
    """
    if schema is None:
        return OutputSchema(None)
    usable = usable_schema(schema).schema
    if not usable or not all(_is_portable(part) for part in parts_of(usable)):
        return OutputSchema(None)
    if _is_of_object(usable):
        return OutputSchema({**usable, "type": "object"})
    wrapped = {"type": "object", "properties": {RESULT: _moved(usable)}, "required": [RESULT]}
    return OutputSchema(wrapped, is_wrapped=True)


def _is_of_object(schema: dict[str, Any]) -> bool:
    """Whether a schema says at its root, or where its reference leads, that it is of objects."""
    part = schema
    for _ in range(_MAX_HOPS):
        if "type" in part:
            return types_of(part) == ["object"]
        target = target_of(schema, part.get("$ref"))
        if not isinstance(target, dict):
            break
        part = target
    return False


def _moved(schema: Any) -> Any:
    """Return a schema whose references lead to the same places one property further down."""
    if not isinstance(schema, dict):
        return schema
    moved = {key: rewritten(key, value, _moved) for key, value in schema.items()}
    if "$ref" in schema:
        moved["$ref"] = f"#/properties/{RESULT}{schema['$ref'][1:]}"
    return moved


def _is_portable(part: dict[str, Any]) -> bool:
    """Whether the keywords of a part mean the same for the validators of common clients."""
    # Ajv of the client for TypeScript knows draft 7, where `items` is for the first ones as well.
    if "prefixItems" in part and "items" in part:
        return False
    patterns = [*part.get("patternProperties", ())]
    if "pattern" in part:
        patterns.append(part["pattern"])
    return all(_is_portable_pattern(pattern) for pattern in patterns)


def _is_portable_pattern(pattern: str) -> bool:
    if _PORTABLE.fullmatch(pattern) is None or _POSSESSIVE.search(pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
