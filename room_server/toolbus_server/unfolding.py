"""How far a JSON Schema unfolds where it says what becomes of values that no other part evaluates.

For `unevaluatedProperties` and `unevaluatedItems` a compiler looks, before any value is there, at
every part of the schema that may evaluate the same place, and as often as ways lead to it: twenty
definitions that each refer twice to the next are a million looks. Here such ways are counted, and
no further than is asked. Pure; of a reference that is not followed it says that it goes too far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

__all__ = ["unfolds_beyond"]

_KEYWORDS = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else", "contains", *_KEYWORDS)
_MAPS = ("dependentSchemas", "dependencies")


class _TooFar(Exception):
    """There are more ways than may be, or one that cannot be followed."""


def unfolds_beyond(most: int, schema: dict[str, Any]) -> bool:
    """Whether a compiler would look at more than so many parts, those it meets again counted anew.

    A schema that says nothing of unevaluated values does not unfold. In one that does, a reference
    counts as too far unless it is a JSON pointer or an anchor within this schema; so does a part
    with an `$id` of its own, which would change what a pointer means.
    """
    parts = list(_everything_in(schema))
    starts = [part for part in parts if not _KEYWORDS.isdisjoint(part)]
    if not starts:
        return False
    if any(isinstance(part.get("$id"), str) for part in parts if part is not schema):
        return True
    unfolding = _Unfolding(schema, parts, most)
    try:
        for part in starts:
            unfolding.follow(part, ())
    except _TooFar:
        return True
    return False


class _Unfolding:
    def __init__(self, root: dict[str, Any], parts: list[dict[str, Any]], most: int) -> None:
        self._root = root
        self._left = most
        self._anchors: dict[str, list[Any]] = {}
        for part in parts:
            for name in map(part.get, _ANCHORS):
                if isinstance(name, str):
                    self._anchors.setdefault(name, []).append(part)

    def follow(self, part: Any, way: tuple[int, ...]) -> None:
        """Count a part and all that may evaluate the same place; a way ends where it meets itself.

        Raises:
            _TooFar: There are too many.
        """
        if not isinstance(part, dict) or id(part) in way:
            return
        self._left -= 1
        if self._left < 0:
            raise _TooFar
        way = (*way, id(part))
        for each in self._next_to(part):
            self.follow(each, way)

    def _next_to(self, part: dict[str, Any]) -> Iterator[Any]:
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
            raise _TooFar
        place = unquote(reference[1:])
        if place and not place.startswith("/"):
            return self._anchors.get(place, [])
        return [_at(self._root, place.split("/")[1:])]


def _at(value: Any, names: list[str]) -> Any:
    """Find what a JSON pointer points to; None where that is nothing."""
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _everything_in(value: Any) -> Iterator[dict[str, Any]]:
    """Go through all objects, also those that are no part of the schema until one refers there."""
    if isinstance(value, dict):
        yield value
        value = value.values()
    elif not isinstance(value, list):
        return
    for part in value:
        yield from _everything_in(part)
