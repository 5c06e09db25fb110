"""The input stream of a tool: what its caller sends while the call runs, and its parameter.

Values are checked one by one, as they are read. The runner of the tool provides the source, and
limits how much may wait.
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

from toolbus.chunks.chunk_sequences import ConcurrentReadError
from toolbus.chunks.chunk_types import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    TextChunk,
    as_chunk,
)
from toolbus.chunks.json_values import cut, json_pointer
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.loop_thread import LoopWork
from toolbus.errors import InvalidArguments, RoomException
from toolbus.tools.tool_run import ToolRun

__all__ = [
    "ATTACHMENT",
    "ChunkSource",
    "InputParameter",
    "InputStream",
    "read_input_parameter",
    "unsupported_type_text",
]

T = TypeVar("T")
R = TypeVar("R")

ATTACHMENT = "attachment"
"""The name of the parameter that takes an upload as a file."""
_BYTES = (bytes, bytearray, memoryview)
_CHUNKS = (EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk)
_UNSET: Any = object()


class ChunkSource(Protocol):
    """Gives the chunks of an input one by one, as its caller sends them."""

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one. Cancelling it loses nothing."""

    def fail(self, error: RoomException) -> RoomException:
        """Reject a value that the tool does not accept; return the error that the tool gets."""


class InputStream(Generic[T]):
    """The input that the caller of a tool sends while the call runs: `async for row in rows`.

    A tool requests it by the annotation of a parameter. `InputStream[Row]` yields values checked
    and converted by pydantic, `InputStream[bytes]` the pieces of files as they arrive,
    `InputStream[FileChunk]` the files themselves, `InputStream[Chunk]` chunks of any kind, and
    `InputStream[Any]` plain values. The caller sends no faster than the tool reads. A sync tool
    reads it with `for`.

    To run a tool locally, make one of a list or an async iterable of what `as_chunk` accepts:

        await kit.execute(ToolContext(), "load", {}, InputStream([{"id": 1}, {"id": 2}]))

    Raises, while it is read:
        InvalidArguments: A value is invalid; its path begins with `/input` and its index.
        StreamBroken: A part of it was lost.
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
        """Make a stream of the chunks of a source."""
        made: InputStream[Chunk] = InputStream.__new__(InputStream)
        made._begin(source, _chunk_itself)
        return made

    def begin_run(self, run: ToolRun) -> None:
        """Let a value that the tool does not accept be an error of the call that reads it."""
        if isinstance(self._source, _Values):  # others know their call
            self._source.run = run

    def of(self, kind: type[R] | TypeAdapter[R]) -> InputStream[R]:
        """Return the same input as values of a type, to be read instead of this one."""
        made: InputStream[R] = InputStream.__new__(InputStream)
        made._begin(self._source, _conversion(kind))
        made._loop = running_loop()
        return made

    async def file(self) -> FileChunk | None:
        """Return the first chunk, to be read piece by piece; None if the input is empty.

        Raises `InvalidArguments` if it is not a file.
        """
        chunk = await self._source.next()
        if chunk is None or isinstance(chunk, FileChunk):
            return chunk
        raise self._source.fail(_invalid_input(f"/{ATTACHMENT}", "the upload is not a file"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_read:
            raise ConcurrentReadError
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
                raise self._source.fail(_invalid_input(self._path, "only files are accepted"))
            self._pieces = chunk.pieces()

    async def _next_piece(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """Read the next piece of a file; if that is cancelled, the file cannot be read further."""
        self._pieces = _cancelled_read()
        piece = await anext(pieces, None)
        self._pieces = None if piece is None else pieces
        return piece

    def _converted(self, convert: Callable[[Chunk], Any], chunk: Chunk) -> Any:
        try:
            return convert(chunk)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = f"{self._path}{json_pointer(first['loc'])}"
            raise self._source.fail(_invalid_input(path, cut(first["msg"]))) from None
        except Exception as error:
            text = f"the value cannot be converted: {type(error).__name__}"
            raise self._source.fail(_invalid_input(self._path, cut(text))) from error

    @property
    def _path(self) -> str:
        return f"/input/{self._count - 1}"

    # On a thread

    def __iter__(self) -> Self:
        if self._loop is None or self._loop is running_loop():
            raise TypeError("on the event loop an input must be read with `async for`")
        return self

    def __next__(self) -> T:
        assert self._loop is not None, "`iter` was not called"
        try:
            return LoopWork(self._loop, self.__anext__).run()
        except StopAsyncIteration:
            raise StopIteration from None


class _Values:
    """An input of local values."""

    def __init__(self, values: AsyncIterable[Any] | Iterable[Any]) -> None:
        if isinstance(values, str | bytes | dict):
            raise TypeError(f"an input must be a list of values, not one {type(values).__name__}")
        self._values = aiter(values) if isinstance(values, AsyncIterable) else iter(values)
        self.run: ToolRun | None = None

    async def next(self) -> Chunk | None:
        if isinstance(self._values, AsyncIterator):
            value = await anext(self._values, _UNSET)
        else:
            value = next(self._values, _UNSET)
        return None if value is _UNSET else as_chunk(value)

    def fail(self, error: RoomException) -> RoomException:
        return error if self.run is None else self.run.fail(error)


async def _cancelled_read() -> AsyncIterator[bytes]:
    raise RuntimeError("the reading of this input was cancelled within a file")
    yield b""


def _chunk_itself(chunk: Chunk) -> Chunk:
    return chunk


def _conversion(kind: Any) -> Callable[[Chunk], Any] | None:
    """Return the function that converts a chunk to a type; None means the pieces of files.

    Raises `PydanticUserError` for a type that pydantic cannot validate.
    """
    if kind is bytes:
        return None
    if kind is Any:
        return lambda chunk: chunk.value
    if kind in _CHUNKS:

        def checked(chunk: Chunk) -> Any:
            if not isinstance(chunk, kind):
                raise TypeError
            return chunk

        return checked
    adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    return lambda chunk: adapter.validate_python(chunk.value)


def _invalid_input(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(f"{path}: {message}", details={"path": path, "message": message})


def unsupported_type_text(error: PydanticUserError) -> str:
    """Return why pydantic does not support a type: its first sentence, without its advice."""
    return error.message.strip().partition("\n")[0].partition(". ")[0]


class InputParameter(NamedTuple):
    """The parameter of a tool that receives the input of a call."""

    parameter: str
    required: bool
    """Whether the tool can only be called with an input."""
    kind: Any = None
    """The type of `InputStream[kind]`, ready to convert; None for unconverted chunks."""
    is_file: bool = False
    """Whether it is one file, whose first piece has arrived before the tool is entered."""

    @property
    def takes(self) -> str:
        """The value of `takes` in the manifest: "attachment" or "input"."""
        is_of_files = self.is_file or self.kind is bytes or self.kind is FileChunk
        return "attachment" if is_of_files else "input"

    async def read(self, stream: InputStream[Any]) -> Any:
        """Return the value of the parameter; None if it is a file and the input is empty."""
        if self.is_file:
            return await stream.file()
        return stream if self.kind is None else stream.of(self.kind)


def read_input_parameter(
    name: str, annotation: Any, *, required: bool, label: str
) -> InputParameter | None:
    """Return the parameter if it receives the input: by its annotation and, for a file, its name.

    Raises `TypeError` for an `InputStream` of an invalid type, and for a file parameter that has
    another name.
    """
    bare = _bare(annotation)
    if bare is FileChunk and name == ATTACHMENT:
        return InputParameter(name, required, is_file=True)
    if bare is FileChunk or (name == ATTACHMENT and bare in _BYTES):
        text = f"a file must be the parameter `{ATTACHMENT}: FileChunk`"
        raise TypeError(f"{label}: parameter {name!r}: {text}")
    if bare is not InputStream and get_origin(bare) is not InputStream:
        return None
    kind = next(iter(get_args(bare)), Any)
    if kind == Chunk:
        return InputParameter(name, required)
    if kind is Any or kind is bytes or kind in _CHUNKS:
        return InputParameter(name, required, kind)
    try:
        return InputParameter(name, required, TypeAdapter(kind))
    except PydanticUserError as error:
        what = f"parameter {name!r}: an InputStream of an invalid type"
        raise TypeError(f"{label}: {what}: {unsupported_type_text(error)}") from None


def _bare(annotation: Any) -> Any:
    """Remove `Annotated` and `| None` from an annotation."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        return _bare(members[0]) if len(members) == 1 else annotation
    return annotation
