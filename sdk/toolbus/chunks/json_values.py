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
from toolbus.wire.codec import MAX_DEPTH, BadBody, pack_body

__all__ = [
    "MAX_JSON_DEPTH",
    "NotJson",
    "PlainArguments",
    "cut",
    "encoding_error",
    "is_plain",
    "json_pointer",
    "packed_json",
    "plain_json",
    "plain_text",
    "shown",
]

# The chunk around the value is one more level.
MAX_JSON_DEPTH = MAX_DEPTH - 1
"""Levels of objects and lists within each other in one JSON value; `[]` counts as one."""

_MIN_INT = -(2**63)
_END_INT = 2**64
_MAX_TEXT = 200
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
    return _to_plain(value, 1, "")


def plain_text(text: object, path: str) -> str:
    """Return a text that can be sent; raise `InvalidResult` for any other value."""
    if not isinstance(text, str):
        raise encoding_error(path, f"text is a str, not {type(text).__name__}")
    if not _is_encodable(text):
        raise encoding_error(path, "text with a lone surrogate cannot be sent")
    return text


def encoding_error(path: str, message: str) -> InvalidResult:
    """Make the error for a value that cannot be sent."""
    text = f"{path}: {message}" if path else message
    return InvalidResult(text, details={"path": path, "message": message})


def json_pointer(parts: Sequence[str | int]) -> str:
    """Write a path as a JSON pointer (RFC 6901), shortened if it is very long."""
    return cut("".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts))


def cut(text: str) -> str:
    """Shorten a long text to its start and its end."""
    if len(text) <= _MAX_TEXT:
        return text
    half = (_MAX_TEXT - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def shown(value: object) -> str:
    """Return the `repr` of any value for a message, shortened; its type if there is no `repr`."""
    try:
        return cut(repr(value))
    except Exception:  # it is nested too deeply, or its class has an error
        return f"a value of type {cut(type(value).__name__)}"


def _is_encodable(text: str) -> bool:
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
            if type(name) is not str or not (name.isascii() or _is_encodable(name)):
                return False
        items = value.values()
    for item in items:
        kind = type(item)
        if kind is int:
            fits = _MIN_INT <= item < _END_INT
        elif kind is str:
            fits = item.isascii() or _is_encodable(item)
        elif kind is dict or kind is list:
            fits = depth < MAX_JSON_DEPTH and is_plain(item, depth + 1)
        elif kind is float:
            fits = isfinite(item)
        else:
            fits = item is None or kind is bool
        if not fits:
            return False
    return True


def _to_plain(value: Any, depth: int, path: str) -> Any:
    """Convert a value into one that can be sent; raise `InvalidResult` if that fails."""
    match value:
        case None | True | False:
            return value
        case Enum():
            return _to_plain(value.value, depth, path)
        case str():
            return plain_text(str.__str__(value), path)
        case int():
            if not _MIN_INT <= value < _END_INT:
                raise encoding_error(path, "an integer beyond 64 bits cannot be sent")
            return int(value)
        case float():
            if not isfinite(value):
                raise encoding_error(path, "NaN and infinity cannot be sent")
            return float(value)
        case dict():
            return _to_plain_object(value, depth, path)
        case list() | tuple():
            _check_depth(depth, path)
            return [_to_plain(item, depth + 1, f"{path}/{at}") for at, item in enumerate(value)]
    return _to_plain(_write_with_pydantic(value, path), depth, path)


def _check_depth(depth: int, path: str) -> None:
    if depth > MAX_JSON_DEPTH:
        raise encoding_error(cut(path), f"more than {MAX_JSON_DEPTH} levels of objects and lists")


def _to_plain_object(value: dict[Any, Any], depth: int, path: str) -> dict[str, Any]:
    _check_depth(depth, path)
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise encoding_error(path, f"a key is a string, not {type(key).__name__}")
        name = plain_text(key.value if isinstance(key, Enum) else str.__str__(key), path)
        plain[name] = _to_plain(item, depth + 1, path + json_pointer((name,)))
    return plain


def _write_with_pydantic(value: Any, path: str) -> Any:
    """Let pydantic convert a model, a date, a set or another type that it supports."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise encoding_error(path, "bytes cannot be part of JSON: return them alone, or as text")
    reason = f"{cut(type(value).__name__)} cannot be written as JSON"
    if isinstance(value, Iterator | AsyncIterator):
        hint = "make it a list, or yield its items in the tool itself to return a stream"
        raise encoding_error(path, f"{reason}: {hint}")
    if isinstance(value, NotJson):
        raise encoding_error(path, reason)
    try:
        written = to_jsonable_python(value)
    except Exception as error:
        raise encoding_error(path, reason) from error
    if type(written) not in _PLAIN:
        raise encoding_error(path, reason)
    return written
