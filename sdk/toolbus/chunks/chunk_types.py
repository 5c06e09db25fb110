"""The chunk types of a result, and the conversion of a tool's return value into a chunk.

`as_chunk` refuses everything that cannot be sent. `result_chunk` is for what a tool that ran gives:
values that JSON or msgpack cannot carry become text there. The size limit of a chunk is checked
where it is sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from enum import Enum
from itertools import chain, islice
from json import dumps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import msgpack
from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from toolbus.chunks.carried_values import Carrying
from toolbus.chunks.file_io import (
    FILE_PIECE_BYTES,
    FileSource,
    PathSource,
    PiecesSource,
    write_file,
)
from toolbus.chunks.json_values import (
    MAX_POINTERS,
    Conversion,
    NotJson,
    encoding_error,
    is_encodable,
    is_plain,
    json_pointer,
)
from toolbus.errors import StreamBroken
from toolbus.wire import MAX_FRAME_BYTES
from toolbus.wire.body_steps import Steps, unpack_steps
from toolbus.wire.codec import (
    BINARY_TAGS,
    flat_json,
    pack_body,
    short_list,
    unpack_body,
    unpack_nested,
)

__all__ = [
    "FILE_PIECE_BYTES",
    "MAX_PARTS",
    "Chunk",
    "EmptyChunk",
    "FileChunk",
    "JsonChunk",
    "LinkChunk",
    "MixedChunk",
    "TextChunk",
    "as_chunk",
    "chunk_from_wire",
    "chunks_of",
    "file_piece_from_wire",
    "file_piece_to_wire",
    "fitting",
    "media_type_of",
    "one_chunk",
    "result_chunk",
]

T = TypeVar("T")


class _BaseChunk(NotJson):
    """What all chunks share. Has no state."""

    __slots__ = ()

    as_text: tuple[str, ...] = ()
    """The places that are text because JSON or msgpack cannot carry what the tool gave, as JSON
    pointers: at most 16 of them."""
    more_as_text: int = 0
    """How many further places are text."""

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
class JsonChunk(Struct, _BaseChunk, frozen=True, repr_omit_defaults=True):
    """A JSON value."""

    json: Any
    """None, a bool, a number, a string, a list or a dict with string keys."""
    as_text: tuple[str, ...] = ()
    """The places that are text because JSON or msgpack cannot carry what the tool gave, such as an
    integer beyond 64 bits or NaN: JSON pointers, at most 16."""
    more_as_text: int = 0
    """How many further places are text."""

    @property
    def value(self) -> Any:
        """The JSON value itself."""
        return self.json

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return _with_places([1, self.json], self)


class TextChunk(Struct, _BaseChunk, frozen=True, repr_omit_defaults=True):
    """A text."""

    text: str
    as_text: tuple[str, ...] = ()
    """`("",)` if it stands for what is not text, or U+FFFD in it for half a surrogate pair."""
    more_as_text: int = 0
    """Always 0."""

    @property
    def value(self) -> str:
        """The text itself."""
        return self.text

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return _with_places([2, self.text], self)


def _with_places(fields: list[Any], chunk: JsonChunk | TextChunk) -> list[Any]:
    """Add the places that are text to the fields of a chunk, where there are any."""
    if chunk.as_text:
        fields.append([*chunk.as_text])
        if chunk.more_as_text:
            fields.append(chunk.more_as_text)
    return fields


_ANY_TYPE = "application/octet-stream"


def media_type_of(name: str) -> str:
    """Return the media type of a file's bytes, by its name; "application/octet-stream" if unknown.

    It is that of the bytes as they are: `a.csv.gz` is "application/gzip".
    """
    import mimetypes  # reads the tables of the system, which few programs need

    kind, encoding = mimetypes.guess_type(f"./{name}")  # not as a URL, such as `data:,`
    return {None: kind, "gzip": "application/gzip"}.get(encoding) or _ANY_TYPE


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
            mime_type: The media type; by default that of the name, as `media_type_of` knows it.
        """
        source = PathSource(path)
        sent_name = source.path.name if name is None else name
        return cls.from_source(source, sent_name, mime_type or media_type_of(sent_name))

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


