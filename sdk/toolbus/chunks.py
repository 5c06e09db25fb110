"""The pieces a result is made of, and how a tool's plain return value becomes one.

`as_chunk` lets nothing pass that cannot be sent. How large a chunk may be is the wire's matter, not
decided here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from toolbus.plain_json import NotJson, is_plain, json_pointer, plain_json, plain_text, unsendable

__all__ = [
    "Chunk",
    "EmptyChunk",
    "FileChunk",
    "JsonChunk",
    "LinkChunk",
    "TextChunk",
    "as_chunk",
    "chunk_from_wire",
]

T = TypeVar("T")


class _Piece(NotJson):
    """What all chunks share. Holds no state."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The plain value; of a file or a link the chunk itself."""
        return self

    def into(self, target: type[T] | TypeAdapter[T]) -> T:
        """Convert the value into a type.

        A pydantic model, a dataclass, `list[Row]` or whatever else a `TypeAdapter` takes; the class
        of the chunk gives the chunk, `bytes` a file's data, `str` a link's address. Raises
        `InvalidResult` where the value does not fit.
        """
        if isinstance(target, type) and isinstance(self, target):
            return self
        adapter: TypeAdapter[T] = target if isinstance(target, TypeAdapter) else TypeAdapter(target)
        try:
            return adapter.validate_python(self._convertible())
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = json_pointer(first["loc"])
            raise unsendable(
                path, f"the result does not fit the type asked for: {first['msg']}"
            ) from None

    def _convertible(self) -> Any:
        return self.value


# What most results are: a struct is made in a third of the time that a frozen dataclass takes.
class JsonChunk(Struct, _Piece, frozen=True):
    """A JSON value."""

    json: Any
    """None, a bool, a number, a string, a list or a dict with string keys."""

    @property
    def value(self) -> Any:
        """The JSON value itself."""
        return self.json

    def to_wire(self) -> list[Any]:
        """Return the fields that travel."""
        return [1, self.json]


class TextChunk(Struct, _Piece, frozen=True):
    """A piece of text."""

    text: str

    @property
    def value(self) -> str:
        """The text itself."""
        return self.text

    def to_wire(self) -> list[Any]:
        """Return the fields that travel."""
        return [2, self.text]


@dataclasses.dataclass(frozen=True, slots=True)
class FileChunk(_Piece):
    """A file: its bytes and what is known of them."""

    data: bytes = dataclasses.field(repr=False)
    name: str = ""
    """What the sender calls it. Never trust it as a path."""
    mime_type: str = "application/octet-stream"

    def to_wire(self) -> list[Any]:
        """Return the fields that travel."""
        return [3, self.name, self.mime_type, self.data]

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Write the data to `path`, in a thread and in one step.

        Whoever looks at `path` sees the old file or the whole new one. Raises `OSError`.
        """
        await asyncio.to_thread(_write_in_one_step, Path(path), self.data)

    def _convertible(self) -> Any:
        return self.data


@dataclasses.dataclass(frozen=True, slots=True)
class LinkChunk(_Piece):
    """The address of something that lies elsewhere."""

    url: str
    name: str = ""

    def to_wire(self) -> list[Any]:
        """Return the fields that travel."""
        return [4, self.name, self.url]

    def _convertible(self) -> Any:
        return self.url


@dataclasses.dataclass(frozen=True, slots=True)
class EmptyChunk(_Piece):
    """Nothing: the tool returned None."""

    @property
    def value(self) -> None:
        """None."""
        return None

    def to_wire(self) -> list[Any]:
        """Return the fields that travel."""
        return [0]


Chunk: TypeAlias = JsonChunk | TextChunk | FileChunk | LinkChunk | EmptyChunk
"""Any piece of a result."""

_EMPTY = EmptyChunk()


def as_chunk(value: Any) -> Chunk:
    """Turn what a tool returned into a chunk.

    None becomes `EmptyChunk`, text `TextChunk`, bytes `FileChunk`, a chunk stays, all else becomes
    `JsonChunk`: pydantic models, dataclasses, enums, dates and the like as pydantic writes them in
    JSON. Raises `InvalidResult` with the path of what cannot be sent: see `plain_json`.
    """
    if value is None:
        return _EMPTY
    kind = type(value)
    if kind is dict or kind is list:
        return JsonChunk(value if is_plain(value) else plain_json(value))
    if kind is str:
        return TextChunk(plain_text(value, ""))
    if isinstance(value, _Piece):
        return _checked(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return FileChunk(bytes(value))
    if isinstance(value, str) and not isinstance(value, Enum):
        return TextChunk(plain_text(str.__str__(value), ""))
    return JsonChunk(plain_json(value))


def chunk_from_wire(fields: Sequence[Any]) -> Chunk:
    """Rebuild a chunk from its fields; the opposite of `to_wire`.

    Unknown trailing fields are ignored. Raises `ValueError` for what is no chunk.
    """
    match fields:
        case [1, value, *_]:
            return JsonChunk(value)
        case [2, str(text), *_]:
            return TextChunk(text)
        case [0, *_]:
            return _EMPTY
        case [3, str(name), str(mime_type), bytes(data), *_]:
            return FileChunk(data, name, mime_type)
        case [4, str(name), str(url), *_]:
            return LinkChunk(url, name)
    raise ValueError("these fields are no chunk")


def _checked(piece: _Piece) -> Chunk:
    """Look into a chunk that a tool made by hand."""
    match piece:
        case JsonChunk(json):
            plain = plain_json(json)
            return piece if plain is json else JsonChunk(plain)
        case TextChunk(text):
            plain_text(text, "")
        case LinkChunk(url, name):
            plain_text(url, "/url")
            plain_text(name, "/name")
        case FileChunk(data, name, mime_type):
            plain_text(name, "/name")
            plain_text(mime_type, "/mime_type")
            if type(data) is not bytes:
                return FileChunk(_as_bytes(data), name, mime_type)
        case EmptyChunk():
            pass
        case _:
            raise unsendable("", f"{type(piece).__name__} is no chunk")
    return piece


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise unsendable("/data", f"a file holds bytes, not {type(data).__name__}")


def _write_in_one_step(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{secrets.token_hex(8)}.part")
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    try:
        with open(beside, "xb") as file:
            if mode is not None:
                os.chmod(beside, mode)
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
