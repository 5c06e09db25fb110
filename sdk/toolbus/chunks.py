"""The pieces a result is made of, and how a tool's plain return value becomes one.

`as_chunk` lets nothing pass that cannot be sent. How large a chunk may be is the wire's matter, not
decided here.
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

from toolbus.errors import StreamBroken
from toolbus.file_pieces import (
    FILE_PIECE_BYTES,
    FileSource,
    PathSource,
    PiecesSource,
    write_in_one_step,
)
from toolbus.plain_json import NotJson, is_plain, json_pointer, plain_json, plain_text, unsendable
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


_ANY_TYPE = "application/octet-stream"


@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class FileChunk(_Piece):
    """A file: its bytes and what is known of them.

    `FileChunk(data, name, mime_type)` is whole. One that lies on a disk, or that is made or comes
    piece by piece, is not: read it with `pieces`, `read` or `save`, which take a whole one too. One
    that comes from elsewhere can be read once; dropped unread, it ends the call that it comes from.
    """

    _content: bytes | FileSource
    name: str
    """What the sender calls it. Never trust it as a path."""
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
        """Make one of a file on this machine, which is read where it is sent or saved.

        What cannot be read is an `OSError` of whoever reads it.

        Args:
            path: Where it lies.
            name: What to call it; the last part of the path unless given.
            mime_type: What it holds; "application/octet-stream" unless given.
        """
        source = PathSource(path)
        return cls.from_source(source, source.path.name if name is None else name, mime_type)

    @classmethod
    def from_pieces(
        cls, pieces: AsyncIterable[bytes], name: str = "", mime_type: str | None = None
    ) -> FileChunk:
        """Make one of bytes that an async iterable brings, in pieces of any size; read once."""
        return cls.from_source(PiecesSource(pieces), name, mime_type)

    @classmethod
    def from_source(
        cls, source: FileSource, name: str = "", mime_type: str | None = None
    ) -> FileChunk:
        """Make one that is not whole, of whatever gives its pieces."""
        made = cls(b"", name, _ANY_TYPE if mime_type is None else mime_type)
        object.__setattr__(made, "_content", source)
        return made

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in memory, as `data`."""
        return not hasattr(self._content, "pieces")

    @property
    def data(self) -> bytes:
        """All its bytes. Raises `ValueError` where they are not here: then `await read()`."""
        content = self._content
        if hasattr(content, "pieces"):
            raise ValueError(
                "this file is not whole here: await read(), go through pieces(), or save() it"
            )
        return content

    @property
    def source(self) -> FileSource | None:
        """What gives its pieces; None of one that is whole."""
        return None if self.is_whole else self._content  # type: ignore[return-value]  # as is_whole says

    @property
    def is_at_hand(self) -> bool:
        """Whether it can be read without whoever made it: it is in memory, or on this machine."""
        return self.is_whole or isinstance(self._content, PathSource)

    async def read(self) -> bytes:
        """Read all of it into memory; raises what `pieces` raises."""
        if self.is_whole:
            return self.data
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Go through it in pieces of at most `FILE_PIECE_BYTES`.

        Raises:
            OSError: It lies on this machine and cannot be read.
            RoomException: It comes from elsewhere, and the rest of it does not.
            RuntimeError: It can be read once, and was.
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
        """Write it to `path`, in threads and in one step, never whole in memory.

        Whoever looks at `path` sees the old file or the whole new one. Raises `OSError`, and what
        `pieces` raises; then nothing is left behind.
        """
        await write_in_one_step(Path(path), self.source or self.data)

    def to_wire(self) -> list[Any]:
        """Return the fields that travel. Raises `ValueError` unless it is whole."""
        return [3, self.name, self.mime_type, self.data]

    def _convertible(self) -> Any:
        return self.data

    def __repr__(self) -> str:
        size = f"{len(self.data)} bytes" if self.is_whole else "in pieces"
        return f"FileChunk({size}, name={self.name!r}, mime_type={self.mime_type!r})"


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


def read_chunk(body: bytes) -> Chunk:
    """Read a chunk as it was packed. Raises what `unpack_body` and `chunk_from_wire` raise."""
    return chunk_from_wire(unpack_body(body, binary=True))


def read_value(body: bytes) -> Any:
    """Read the `value` of a chunk as it was packed. Raises what `read_chunk` raises."""
    value = flat_json(body)
    return chunk_from_wire(unpack_nested(body, binary=True)).value if value is None else value


def chunk_from_wire(fields: Sequence[Any]) -> Chunk:
    """Rebuild a chunk from its fields; the opposite of `to_wire`.

    Unknown trailing fields are ignored. Raises `ValueError` for what is no chunk, `StreamBroken`
    for a piece of a file behind which another one has to come.
    """
    match fields:
        case [1, value, *_]:
            return JsonChunk(value)
        case [2, str(text), *_]:
            return TextChunk(text)
        case [0, *_]:
            return _EMPTY
        case [3, str(), str(), bytes(), True, *_]:
            raise StreamBroken("a file goes on where nothing follows")
        case [3, str(name), str(mime_type), bytes(data), *_]:
            return FileChunk(data, name, mime_type)
        case [4, str(name), str(url), *_]:
            return LinkChunk(url, name)
    raise ValueError("these fields are no chunk")


def file_piece_from_wire(fields: Sequence[Any]) -> tuple[FileChunk, bool] | None:
    """Read a piece of a file, and whether another one follows; None for any other chunk."""
    match fields:
        case [3, str(name), str(mime_type), bytes(data), *more]:
            return FileChunk(data, name, mime_type), bool(more) and more[0] is True
    return None


def file_piece_to_wire(chunk: FileChunk, data: bytes, *, more: bool) -> list[Any]:
    """Return the fields of one piece of a file; `more` where another one follows."""
    fields = [3, chunk.name, chunk.mime_type, data]
    return [*fields, True] if more else fields


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
        case FileChunk():
            return _checked_file(piece)
        case EmptyChunk():
            pass
        case _:
            raise unsendable("", f"{type(piece).__name__} is no chunk")
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
    raise unsendable("/data", f"a file holds bytes, not {type(data).__name__}")