@dataclasses.dataclass(frozen=True, slots=True)
class MixedChunk(_BaseChunk):
    """Several chunks that are one result, such as a text and a picture.

    A caller that reads a stream gets them one by one. Files in it are in memory: together they may
    have 16 MiB, and what is not a file has to fit a frame.
    """

    chunks: tuple[Chunk, ...]
    """The chunks, in order, at most 4,096; none of them is mixed."""

    @property
    def value(self) -> Any:
        """The list of the values of the chunks."""
        return [chunk.value for chunk in self.chunks]

    @property
    def as_text(self) -> tuple[str, ...]:  # type: ignore[override]  # that of the chunks
        """The places that are text; a pointer begins with the number of its chunk."""
        places = (
            f"/{number}{place}"
            for number, chunk in enumerate(self.chunks)
            for place in chunk.as_text
        )
        return tuple(islice(places, MAX_POINTERS))

    @property
    def more_as_text(self) -> int:  # type: ignore[override]  # that of the chunks
        """How many further places are text."""
        count = sum(len(chunk.as_text) + chunk.more_as_text for chunk in self.chunks)
        return max(count - MAX_POINTERS, 0)

    def to_wire(self) -> list[Any]:
        """Return the fields that are sent."""
        return [6, [pack_body(chunk.to_wire()) for chunk in self.chunks]]

    @property
    def value_bytes(self) -> int:
        """The packed size of all chunks but files. Raises `BadBody` as `pack_body`."""
        values = (chunk for chunk in self.chunks if not isinstance(chunk, FileChunk))
        return sum(len(pack_body(chunk.to_wire())) for chunk in values)

    def _convertible(self) -> Any:
        """Return the JSON value if there is one, which an output schema describes."""
        found = [chunk.json for chunk in self.chunks if isinstance(chunk, JsonChunk)]
        return found[0] if len(found) == 1 else self.value


Chunk: TypeAlias = JsonChunk | TextChunk | FileChunk | LinkChunk | EmptyChunk | MixedChunk
"""Any chunk of a result."""

_EMPTY = EmptyChunk()
MAX_PARTS = 4_096
"""Of a mixed chunk: each is an object, of a byte or two in a frame (PROTOCOL.md, BODY-4)."""
_HEAD_BYTES = 16
"""What the fields around a text may need."""


def chunks_of(chunk: Chunk) -> tuple[Chunk, ...]:
    """Return the chunks of a result, in order: one, unless it is mixed."""
    return chunk.chunks if isinstance(chunk, MixedChunk) else (chunk,)


def one_chunk(chunks: Sequence[Chunk]) -> Chunk:
    """Return the chunks of a result as one: a stream brings those of a mixed one by one."""
    if len(chunks) > 1:
        return MixedChunk(tuple(chunks))
    return chunks[0] if chunks else _EMPTY


def fitting(chunk: Chunk, most: int) -> Chunk:
    """Return a chunk, or, if it is a text or JSON of more than `most` packed bytes, it as a file.

    A file travels in pieces and may have any size: nothing is lost of a result that is there. Of
    several chunks, those that do not fit together with the ones before them become files.
    """
    match chunk:
        case MixedChunk(chunks):
            parts: list[Chunk] = []
            for part in chunks:
                parts.append(fitting(part, most))
                if not isinstance(parts[-1], FileChunk):
                    most -= len(pack_body(parts[-1].to_wire()))
            return MixedChunk(tuple(parts))
        case TextChunk(text):
            # A character has at most 4 bytes: most texts need not be encoded to see that they fit.
            if len(text) * 4 + _HEAD_BYTES <= most or len(pack_body(chunk.to_wire())) <= most:
                return chunk
            return FileChunk(text.encode(), "result.txt", "text/plain; charset=utf-8")
        case JsonChunk(json) if len(pack_body(chunk.to_wire())) > most:
            text = dumps(json, ensure_ascii=False)
            return FileChunk(text.encode(), "result.json", "application/json")
    return chunk


def as_chunk(value: Any) -> Chunk:
    """Turn a value into a chunk.

    None becomes `EmptyChunk`, text `TextChunk`, bytes `FileChunk`; a chunk stays what it is. All
    other values become `JsonChunk`: pydantic models, dataclasses, enums, dates and similar types as
    pydantic writes them in JSON. Raises `InvalidResult` with the path of a value that cannot be
    sent: see `plain_json`.
    """
    return result_chunk(value, Conversion)


