"""Converts the results of tools to JSON; what JSON or msgpack cannot carry becomes text.

The tool has run, so its result is not lost because of one value. Each place that is text in place
of a value is named by a JSON pointer, up to a limit. What has no text, such as an object of a class
that pydantic does not know, is refused as in arguments.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isnan
from typing import Any

from pydantic import BaseModel, RootModel, TypeAdapter
from pydantic_core import to_jsonable_python

from toolbus.chunks.json_values import (
    TOO_MANY_VALUES,
    Conversion,
    is_encodable,
)
from toolbus.errors import InvalidResult
from toolbus.wire import MAX_FRAME_BYTES
from toolbus.wire.json_check import Location

__all__ = ["Carrying", "SourceText", "as_declared", "repaired"]

_WITHOUT_BYTES = frozenset({str, int, float, bool, type(None), date, datetime})
"""Types whose values have no byte strings in them."""
_MAX_DECIMAL_BITS = 100_000
"""Larger integers are written in hexadecimal: the time for decimal digits grows with the square,
and takes 13 ms for this many bits."""


class SourceText(str):
    """The text of a JSON value that has no equal here, such as `1e400`, as its source wrote it."""

    __slots__ = ()


def repaired(text: str) -> str:
    """Return a text whose lone surrogates are replaced by U+FFFD; two that fit become one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Carrying(Conversion):
    """Converts one result to plain JSON, with text for what JSON or msgpack cannot carry.

    Integers beyond 64 bits become their decimal digits, NaN and infinities their names, bytes
    Base64, and what is nested too deep its JSON text; lone surrogates become U+FFFD. Other keys
    are written as pydantic writes them. An object two of whose keys have one name becomes its JSON
    text, which has both.
    """

    def text(self, value: str, location: Location | None) -> str:
        """Return a text, without lone surrogates."""
        plain = str.__str__(value)
        is_carried = is_encodable(plain)
        if not is_carried or isinstance(value, SourceText):
            self.note(location)
        return plain if is_carried else repaired(plain)

    def key(self, key: Any, location: Location | None) -> str:
        """Return the name of a key, as pydantic writes it."""
        if isinstance(key, bytes):
            self.note((location, name := _base64(key)))
            return name
        if isinstance(key, str):
            name = str(key.value if isinstance(key, Enum) else str.__str__(key))
        elif type(key) is int:
            name = _digits(key)
        else:
            try:
                (name,) = to_jsonable_python({key: None})
            except Exception as error:
                text = f"a key of the type {type(key).__name__} cannot be written as JSON"
                raise self.refused(location, text) from error
        if is_encodable(name):
            return name
        self.note((location, repaired(name)))
        return repaired(name)

    def mapping(self, value: dict[Any, Any], depth: int, location: Location | None) -> Any:
        """Return an object, or its JSON text if two of its keys have one name."""
        noted = self.count
        plain = super().mapping(value, depth, location)
        if len(plain) == len(value):
            return plain
        self.forget(noted)  # the whole object is one place
        return self.too_deep(value, location)

    def large_integer(self, value: int, location: Location | None) -> str:
        """Return the digits of an integer."""
        self.note(location)
        return _digits(value)

    def not_finite(self, value: float, location: Location | None) -> str:
        """Return the name of NaN or an infinity, as JavaScript and Python's `json` write it."""
        self.note(location)
        if isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"

    def binary(self, value: bytes | bytearray | memoryview, location: Location | None) -> str:
        """Return bytes as Base64."""
        self.note(location)
        return _base64(value)

    def too_deep(self, value: Any, location: Location | None) -> str:
        """Return an object or a list as its JSON text."""
        self.note(location)
        noted = self.count
        text = _json_text(value, self, location)
        self.forget(noted)  # keys in it, which are no places of the result
        return text

    def written(self, value: Any, location: Location | None) -> Any:
        """Do as `Conversion`, except for bytes, which pydantic writes as UTF-8 or not at all.

        What it cannot write as a whole is written field by field.
        """
        try:
            return _with_bytes(super().written(value, location), value)
        except InvalidResult:
            if isinstance(value, BaseModel):
                return value.model_dump(by_alias=True, warnings=False)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                fields = dataclasses.fields(value)
                return {field.name: getattr(value, field.name) for field in fields}
            if isinstance(value, set | frozenset | deque):
                return list(value)
            raise


