"""Estimates what `unevaluatedProperties` and `unevaluatedItems` cost in a JSON Schema.

For these keywords a compiler visits, before it sees any value, every subschema that may evaluate
the same location, once for each path that leads to it: twenty definitions that each refer twice to
the next one are a million visits. Here the visits are counted, up to a limit. Pure; a reference
that is not followed counts as exceeding the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

__all__ = ["exceeds_cost"]

_KEYWORDS = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else", "contains", *_KEYWORDS)
_MAPS = ("dependentSchemas", "dependencies")


class _LimitExceeded(Exception):
    """There are more visits than the limit, or a reference that cannot be followed."""


def exceeds_cost(limit: int, schema: dict[str, Any], parts: list[dict[str, Any]]) -> bool:
    """Whether a compiler would visit more than `limit` subschemas, repeated visits included.

    `parts` are all maps in the schema, including those that only a reference makes a subschema.

    A schema without the two keywords costs nothing. In one that has them, a reference exceeds the
    limit unless it is a JSON pointer or an anchor within this schema; so does a subschema with an
    `$id` of its own, which would change the meaning of a pointer.
    """
    starts = [part for part in parts if not _KEYWORDS.isdisjoint(part)]
    if not starts:
        return False
    if any(isinstance(part.get("$id"), str) for part in parts if part is not schema):
        return True
    visitor = _Visitor(schema, parts, limit)
    try:
        for part in starts:
            visitor.visit(part, ())
    except _LimitExceeded:
        return True
    return False


class _Visitor:
    def __init__(self, root: dict[str, Any], parts: list[dict[str, Any]], limit: int) -> None:
        self._root = root
        self._left = limit
        self._anchors: dict[str, list[Any]] = {}
        for part in parts:
            for name in map(part.get, _ANCHORS):
                if isinstance(name, str):
                    self._anchors.setdefault(name, []).append(part)

    def visit(self, part: Any, path: tuple[int, ...]) -> None:
        """Count a subschema and all that may evaluate the same location; stop at a cycle.

        Raises:
            _LimitExceeded: There are too many.
        """
        if not isinstance(part, dict) or id(part) in path:
            return
        self._left -= 1
        if self._left < 0:
            raise _LimitExceeded
        path = (*path, id(part))
        for each in self._applied_by(part):
            self.visit(each, path)

    def _applied_by(self, part: dict[str, Any]) -> Iterator[Any]:
        for keyword in _REFERENCES:
            if isinstance(reference := part.get(keyword), str):
                yield from self._referred(reference)
        for keyword in _SINGLE:
            yield part.get(keyword)
        for keyword in _LISTS:
            if isinstance(each := part.get(keyword), list):
                yield from each
        for keyword in _MAPS:
            if isinstance(each := part.get(keyword), dict):
                yield from each.values()

    def _referred(self, reference: str) -> list[Any]:
        if not reference.startswith("#"):
            raise _LimitExceeded
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer, [])
        return [_at(self._root, pointer.split("/")[1:])]


def _at(value: Any, names: list[str]) -> Any:
    """Find what a JSON pointer refers to; None if there is nothing."""
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