def result_chunk(value: Any, conversion: type[Conversion] = Carrying) -> Chunk:
    """Turn what a tool gave into a chunk, as `as_chunk` does, and lose nothing.

    What JSON or msgpack cannot carry becomes text: see `Carrying`. The chunk names these places.
    Raises `InvalidResult` for what has no text: iterators, unknown types, values that contain
    themselves, and chunks within JSON.
    """
    kind = type(value)
    if value is None:
        return _EMPTY
    if (kind is dict or kind is list) and is_plain(value):
        return JsonChunk(value)
    if kind is str and is_encodable(value):
        return TextChunk(value)
    if (kind is int or kind is float or kind is bool) and is_plain([value]):
        return JsonChunk(value)
    if kind is JsonChunk and is_plain([value.json], 0):  # as middlewares pass it on
        return cast(JsonChunk, value)
    if kind is TextChunk and type(value.text) is str and is_encodable(value.text):
        return cast(TextChunk, value)
    converting = conversion()
    if isinstance(value, _BaseChunk):
        return _checked(value, converting)
    if isinstance(value, bytes | bytearray | memoryview):
        return FileChunk(bytes(value))
    if isinstance(value, str) and not isinstance(value, Enum):
        return TextChunk(converting.text(value, None), *_places(converting))
    return JsonChunk(converting.plain(value, 1), *_places(converting))


def _places(conversion: Conversion, earlier: Chunk = _EMPTY) -> tuple[tuple[str, ...], int]:
    """Return the places that a conversion made text, after those that a chunk had."""
    places = tuple(islice(chain(earlier.as_text, conversion.as_text), MAX_POINTERS))
    count = len(earlier.as_text) + earlier.more_as_text + conversion.count
    return places, count - len(places)


def read_chunk(body: bytes) -> Chunk:
    """Read a packed chunk. Raises what `unpack_body` and `chunk_from_wire` raise."""
    return chunk_from_wire(unpack_body(body, binary=True))


def read_value(body: bytes) -> Any:
    """Read the `value` of a packed chunk. Raises what `read_chunk` raises."""
    value = flat_json(body)
    return chunk_from_wire(unpack_nested(body, binary=True)).value if value is None else value


def chunk_steps(body: bytes) -> Steps[Chunk]:
    """Do as `read_chunk`, in steps."""
    fields: Any
    if len(body) > MAX_FRAME_BYTES:
        fields = [6, _large_parts(body)]
    else:
        fields = yield from unpack_steps(body, binary=True)
    match fields:
        case [6, [*parts], *_]:
            _check_parts(parts)
            chunks: list[Chunk] = []
            for part in parts:
                chunks.append(_part_from_wire((yield from unpack_steps(part, binary=True))))
            return MixedChunk(tuple(chunks))
    return chunk_from_wire(fields)


