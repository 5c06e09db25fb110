"""Checks values that travel in opaque parts and headers, step by step; says what is wrong. Pure.

For what a short look does not settle: depth, keys, numbers and types, each with its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

__all__ = ["PLAIN", "PLAIN_OR_BYTES", "BadBody", "check_value"]

PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})
"""Types whose values are the same to every packer, and need no look inside."""
PLAIN_OR_BYTES: frozenset[type] = PLAIN | {bytes}
_MAX_STEP_CHARS = 128
_MAX_POINTER_CHARS = 1_024
_Place: TypeAlias = "tuple[_Place | None, Any]"


class BadBody(ValueError):
    """An opaque part that its reader refuses; `path` is a JSON pointer to the offending value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


def check_value(value: Any, depth: int, place: _Place | None = None, *, binary: bool) -> None:
    """Go through a value that was read.

    Args:
        value: Of what msgpack reads.
        depth: How many arrays and maps may stand within each other.
        place: Where the value stands; nowhere at first.
        binary: Whether byte strings may stand among the values.

    Raises:
        BadBody: It is too deep, has a key that is not text, a number that JSON lacks, or another
            type.
    """
    kind = type(value)
    if kind is dict or kind is list:
        if depth == 0:
            raise BadBody(_pointer(place), "deeper than is allowed")
        _check_items(value, depth, place, binary=binary)
    elif kind is float:
        if not math.isfinite(value):
            raise BadBody(_pointer(place), "NaN and infinities are not JSON")
    elif kind not in PLAIN and not (binary and kind is bytes):
        raise BadBody(_pointer(place), f"a {kind.__name__} is not a JSON value")


def _check_items(
    value: dict[Any, Any] | list[Any], depth: int, place: _Place | None, *, binary: bool
) -> None:
    plain = PLAIN_OR_BYTES if binary else PLAIN
    if isinstance(value, dict):
        if not {str}.issuperset(map(type, value)):
            raise BadBody(_pointer(place), "keys are text")
        items: Iterable[tuple[Any, Any]] = value.items()
    else:
        items = enumerate(value)
    for key, item in items:
        if type(item) not in plain:
            check_value(item, depth - 1, (place, key), binary=binary)


def _pointer(place: _Place | None) -> str:
    """Write where a value stands as a JSON pointer; only what is refused needs one."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(str(step)[:_MAX_STEP_CHARS].replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{step}" for step in reversed(steps))[:_MAX_POINTER_CHARS]
