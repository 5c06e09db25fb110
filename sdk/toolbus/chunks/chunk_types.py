"""The chunk types of a result, and the conversion of a tool's return value into a chunk.

`as_chunk` refuses everything that cannot be sent. The size limit of a chunk is checked where it is
sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from toolbus.chunks.file_io import (
    FILE_PIECE_BYTES,
    FileSource,
    PathSource,
    PiecesSource,
    write_file,
)
from toolbus.chunks.json_values import (
    NotJson,
    encoding_error,
    is_plain,
    json_pointer,
    plain_json,
    plain_text,
)
from toolbus.errors import StreamBroken
from toolbus.wire.body_steps import Steps, unpack_steps
from toolbus.wire.codec import flat_json, unpack_body, unpack_nested

__all__ = [
    "FILE_PIECE_BYTES",
    "Chunk",
    "EmptyChunk",
    "FileChunk",
    "JsonChunk",
    "LinkChunk",
    "TextChunk",
    "as_chunk",
    "chunk_from_wire",
    "file_piece_from_wire",
    "file_piece_to_wire",
]

T = TypeVar("T")


class _BaseChunk(NotJson):
    """What all chunks share. Has no state."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The plain value; for a file or a link the chunk itself."""
        return self

    def into(self, target: type[T] | TypeAdapter[T]) -> T:
        """Convert the value into a type.

        `target` is a pydantic model, a dataclass, `list[Row]` or anything else that a `TypeAdapter`
        accepts. The class of the chunk gives the chunk itself, `bytes` a file's data and `str` a
        link's address. Raises `InvalidResult` if the value does not fit.
        """
        if isinstance(target, type) and isinstance(self, target):
            return self
        adapter: TypeAdapter[T] = target if isinstance(target, TypeAdapter) else TypeAdapter(target)
        try:
            return adapter.validate_python(self._convertible())
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = json_pointer(first["loc"])
            raise encoding_error(
                path, f"the result does not fit the requested type: {first['msg']}"
            ) from None

    def _convertible(self) -> Any:
        return self.value


# Most results are of this type: a struct is created in a third of the time of a frozen dataclass.
class JsonChunk(Struct, _BaseChunk, frozen=True):
    """A JSON value."""

    json: Any
    """None, a bool, a number, a string, a list or a dict with string keys."""

    @property
    def value(self) -> Any:
        """The JSON value itself."""
        return self.json

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return [1, self.json]


class TextChunk(Struct, _BaseChunk, frozen=True):
    """A text."""

    text: str

    @property
    def value(self) -> str:
        """The text itself."""
        return self.text

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return [2, self.text]


_ANY_TYPE = "application/octet-stream"