def _large_parts(body: bytes) -> list[Any]:
    """Return the packed chunks of a mixed one, and read nothing else. Raises `ValueError`.

    The bytes of files make it large: 16 MiB of small values would take gigabytes of memory.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    parts: list[Any] = []
    try:
        unpacker.read_array_header()
        unpacker.skip()
        for _ in range(min(unpacker.read_array_header(), MAX_PARTS + 1)):
            if body[unpacker.tell()] not in BINARY_TAGS:
                raise ValueError("a mixed chunk has chunks of other kinds")
            parts.append(unpacker.unpack())
    except (IndexError, msgpack.UnpackException) as error:
        raise ValueError("these fields are not a chunk") from error
    return parts


def chunk_from_wire(fields: Sequence[Any]) -> Chunk:
    """Rebuild a chunk from its fields; the opposite of `to_wire`.

    Unknown trailing fields are ignored. Raises `ValueError` for fields that are not a chunk,
    `StreamBroken` for a piece of a file that must be followed by another one.
    """
    match fields:
        case [1, value]:
            return JsonChunk(value)
        case [2, str(text)]:
            return TextChunk(text)
        case [1, value, places, *more]:
            return JsonChunk(value, *_places_from_wire(places, more))
        case [2, str(text), places, *more]:
            return TextChunk(text, *_places_from_wire(places, more))
        case [6, [*parts], *_]:
            _check_parts(parts)
            return MixedChunk(
                tuple(_part_from_wire(unpack_body(part, binary=True)) for part in parts)
            )
        case [0, *_]:
            return _EMPTY
        case [3, str(), str(), bytes(), True, *_]:
            raise StreamBroken("a file ended before its last piece")
        case [3, str(name), str(mime_type), bytes(data), *_]:
            return FileChunk(data, name, mime_type)
        case [4, str(name), str(url), *_]:
            return LinkChunk(url, name)
    raise ValueError("these fields are not a chunk")


def _part_from_wire(fields: Any) -> Chunk:
    match fields:
        case [6, *_]:
            raise ValueError("a mixed chunk has a mixed one in it")
    return chunk_from_wire(fields)


def _check_parts(parts: list[Any]) -> None:
    """Check the packed chunks of a mixed one before they are read: only files may be large.

    Raises `ValueError`.
    """
    value_bytes = 0
    for part in parts:
        if type(part) is not bytes:
            raise ValueError("a mixed chunk has chunks of other kinds")
        file = file_piece_from_wire(short_list(part) or ())
        value_bytes += len(part) - (len(file[0].data) if file else 0)
    if len(parts) > MAX_PARTS or value_bytes > MAX_FRAME_BYTES:
        raise ValueError("a mixed chunk has too much in it")


def _places_from_wire(places: Any, more: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    """Read the places that are text; what is not a list of pointers is of a newer release."""
    if not isinstance(places, list) or not {str}.issuperset(map(type, places)):
        return (), 0
    count = more[0] if more and type(more[0]) is int and more[0] >= 0 else 0
    return tuple(places[:MAX_POINTERS]), count + max(len(places) - MAX_POINTERS, 0)


def file_piece_from_wire(fields: Sequence[Any]) -> tuple[FileChunk, bool] | None:
    """Read a piece of a file and whether another one follows; None for any other chunk."""
    match fields:
        case [3, str(name), str(mime_type), bytes(data), *more]:
            return FileChunk(data, name, mime_type), bool(more) and more[0] is True
    return None


def file_piece_to_wire(chunk: FileChunk, data: bytes, *, more: bool) -> list[Any]:
    """Return the fields of one piece of a file; `more` if another one follows."""
    fields = [3, chunk.name, chunk.mime_type, data]
    if more:
        fields.append(True)
    return fields


def _checked(piece: _BaseChunk, conversion: Conversion) -> Chunk:
    """Check a chunk that a tool made itself, and that `result_chunk` does not know to be plain."""
    match piece:
        case JsonChunk(json):
            return JsonChunk(conversion.plain(json, 1), *_places(conversion, piece))
        case TextChunk(text):
            plain = _checked_text(text, "", conversion)
            return piece if plain is text else TextChunk(plain, ("",))
        case LinkChunk(url, name):
            texts = _checked_text(url, "url", conversion), _checked_text(name, "name", conversion)
            return piece if texts == (url, name) else LinkChunk(*texts)
        case FileChunk():
            return _checked_file(piece, conversion)
        case EmptyChunk():
            return piece
        case MixedChunk(chunks):
            return _checked_mixed(piece, chunks, type(conversion))
    raise encoding_error("", f"{type(piece).__name__} is not a chunk")


def _checked_text(text: object, field: str, conversion: Conversion) -> str:
    if not isinstance(text, str):
        path = field and f"/{field}"
        raise encoding_error(path, f"text is a str, not {type(text).__name__}")
    return conversion.text(text, (None, field) if field else None)


def _checked_file(file: FileChunk, conversion: Conversion) -> FileChunk:
    name = _checked_text(file.name, "name", conversion)
    mime_type = _checked_text(file.mime_type, "mime_type", conversion)
    has_changed = (name, mime_type) != (file.name, file.mime_type)
    if file.source is not None:
        return FileChunk.from_source(file.source, name, mime_type) if has_changed else file
    data: object = file.data
    if type(data) is bytes and not has_changed:
        return file
    if isinstance(data, bytes | bytearray | memoryview):
        return FileChunk(bytes(data), name, mime_type)
    raise encoding_error("/data", f"a file holds bytes, not {type(data).__name__}")


def _checked_mixed(
    mixed: MixedChunk, chunks: Sequence[Any], conversion: type[Conversion]
) -> MixedChunk:
    if len(chunks) > MAX_PARTS:
        raise encoding_error("", f"a mixed chunk has at most {MAX_PARTS:,} chunks")
    checked: list[Any] = []
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, _BaseChunk) or isinstance(chunk, MixedChunk):
            raise encoding_error(f"/{number}", "a mixed chunk has chunks of other kinds")
        if isinstance(chunk, FileChunk) and not chunk.is_whole:
            raise encoding_error(f"/{number}", "a file beside other chunks has to be in memory")
        checked.append(result_chunk(chunk, conversion))
    if all(new is old for new, old in zip(checked, chunks, strict=True)):
        return mixed
    return MixedChunk(tuple(checked))
