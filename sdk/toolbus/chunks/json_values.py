"""Checks which Python values can be sent as JSON, and converts others to such values.

Every JSON value that leaves a tool is checked here once. A value that passes can be packed and is
received as the same value. Its size is not checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Any

from pydantic_core import to_jsonable_python

from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus.wire.codec import MAX_DEPTH, MAX_FRAME_BYTES, BadBody, pack_body
from toolbus.wire.json_check import Location

__all__ = [
    "MAX_JSON_DEPTH",
    "MAX_POINTERS",
    "TOO_MANY_VALUES",
    "Conversion",
    "NotJson",
    "PlainArguments",
    "cut",
    "encoding_error",
    "is_encodable",
    "is_plain",
    "json_pointer",
    "packed_json",
    "plain_json",
    "plain_text",
    "pointer_keys",
    "pointer_of",
    "shown",
]

# The chunk around the value is one more level.
MAX_JSON_DEPTH = MAX_DEPTH - 1
"""Levels of objects and lists within each other in one JSON value; `[]` counts as one."""

MAX_POINTERS = 16
"""How many places that are text are named in one result; the others are counted."""
TOO_MANY_VALUES = "the value has more in it than a frame can hold"
# What msgpack can carry (PROTOCOL.md, BODY-1).
_MIN_INT = -(2**63)
_END_INT = 2**64
_SLICE = 256
"""How many items of a list are looked at together."""
_PLAIN = (dict, list, str, int, float, bool, type(None))


class NotJson:
    """Marks a class whose instances cannot be part of a JSON value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PlainArguments:
    """The parameters of a function that takes only strings, integers and booleans.

    Arguments of these types fit the schema and need no conversion.
    """

    kinds: dict[str, type]

    def fit(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments certainly fit; if not, the schema decides."""
        kinds = self.kinds
        for name, value in arguments.items():
            if kinds.get(name) is not type(value):
                return False
        return len(arguments) == len(kinds)


def packed_json(what: str, value: Any) -> bytes:
    """Pack a value as plain JSON. Raises InvalidArguments with the path of what cannot be sent."""
    try:
        return pack_body(plain_json(value))
    except (BadBody, InvalidResult) as error:
        message = f"{what} {error}"
        path = str(error.path if isinstance(error, BadBody) else error.details.get("path", ""))
        raise InvalidArguments(message, details={"path": path, "message": message}) from error


def plain_json(value: Any) -> Any:
    """Return a value as plain JSON: the value itself if it is that, else a converted copy.

    Models, dataclasses, enums, dates and similar types are converted by pydantic. Raises
    `InvalidResult` with the path of a value that cannot be sent: NaN and infinity, keys that are
    not strings, integers beyond 64 bits, more than `MAX_JSON_DEPTH` levels, lone surrogates, bytes,
    iterators and unknown types.
    """
    kind = type(value)
    if (kind is dict or kind is list) and is_plain(value, 1):
        return value
    return Conversion().plain(value, 1)


def plain_text(text: object, path: str) -> str:
    """Return a text that can be sent; raise `InvalidResult` for any other value."""
    if not isinstance(text, str):
        raise encoding_error(path, f"text is a str, not {type(text).__name__}")
    if not is_encodable(text):
        raise encoding_error(path, "text with a lone surrogate cannot be sent")
    return text


def encoding_error(path: str, message: str) -> InvalidResult:
    """Make the error for a value that cannot be sent."""
    text = f"{path}: {message}" if path else message
    return InvalidResult(text, details={"path": path, "message": message})


def json_pointer(parts: Sequence[str | int]) -> str:
    """Write a path as a JSON pointer (RFC 6901), shortened if it is very long."""
    return cut("".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts))


def pointer_keys(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer (RFC 6901) that is empty or begins with a slash."""
    return [key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:]]