def _with_bytes(written: Any, value: Any) -> Any:
    """Return what pydantic wrote, with the bytes that it decoded themselves in it.

    What a type or a serializer of its own made of bytes, such as `Base64Bytes`, stays.
    """
    if type(value) in _WITHOUT_BYTES:
        return written
    if isinstance(value, RootModel):
        return _with_bytes(written, value.root)
    if isinstance(value, Enum):
        return _with_bytes(written, value.value)
    kind = type(written)
    if kind is str and isinstance(value, bytes | bytearray):
        return value if repaired(written).encode() == value else written
    if kind is dict and isinstance(value, Mapping) and len(value) == len(written):
        pairs = zip(written.items(), value.items(), strict=True)
        return {_with_bytes(k, key): _with_bytes(v, item) for (k, v), (key, item) in pairs}
    if kind is dict:
        names = _names_of(value.__class__)
        return {
            key: _with_bytes(item, getattr(value, names.get(key, key), None))
            for key, item in written.items()
        }
    if kind is list and isinstance(value, Collection) and len(value) == len(written):
        return [_with_bytes(item, found) for item, found in zip(written, value, strict=True)]
    return written


@lru_cache(maxsize=1024)
def _names_of(kind: type) -> dict[str, str]:
    """Return the fields of a model or pydantic dataclass that are written under another name."""
    fields = getattr(kind, "__pydantic_fields__", {})
    return {
        field.serialization_alias: name
        for name, field in fields.items()
        if field.serialization_alias
    }


def as_declared(declared: TypeAdapter[Any], value: Any) -> Any:
    """Return a value as its declared type writes it: without the fields that a subclass adds.

    Bytes stay bytes. What the type cannot write as JSON it gives as Python values.
    """
    try:
        written = declared.dump_python(value, mode="json", by_alias=True, warnings=False)
        with suppress(Exception):  # of an `__eq__`
            # Most results are JSON values, and a look at each of them costs ten times as much.
            if written == value:
                return written
        return _with_bytes(written, value)
    except Exception:  # a serializer may raise anything; what follows names the place
        with suppress(Exception):
            return declared.dump_python(value, by_alias=True, warnings=False)
    return value


class _Ready(str):
    """A part of a JSON text that needs no conversion."""

    __slots__ = ()


def _json_text(value: Any, conversion: Carrying, location: Location | None) -> str:
    """Return a value as JSON text, however deep it is: without recursion.

    Raises `InvalidResult` for what has none, or would fill a frame.
    """
    written: list[str] = []
    left = MAX_FRAME_BYTES
    pending: list[Any] = [value]  # what is still to be written, the next one last
    while pending:
        item = pending.pop()
        if isinstance(item, _Ready):
            left -= len(item)
            if left < 0:
                raise conversion.refused(location, TOO_MANY_VALUES)
            written.append(item)
        elif isinstance(item, dict):
            parts: list[Any] = []
            for key, field in item.items():
                name = json.dumps(conversion.key(key, location), ensure_ascii=False)
                parts += [_Ready(f", {name}: " if parts else f"{name}: "), field]
            pending += [_Ready("}"), *reversed(parts), _Ready("{")]
        elif isinstance(item, list | tuple):
            parts = [part for field in item for part in (_Ready(", "), field)][1:]
            pending += [_Ready("]"), *reversed(parts), _Ready("[")]
        else:
            pending.append(_leaf_text(item, conversion, location))
    conversion.left -= MAX_FRAME_BYTES - left
    return repaired("".join(written))


def _leaf_text(value: Any, conversion: Carrying, location: Location | None) -> Any:
    """Return the JSON text of a value that has no items, or what another one is written as."""
    match value:
        case None | bool():
            return _Ready(json.dumps(value))
        case Enum():
            return value.value
        case SourceText():
            return _Ready(value)
        case str():
            return _Ready(json.dumps(str.__str__(value), ensure_ascii=False))
        case int():
            return _Ready(_digits(value))
        case float():
            return _Ready(json.dumps(float(value)))
        case bytes() | bytearray() | memoryview():
            return _Ready(json.dumps(_base64(value)))
    return conversion.written(value, location)


def _base64(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(bytes(value)).decode()  # a view may skip bytes


def _digits(value: int) -> str:
    if value.bit_length() > _MAX_DECIMAL_BITS:
        return hex(value)
    return format(Decimal(value), "f")  # `str` refuses more than 4,300 digits
