"""Checks decoded values of opaque parts and headers step by step, with the path of an error. Pure.

For values that a fast check does not settle: depth, keys, numbers and types.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

__all__ = ["PLAIN", "PLAIN_OR_BYTES", "BadBody", "Location", "check_value"]

PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})
"""Types whose values every packer writes alike, and which contain no other values."""
PLAIN_OR_BYTES: frozenset[type] = PLAIN | {bytes}
"""The same for parts that may hold byte strings."""
# Of the path in an error and in a line of a log: a key may be as long as its frame.
_MAX_STEP_CHARS = 128
_MAX_POINTER_CHARS = 1_024
Location: TypeAlias = "tuple[Location | None, Any]"
"""The keys that lead to a value, the last one first; None for the outermost value."""


class BadBody(ValueError):
    """An opaque part that its reader refuses; `path` is a JSON pointer to the invalid value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


def check_value(value: Any, depth: int, location: Location | None = None, *, binary: bool) -> None:
    """Check a decoded value and everything in it.

    Args:
        value: What msgpack decoded.
        depth: How deep arrays and maps may be nested.
        location: The keys that lead to the value; None for the outermost one.
        binary: Whether byte strings are allowed.

    Raises:
        BadBody: It is too deep, or has a key that is not text, a number that JSON lacks, or a
            value of another type.
    """
    kind = type(value)
    if kind is dict or kind is list:
        if depth == 0:
            raise BadBody(_pointer(location), f"deeper than {_levels(location)} levels")
        _check_items(value, depth, location, binary=binary)
    elif kind is float:
        if not math.isfinite(value):
            raise BadBody(_pointer(location), "NaN and infinities are not JSON")
    elif kind not in PLAIN and not (binary and kind is bytes):
        raise BadBody(_pointer(location), f"a {kind.__name__} is not a JSON value")


def _check_items(
    value: dict[Any, Any] | list[Any], depth: int, location: Location | None, *, binary: bool
) -> None:
    plain = PLAIN_OR_BYTES if binary else PLAIN
    if isinstance(value, dict):
        if not {str}.issuperset(map(type, value)):
            raise BadBody(_pointer(location), "keys are text")
        items: Iterable[tuple[Any, Any]] = value.items()
    else:
        items = enumerate(value)
    for key, item in items:
        if type(item) not in plain:
            check_value(item, depth - 1, (location, key), binary=binary)


def _levels(location: Location | None) -> int:
    """Count the arrays and maps around a value."""
    count = 0
    while location is not None:
        location, count = location[0], count + 1
    return count


def _pointer(location: Location | None) -> str:
    """Return the location of a refused value as a JSON pointer."""
    steps: list[str] = []
    while location is not None:
        location, step = location
        steps.append(str(step)[:_MAX_STEP_CHARS].replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{step}" for step in reversed(steps))[:_MAX_POINTER_CHARS]
