"""Reads a large opaque part in small steps, between which an event loop can serve others. Pure.

The result and the errors are those of `unpack_body`. A step takes about a millisecond for the worst
bytes; only the collector of Python's garbage, which a step may start, can take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import msgpack

from toolbus.wire.codec import MAX_DEPTH, flat_map, msgpack_error, refuse_ext, unpack_nested
from toolbus.wire.json_check import PLAIN, PLAIN_OR_BYTES, BadBody, Location, check_value

__all__ = [
    "LARGE_BODY_BYTES",
    "ContainerCount",
    "Steps",
    "ValueCount",
    "count_containers",
    "run_steps",
    "unpack_steps",
]

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work in small steps; its result is what the generator returns."""

LARGE_BODY_BYTES = 16 * 1024
"""An opaque part with more bytes is read in steps."""
PIECE_BYTES = 2 * 1024
"""How much is unpacked in one step."""
_SKIPPED_BYTES = 64 * 1024
"""How much is gone through in one step, without making values: it takes 0.3 ms at most."""
VALUES_PER_STEP = 4_096
"""How many values or keys are checked in one step."""
_FLAT_BYTES = 64 * 1024  # a flat map of so many bytes is read in two milliseconds
_CONTAINERS: frozenset[type] = frozenset({dict, list})


def unpack_steps(
    data: bytes,
    *,
    binary: bool = False,
    max_depth: int = MAX_DEPTH,
    count: ContainerCount | ValueCount | None = None,
) -> Steps[Any]:
    """Read an opaque part as `unpack_body` does.

    Args:
        data: The packed bytes.
        binary: Whether byte strings are allowed; JSON has none.
        max_depth: Nesting of arrays and maps.
        count: Has a limit of what may be in it.

    Raises:
        BadBody: As `unpack_body`, and for too much of what is counted.
    """
    if len(data) <= _FLAT_BYTES and (flat := flat_map(data)) is not None:
        return flat if count is None else count(flat)
    if count is not None and len(data) <= PIECE_BYTES:
        # Most tools: one step, in a third of the time. They cannot have too much in them.
        return unpack_nested(data, binary=binary, max_depth=max_depth, hook=count)
    # First gone through without making any of it: the unpacker allocates a list by its length,
    # which may be false, before its items have come.
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    yield from _read_pieces(data, _SKIPPED_BYTES, unpacker, unpacker.skip)
    if unpacker.tell() < len(data):
        raise msgpack_error()
    unpacker = msgpack.Unpacker(
        ext_hook=refuse_ext, object_hook=count, list_hook=count, max_buffer_size=len(data)
    )
    value = yield from _read_pieces(data, PIECE_BYTES, unpacker, unpacker.unpack)
    if not (yield from _is_valid(value, max_depth, binary=binary)):
        yield from _find_invalid(value, max_depth, None, binary=binary)
    return value


def run_steps(steps: Steps[T]) -> T:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _read_pieces(
    data: bytes, size: int, unpacker: msgpack.Unpacker, read: Callable[[], T]
) -> Steps[T]:
    """Give pieces to an unpacker, which keeps unfinished containers, until it can read a value."""
    pieces = memoryview(data)
    for start in range(0, len(data), size):
        unpacker.feed(pieces[start : start + size])
        try:
            value = read()
        except msgpack.OutOfData:
            yield
            continue
        except BadBody:
            raise
        except (ValueError, RecursionError, TypeError, msgpack.UnpackException) as error:
            raise msgpack_error(error) from error
        return value
    raise msgpack_error()


class ContainerCount:
    """Counts the arrays and maps of a body while they are made; refuses too many.

    Args:
        limit: How many it may have, at least 2,048.
    """

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def __call__(self, container: Any) -> Any:
        """Count one container, and return it: the hook of an unpacker."""
        self._left -= 1
        if self._left < 0:
            raise BadBody("", f"more than {self._limit} objects and lists: send fewer")
        return container


class ValueCount:
    """Counts the maps, lists and plain values of a body while it is read; refuses too many.

    Args:
        limit: How many it may have, at least 2,048.
        noun: What has them, for the message.
    """

    __slots__ = ("_limit", "_noun", "values")

    def __init__(self, limit: int, noun: str) -> None:
        self._limit = limit
        self._noun = noun
        self.values: int = 1
        """How many there are, without keys."""

    def __call__(self, container: Any) -> Any:
        """Count what is in a map or list, and return it: the hook of an unpacker."""
        self.values += len(container)
        if self.values > self._limit:
            raise BadBody("", f"more than {self._limit} values in {self._noun}")
        return container


def _is_valid(value: Any, max_depth: int, *, binary: bool) -> Steps[bool]:
    """Return whether `check_value` accepts a value, level by level.

    Each step is a few calls of C functions for thousands of values.
    """
    allowed = (PLAIN_OR_BYTES if binary else PLAIN) | _CONTAINERS | {float}
    level: list[Any] = [[value]]
    for depth in range(max_depth, -1, -1):
        inner: list[Any] = []
        for values in _batches(chain.from_iterable(map(_values_of, level))):
            kinds = {*map(type, values)}
            if not kinds <= allowed:
                return False
            if float in kinds and not all(isfinite(one) for one in values if type(one) is float):
                return False
            if kinds & _CONTAINERS:
                found = [item for item in values if type(item) in _CONTAINERS]
                if depth == 0 or not (yield from _have_text_keys(found)):
                    return False
                inner += filter(None, found)
            yield
        if not inner:
            return True
        level = inner
    return False


def _values_of(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _batches(values: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(values)
    while batch := [*islice(iterator, VALUES_PER_STEP)]:
        yield batch


def _have_text_keys(containers: list[Any]) -> Steps[bool]:
    maps = [container for container in containers if type(container) is dict]
    for keys in _batches(chain.from_iterable(maps)):
        if not {str}.issuperset(map(type, keys)):
            return False
        yield
    return True


def _find_invalid(
    value: Any, depth: int, location: Location | None, *, binary: bool
) -> Steps[None]:
    """Raise the error of `check_value` for a value that has one."""
    kind = type(value)
    if depth == 0 or not (kind is list or (kind is dict and {str}.issuperset(map(type, value)))):
        check_value(value, depth, location, binary=binary)
        return
    plain = PLAIN_OR_BYTES if binary else PLAIN
    items = value.items() if kind is dict else enumerate(value)
    for number, (key, item) in enumerate(items):
        if number % VALUES_PER_STEP == 0:
            yield
        if type(item) not in plain:
            yield from _find_invalid(item, depth - 1, (location, key), binary=binary)


def count_containers(values: Iterable[Any], limit: int) -> Steps[int]:
    """Count the objects and lists among JSON values and in them; stop above the limit."""
    count = 0
    level: list[Any] = [values]
    while level and count <= limit:
        inner: list[Any] = []
        for batch in _batches(chain.from_iterable(map(_values_of, level))):
            if not _CONTAINERS.isdisjoint(map(type, batch)):
                found = [value for value in batch if type(value) in _CONTAINERS]
                count += len(found)
                inner += filter(None, found)
            yield
        level = inner
    return count