def cut(text: str) -> str:
    """Shorten a long text to its start and its end."""
    if len(text) <= SHOWN_CHARS:
        return text
    half = (SHOWN_CHARS - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def shown(value: object) -> str:
    """Return the `repr` of any value for a message, shortened; its type if there is no `repr`."""
    try:
        return cut(repr(value))
    except Exception:  # it is nested too deeply, or its class has an error
        return f"a value of type {cut(type(value).__name__)}"


def is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_plain(value: dict[Any, Any] | list[Any], depth: int = 1) -> bool:
    """Return whether an object or a list can be sent as it is; give no reason.

    One loop without a call per value: results may have thousands of cells.
    """
    items: Iterable[Any] = value
    if type(value) is dict:
        for name in value:
            if type(name) is not str or not (name.isascii() or is_encodable(name)):
                return False
        items = value.values()
    for item in items:
        kind = type(item)
        if kind is int:
            fits = _MIN_INT <= item < _END_INT
        elif kind is str:
            fits = item.isascii() or is_encodable(item)
        elif kind is dict or kind is list:
            fits = depth < MAX_JSON_DEPTH and is_plain(item, depth + 1)
        elif kind is float:
            fits = isfinite(item)
        else:
            fits = item is None or kind is bool
        if not fits:
            return False
    return True


class Conversion:
    """Converts one value to plain JSON; refuses what JSON or msgpack cannot carry."""

    def __init__(self) -> None:
        self.left: int = MAX_FRAME_BYTES
        """How many more values may come: one frame has no place for more. A value that has the same
        object in many places is small in memory, and may be endless as JSON."""
        self.as_text: list[str] = []
        """The first places that became text, as JSON pointers; here there are none."""
        self.count: int = 0
        """How many places became text."""
        self._around: set[int] = set()
        """The objects and lists around the current value, by `id`."""

    def note(self, location: Location | None) -> None:
        """Note a place that became text."""
        self.count += 1
        if self.count <= MAX_POINTERS:
            self.as_text.append(pointer_of(location))

    def forget(self, count: int) -> None:
        """Forget the places that were noted since there were so many."""
        del self.as_text[count:]
        self.count = count

    def plain(self, value: Any, depth: int, location: Location | None = None) -> Any:
        """Return a value as plain JSON; `depth` is the level that it stands at, 1 the outermost."""
        self.left -= 1
        if self.left < 0:
            raise encoding_error("", TOO_MANY_VALUES)
        match value:
            case None | True | False:
                return value
            case Enum():
                return self.plain(value.value, depth, location)
            case str():
                return self.text(value, location)
            case int():
                fits = _MIN_INT <= value < _END_INT
                return int(value) if fits else self.large_integer(value, location)
            case float():
                return float(value) if isfinite(value) else self.not_finite(value, location)
            case dict() | list() | tuple():
                return self._container(value, depth, location)
            case bytes() | bytearray() | memoryview():
                return self.binary(value, location)
        return self.plain(self.written(value, location), depth, location)

    def _container(
        self, value: dict[Any, Any] | Sequence[Any], depth: int, location: Location | None
    ) -> Any:
        if depth > MAX_JSON_DEPTH:
            return self.too_deep(value, location)
        if id(value) in self._around:
            raise self.refused(location, "the value contains itself")
        self._around.add(id(value))
        try:
            if isinstance(value, dict):
                return self.mapping(value, depth, location)
            return self._list(value, depth, location)
        finally:
            self._around.discard(id(value))

    def _list(self, value: Sequence[Any], depth: int, location: Location | None) -> list[Any]:
        """Convert a list; slices of it that are plain, which most are, stay as they are."""
        plain: list[Any] = []
        for start in range(0, len(value), _SLICE):
            items = [*value[start : start + _SLICE]]
            if is_plain(items, depth):
                plain += items
                continue
            plain += [
                self.plain(item, depth + 1, (location, index))
                for index, item in enumerate(items, start)
            ]
        return plain

    def mapping(self, value: dict[Any, Any], depth: int, location: Location | None) -> Any:
        """Return an object with plain names and values."""
        plain: dict[str, Any] = {}
        for key, item in value.items():
            name = self.key(key, location)
            plain[name] = self.plain(item, depth + 1, (location, name))
        return plain

    def text(self, value: str, location: Location | None) -> str:
        """Return a text that can be sent."""
        return plain_text(str.__str__(value), pointer_of(location))

    def key(self, key: Any, location: Location | None) -> str:
        """Return the name of a key."""
        if not isinstance(key, str):
            raise self.refused(location, f"a key is a string, not {type(key).__name__}")
        return self.text(key.value if isinstance(key, Enum) else key, location)

    def large_integer(self, value: int, location: Location | None) -> str:
        """Return what stands for an integer beyond 64 bits."""
        raise self.refused(location, "an integer beyond 64 bits cannot be sent")

    def not_finite(self, value: float, location: Location | None) -> str:
        """Return what stands for NaN or an infinity."""
        raise self.refused(location, "NaN and infinity cannot be sent")

    def too_deep(self, value: Any, location: Location | None) -> str:
        """Return what stands for an object or a list below `MAX_JSON_DEPTH` levels."""
        raise self.refused(location, f"more than {MAX_JSON_DEPTH} levels of objects and lists")

    def binary(self, value: bytes | bytearray | memoryview, location: Location | None) -> str:
        """Return what stands for bytes."""
        text = "bytes cannot be part of JSON: return them alone, or as text"
        raise self.refused(location, text)

    def written(self, value: Any, location: Location | None) -> Any:
        """Let pydantic convert a model, a date, a set or another type that it supports."""
        reason = f"{cut(type(value).__name__)} cannot be written as JSON"
        if isinstance(value, Iterator | AsyncIterator):
            hint = "make it a list, or yield its items in the tool itself to return a stream"
            raise self.refused(location, f"{reason}: {hint}")
        if isinstance(value, NotJson):
            raise self.refused(location, reason)
        try:
            written = to_jsonable_python(value)
        except Exception as error:
            raise self.refused(location, reason) from error
        if type(written) not in _PLAIN:
            raise self.refused(location, reason)
        return written

    def refused(self, location: Location | None, message: str) -> InvalidResult:
        """Make the error for a value that cannot be sent."""
        return encoding_error(pointer_of(location), message)


def pointer_of(location: Location | None) -> str:
    """Write a location as a JSON pointer."""
    steps: list[str | int] = []
    while location is not None:
        location, step = location
        steps.append(step)
    return json_pointer(steps[::-1])