@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class FileChunk(_BaseChunk):
    """A file: its bytes, name and media type.

    `FileChunk(data, name, mime_type)` is whole: all its bytes are in memory. A file on a disk, or
    one that is produced or received piece by piece, is not whole; read it with `pieces`, `read` or
    `save`, which also accept a whole one. A received file can be read once; dropping it unread ends
    the call that it belongs to.
    """

    _content: bytes | FileSource
    name: str
    """The sender's name for it. Never trust it as a path."""
    mime_type: str

    __match_args__ = ("data", "name", "mime_type")

    def __init__(self, data: bytes, name: str = "", mime_type: str = _ANY_TYPE) -> None:
        object.__setattr__(self, "_content", data)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "mime_type", mime_type)

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        name: str | None = None,
        mime_type: str | None = None,
    ) -> FileChunk:
        """Make a chunk from a file on this machine; it is read when it is sent or saved.

        A read error is an `OSError` in the task that reads the file.

        Args:
            path: The path of the file.
            name: The name to send; the last part of the path by default.
            mime_type: The media type; "application/octet-stream" by default.
        """
        source = PathSource(path)
        return cls.from_source(source, source.path.name if name is None else name, mime_type)

    @classmethod
    def from_pieces(
        cls, pieces: AsyncIterable[bytes], name: str = "", mime_type: str | None = None
    ) -> FileChunk:
        """Make a chunk from an async iterable of bytes, in pieces of any size; it is read once.

        Raises `TypeError` for any other value.
        """
        return cls.from_source(PiecesSource(pieces), name, mime_type)

    @classmethod
    def from_source(
        cls, source: FileSource, name: str = "", mime_type: str | None = None
    ) -> FileChunk:
        """Make a chunk that is not whole, from a source of its pieces."""
        made = cls(b"", name, _ANY_TYPE if mime_type is None else mime_type)
        object.__setattr__(made, "_content", source)
        return made

    @property
    def is_whole(self) -> bool:
        """Whether all its bytes are in memory, as `data`."""
        return not hasattr(self._content, "pieces")

    @property
    def data(self) -> bytes:
        """All its bytes. Raises `ValueError` if they are not in memory: then use `await read()`."""
        content = self._content
        if hasattr(content, "pieces"):
            raise ValueError(
                "this file is not completely in memory: use await read(), pieces() or save()"
            )
        return content

    @property
    def source(self) -> FileSource | None:
        """The source of its pieces; None if it is whole."""
        return None if self.is_whole else self._content  # type: ignore[return-value]  # as is_whole says

    @property
    def is_local(self) -> bool:
        """Whether it can be read without its producer: it is in memory or on this machine."""
        return self.is_whole or isinstance(self._content, PathSource)

    async def read(self) -> bytes:
        """Read all its bytes into memory; raises what `pieces` raises."""
        if self.is_whole:
            return self.data
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give its bytes in pieces of at most `FILE_PIECE_BYTES`.

        Raises:
            OSError: It is on this machine and cannot be read.
            RoomException: It is being received and the rest does not arrive.
            RuntimeError: It can be read only once and was read before.
        """
        source = self.source
        if source is None:
            data = memoryview(self.data)
            for start in range(0, len(data), FILE_PIECE_BYTES):
                yield bytes(data[start : start + FILE_PIECE_BYTES])
            return
        async with aclosing(source.pieces()) as pieces:
            async for piece in pieces:
                yield piece

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to `path` on threads, atomically, without holding all of it in memory.

        A reader of `path` finds the old file or the complete new one. Raises `OSError` and what
        `pieces` raises; nothing is left behind then.
        """
        await write_file(Path(path), self.source or self.data)

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent. Raises `ValueError` unless it is whole."""
        return [3, self.name, self.mime_type, self.data]

    def _convertible(self) -> Any:
        return self.data

    def __repr__(self) -> str:
        size = f"{len(self.data)} bytes" if self.is_whole else "in pieces"
        return f"FileChunk({size}, name={self.name!r}, mime_type={self.mime_type!r})"


@dataclasses.dataclass(frozen=True, slots=True)
class LinkChunk(_BaseChunk):
    """The address of a resource that is stored elsewhere."""

    url: str
    name: str = ""

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return [4, self.name, self.url]

    def _convertible(self) -> Any:
        return self.url


@dataclasses.dataclass(frozen=True, slots=True)
class EmptyChunk(_BaseChunk):
    """No value: the tool returned None."""

    @property
    def value(self) -> None:
        """None."""
        return None

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return [0]


Chunk: TypeAlias = JsonChunk | TextChunk | FileChunk | LinkChunk | EmptyChunk
"""Any chunk of a result."""

_EMPTY = EmptyChunk()


def as_chunk(value: Any) -> Chunk:
    """Turn a tool's return value into a chunk.

    None becomes `EmptyChunk`, text `TextChunk`, bytes `FileChunk`; a chunk stays what it is. All
    other values become `JsonChunk`: pydantic models, dataclasses, enums, dates and similar types as
    pydantic writes them in JSON. Raises `InvalidResult` with the path of a value that cannot be
    sent: see `plain_json`.
    """
    if value is None:
        return _EMPTY
    kind = type(value)
    if kind is dict or kind is list:
        return JsonChunk(value if is_plain(value) else plain_json(value))
    if kind is str:
        return TextChunk(plain_text(value, ""))
    if isinstance(value, _BaseChunk):
        return _checked(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return FileChunk(bytes(value))
    if isinstance(value, str) and not isinstance(value, Enum):
        return TextChunk(plain_text(str.__str__(value), ""))
    return JsonChunk(plain_json(value))


def read_chunk(body: bytes) -> Chunk:
    """Read a packed chunk. Raises what `unpack_body` and `chunk_from_wire` raise."""
    return chunk_from_wire(unpack_body(body, binary=True))


def read_value(body: bytes) -> Any:
    """Read the `value` of a packed chunk. Raises what `read_chunk` raises."""
    value = flat_json(body)
    return chunk_from_wire(unpack_nested(body, binary=True)).value if value is None else value


def chunk_steps(body: bytes) -> Steps[Chunk]:
    """Do as `read_chunk`, in steps."""
    return chunk_from_wire((yield from unpack_steps(body, binary=True)))


def chunk_from_wire(fields: Sequence[Any]) -> Chunk:
    """Rebuild a chunk from its fields; the opposite of `to_wire`.

    Unknown trailing fields are ignored. Raises `ValueError` for fields that are not a chunk,
    `StreamBroken` for a piece of a file that must be followed by another one.
    """
    match fields:
        case [1, value, *_]:
            return JsonChunk(value)
        case [2, str(text), *_]:
            return TextChunk(text)
        case [0, *_]:
            return _EMPTY
        case [3, str(), str(), bytes(), True, *_]:
            raise StreamBroken("a file ended before its last piece")
        case [3, str(name), str(mime_type), bytes(data), *_]:
            return FileChunk(data, name, mime_type)
        case [4, str(name), str(url), *_]:
            return LinkChunk(url, name)
    raise ValueError("these fields are not a chunk")


def file_piece_from_wire(fields: Sequence[Any]) -> tuple[FileChunk, bool] | None:
    """Read a piece of a file and whether another one follows; None for any other chunk."""
    match fields:
        case [3, str(name), str(mime_type), bytes(data), *more]:
            return FileChunk(data, name, mime_type), bool(more) and more[0] is True
    return None


def file_piece_to_wire(chunk: FileChunk, data: bytes, *, more: bool) -> list[Any]:
    """Return the fields of one piece of a file; `more` if another one follows."""
    fields = [3, chunk.name, chunk.mime_type, data]
    return [*fields, True] if more else fields


def _checked(piece: _BaseChunk) -> Chunk:
    """Check a chunk that a tool made itself."""
    match piece:
        case JsonChunk(json):
            plain = plain_json(json)
            return piece if plain is json else JsonChunk(plain)
        case TextChunk(text):
            plain_text(text, "")
        case LinkChunk(url, name):
            plain_text(url, "/url")
            plain_text(name, "/name")
        case FileChunk():
            return _checked_file(piece)
        case EmptyChunk():
            pass
        case _:
            raise encoding_error("", f"{type(piece).__name__} is not a chunk")
    return piece


def _checked_file(file: FileChunk) -> FileChunk:
    name, mime_type = file.name, file.mime_type
    plain_text(name, "/name")
    plain_text(mime_type, "/mime_type")
    if not file.is_whole or type(file.data) is bytes:
        return file
    data: object = file.data
    if isinstance(data, bytearray | memoryview):
        return FileChunk(bytes(data), name, mime_type)
    raise encoding_error("/data", f"a file holds bytes, not {type(data).__name__}")
