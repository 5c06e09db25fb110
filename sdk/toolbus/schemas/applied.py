"""Counts how often the subschemas of a JSON Schema are applied to the parts of a value.

All violations of a value are found at once, each with a copy of what it is about: that is cheap
only where few subschemas are applied, and references or branches can multiply them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from toolbus.chunks.json_values import pointer_keys
from toolbus.schemas.keywords import IN_PLACE, Holds
from toolbus.wire import BadBody, pack_body

__all__ = ["MAX_APPLIED", "left_after"]

MAX_APPLIED = 2_000
"""How often subschemas may be applied. Each takes about 1 us, and may make one error with a copy
of the part."""
_MAX_VALUE_BYTES = 16 * 1024
"""Of the value, packed: as many are copied for one error at most, so 32 MiB for all."""
_NOT_COUNTED = frozenset({"$dynamicRef", "$recursiveRef", "dependencies"})
"""Rare keywords; the first two lead elsewhere than `$ref`."""


class _TooManyError(Exception):
    """There are more, or a reference leads where it is not followed."""


def left_after(schema: Any, value: Any, left: int) -> int:
    """Return how many of so many applications are left after those to a value.

    It is 0 if there are more of them, if they cannot be counted, or if the value is large.

    Args:
        schema: The schema; references within it are followed.
        value: The value.
        left: At most `MAX_APPLIED`.
    """
    if left == 0:
        return 0
    counter = _Counter(schema, left)
    try:
        if len(pack_body(value)) > _MAX_VALUE_BYTES:
            return 0
        counter.count(schema, value)
    except (BadBody, _TooManyError, RecursionError):
        return 0
    return counter.left


class _Counter:
    def __init__(self, root: Any, left: int) -> None:
        self._root = root
        self.left: int = left

    def count(self, schema: Any, value: Any) -> None:
        """Count a subschema and those in it. Raises `_TooManyError`."""
        if not isinstance(schema, dict):
            return
        required = schema.get("required")
        self.left -= 1 + (len(required) if isinstance(required, list) else 0)
        # An "$id" within the schema changes what its references mean.
        is_other = "$id" in schema and schema is not self._root
        if self.left < 0 or is_other or not _NOT_COUNTED.isdisjoint(schema):
            raise _TooManyError
        if "$ref" in schema:
            self.count(self._target(schema["$ref"]), value)
        for keyword in schema.keys() & IN_PLACE.keys():
            for branch in _held(schema[keyword], IN_PLACE[keyword]):
                self.count(branch, value)
        if isinstance(value, dict):
            self._count_properties(schema, value)
        elif isinstance(value, list):
            self._count_items(schema, value)

    def _count_properties(self, schema: dict[str, Any], value: dict[str, Any]) -> None:
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for name in properties.keys() & value.keys():
                self.count(properties[name], value[name])
        patterns = schema.get("patternProperties")
        others = [*patterns.values()] if isinstance(patterns, dict) else []
        others += [schema.get("additionalProperties"), schema.get("propertyNames")]
        for subschema in others:
            for item in value.values() if isinstance(subschema, dict) else ():
                self.count(subschema, item)

    def _count_items(self, schema: dict[str, Any], value: list[Any]) -> None:
        for keyword in ("prefixItems", "items", "additionalItems", "contains"):
            held = schema.get(keyword)
            if isinstance(held, list):  # `items` too, in older drafts
                for subschema, item in zip(held, value, strict=False):
                    self.count(subschema, item)
            elif isinstance(held, dict):
                for item in value:
                    self.count(held, item)

    def _target(self, reference: Any) -> Any:
        """Return the subschema that a reference leads to."""
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            raise _TooManyError
        found = self._root
        for key in pointer_keys(unquote(reference[1:])):
            if not isinstance(found, dict) or key not in found:
                raise _TooManyError
            found = found[key]
        return found


def _held(value: Any, holds: Holds) -> Iterable[Any]:
    if holds is Holds.ONE:
        return [value]
    if holds is Holds.NAMED:
        return value.values() if isinstance(value, dict) else []
    return value if isinstance(value, list) else []
