"""What a tool reads that its caller sends while the call runs, and which parameter takes it.

Values are checked one by one, as they are read. Where they come from, and how much may wait, is the
business of whoever runs the tool.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from toolbus.chunk_reader import TwoReaders
from toolbus.chunks import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    TextChunk,
    as_chunk,
)
from toolbus.errors import InvalidArguments, RoomException
from toolbus.plain_json import cut, json_pointer

__all__ = ["ATTACHMENT", "ChunkSource", "InputStream", "Intake", "intake_of"]

T = TypeVar("T")
R = TypeVar("R")

ATTACHMENT = "attachment"
"""The parameter that takes an upload as a file."""
_BYTES = (bytes, bytearray, memoryview)
_CHUNKS = (EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk)
_UNSET: Any = object()


class ChunkSource(Protocol):
    """Where an input comes from."""

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None behind the last. Cancelling it loses nothing."""

    def wrong(self, error: RoomException) -> RoomException:
        """Learn that a value is not what the tool takes; return what the tool is to be told."""


class InputStream(Generic[T]):
    """What the caller of a tool sends while the call runs: `async for row in rows`.

    A tool asks for it by the annotation of a parameter. `InputStream[Row]` gives values checked and
    converted by pydantic, `InputStream[bytes]` the pieces of files as they come,
    `InputStream[FileChunk]` the files themselves, `InputStream[Chunk]` chunks of any kind, and
    `InputStream[Any]` plain values. The caller sends no faster than the tool reads. A sync tool
    goes through it with `for`.

    Made of a list or an async iterable of what `as_chunk` takes, to run a tool locally::

        await kit.execute(ToolContext(), "load", {}, InputStream([{"id": 1}, {"id": 2}]))

    Raises, while it is read:
        InvalidArguments: A value does not fit; its path begins with `/input` and its place.
        StreamBroken: A part of it was lost on the way.
        RuntimeError: Another task is reading it, or its reading was cancelled within a file.
    """

    __slots__ = ("_convert", "_count", "_is_read", "_loop", "_pieces", "_source")

    def __init__(self, values: AsyncIterable[Any] | Iterable[Any]) -> None:
        self._begin(_Values(values), _chunk_itself)

    def _begin(self, source: ChunkSource, convert: Callable[[Chunk], Any] | None) -> None:
        self._source = source
        self._convert = convert
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._count = 0
        self._is_read = False

    @classmethod
    def of_source(cls, source: ChunkSource) -> InputStream[Chunk]:
        """Make one of the chunks that a source gives."""
        made: InputStream[Chunk] = InputStream.__new__(InputStream)
        made._begin(source, _chunk_itself)
        return made

    def of(self, kind: type[R] | TypeAdapter[R]) -> InputStream[R]:
        """Return the same input as values of a type, to be read in this one's place."""
        made: InputStream[R] = InputStream.__new__(InputStream)
        made._begin(self._source, _conversion(kind))
        made._loop = _running_loop()
        return made

    async def file(self) -> FileChunk | None:
        """Return the first chunk, to be read piece by piece; None where nothing is sent.

        Raises `InvalidArguments` where it is no file.
        """
        chunk = await self._source.next()
        if chunk is None or isinstance(chunk, FileChunk):
            return chunk
        raise self._source.wrong(_unfit(f"/{ATTACHMENT}", "the upload is no file"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_read:
            raise TwoReaders
        self._is_read = True
        try:
            value: T = await self._next()
            return value
        finally:
            self._is_read = False

    async def _next(self) -> Any:
        while True:
            if self._pieces is not None:
                piece = await self._next_piece(self._pieces)
                if piece is not None:
                    return piece
            chunk = await self._source.next()
            if chunk is None:
                raise StopAsyncIteration
            self._count += 1
            if self._convert is not None:
                return self._converted(self._convert, chunk)
            if not isinstance(chunk, FileChunk):
                raise self._source.wrong(_unfit(self._place, "only files are taken here"))
            self._pieces = chunk.pieces()

    async def _next_piece(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """Read on in a file; one whose reading was cancelled half-way is not taken for read."""
        self._pieces = _cut_off()
        piece = await anext(pieces, None)
        self._pieces = None if piece is None else pieces
        return piece

    def _converted(self, convert: Callable[[Chunk], Any], chunk: Chunk) -> Any:
        try:
            return convert(chunk)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = f"{self._place}{json_pointer(first['loc'])}"
            raise self._source.wrong(_unfit(path, cut(first["msg"]))) from None
        except Exception as error:
            words = f"the value cannot be converted: {type(error).__name__}"
            raise self._source.wrong(_unfit(self._place, cut(words))) from error

    @property
    def _place(self) -> str:
        return f"/input/{self._count - 1}"

    # On a thread

    def __iter__(self) -> Self:
        if self._loop is None or self._loop is _running_loop():
            raise TypeError("on the event loop an input is read with `async for`")
        return self

    def __next__(self) -> T:
        assert self._loop is not None, "`iter` comes first"
        try:
            return asyncio.run_coroutine_threadsafe(self.__anext__(), self._loop).result()
        except StopAsyncIteration:
            raise StopIteration from None


class _Values:
    """An input of values that are here."""

    def __init__(self, values: AsyncIterable[Any] | Iterable[Any]) -> None:
        if isinstance(values, str | bytes | dict):
            raise TypeError(f"an input is a list of values, not one {type(values).__name__}")
        self._values = aiter(values) if isinstance(values, AsyncIterable) else iter(values)

    async def next(self) -> Chunk | None:
        if isinstance(self._values, AsyncIterator):
            value = await anext(self._values, _UNSET)
        else:
            value = next(self._values, _UNSET)
        return None if value is _UNSET else as_chunk(value)

    def wrong(self, error: RoomException) -> RoomException:
        return error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _cut_off() -> AsyncIterator[bytes]:
    raise RuntimeError("the reading of this input was cancelled within a file")
    yield b""


def _chunk_itself(chunk: Chunk) -> Chunk:
    return chunk


def _conversion(kind: Any) -> Callable[[Chunk], Any] | None:
    """Say how a chunk becomes a value of a type; None stands for the pieces of files.

    Raises `PydanticUserError` for what is no type of values.
    """
    if kind is bytes:
        return None
    if kind is Any:
        return lambda chunk: chunk.value
    if kind in _CHUNKS:
        return _instance_of(kind)
    adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    return lambda chunk: adapter.validate_python(chunk.value)


def _instance_of(kind: type) -> Callable[[Chunk], Any]:
    def check(chunk: Chunk) -> Chunk:
        if not isinstance(chunk, kind):
            raise TypeError
        return chunk

    return check


def _unfit(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(f"{path}: {message}", details={"path": path, "message": message})


class Intake(NamedTuple):
    """The parameter of a tool that takes what the caller sends while the call runs."""

    parameter: str
    is_needed: bool
    """Whether the tool can only be called with an input."""
    kind: Any = None
    """Of `InputStream[kind]`, ready to convert; None for chunks as they come."""
    is_file: bool = False
    """Whether it is one file, whose beginning is known before the tool is entered."""

    @property
    def takes(self) -> str:
        """What a caller sends, as a manifest says it: an "attachment" or an "input"."""
        is_of_files = self.is_file or self.kind is bytes or self.kind is FileChunk
        return "attachment" if is_of_files else "input"

    async def read(self, stream: InputStream[Any]) -> Any:
        """Return what the parameter gets; None where a file was to be sent and is not."""
        if self.is_file:
            return await stream.file()
        return stream if self.kind is None else stream.of(self.kind)


def intake_of(name: str, annotation: Any, *, is_needed: bool, label: str) -> Intake | None:
    """Tell whether a parameter takes an input: by its annotation, or its name and that.

    Raises `TypeError` for an `InputStream` of what is no type of values, and for what is to be a
    file and could only be an argument.
    """
    bare = _bare(annotation)
    if bare is FileChunk and name == ATTACHMENT:
        return Intake(name, is_needed, is_file=True)
    if bare is FileChunk or (name == ATTACHMENT and bare in _BYTES):
        words = f"a file comes as the parameter `{ATTACHMENT}: FileChunk`"
        raise TypeError(f"{label}: parameter {name!r}: {words}")
    if bare is not InputStream and get_origin(bare) is not InputStream:
        return None
    kind = next(iter(get_args(bare)), Any)
    if kind == Chunk:
        return Intake(name, is_needed)
    if kind is Any or kind is bytes or kind in _CHUNKS:
        return Intake(name, is_needed, kind)
    try:
        return Intake(name, is_needed, TypeAdapter(kind))
    except PydanticUserError as error:
        what = f"parameter {name!r}: an InputStream of what is no type of values"
        raise TypeError(f"{label}: {what}: {error.message}") from None


def _bare(annotation: Any) -> Any:
    """Take `Annotated` and `| None` off."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        members = [each for each in get_args(annotation) if each is not types.NoneType]
        return _bare(members[0]) if len(members) == 1 else annotation
    return annotation
