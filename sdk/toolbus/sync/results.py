"""Results as a thread without an event loop reads them: files, and streams of chunks or events."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from toolbus.atomic_file import AtomicFile
from toolbus.chunks.chunk_types import EmptyChunk, JsonChunk, LinkChunk, MixedChunk, TextChunk
from toolbus.chunks.chunk_types import FileChunk as AsyncFileChunk
from toolbus.chunks.file_io import cut_in_pieces
from toolbus.client.streaming_call import ChunkStream
from toolbus.errors import Unavailable
from toolbus.room.events import EventStream

__all__ = ["Chunk", "FileChunk", "Run", "Stream", "waited_for", "with_blocking_files"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Run(Protocol):
    """Runs an async function on the thread of a client, and waits for its result."""

    def __call__(
        self, method: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what `await method(*args, **kwargs)` returns there."""


def waited_for(run: Run, items: AsyncIterator[T]) -> Iterator[T]:
    """Give the items of a client; each is waited for."""
    with suppress(StopAsyncIteration):
        while True:
            yield run(items.__anext__)


class FileChunk(AsyncFileChunk):
    """A file in a result: `save`, `read` and `pieces` wait; else it is as `toolbus.FileChunk`."""

    __slots__ = ("_run",)

    _run: Run | None

    @classmethod
    def of(cls, file: AsyncFileChunk, run: Run) -> FileChunk:
        """Made by the library."""
        made = cls(b"", file.name, file.mime_type)
        object.__setattr__(made, "_content", file._content)
        object.__setattr__(made, "_run", run)
        return made

    def read(self) -> bytes:  # type: ignore[override]  # waits
        """Read all its bytes into memory; raises what `pieces` raises."""
        return self.data if self.is_whole else b"".join(self.pieces())

    def pieces(self) -> FilePieces:  # type: ignore[override]  # waits
        """Give its bytes in pieces, as `toolbus.FileChunk.pieces` does.

        Raises:
            OSError: It is on this machine and cannot be read.
            RoomException: It is being received and the rest does not arrive.
            RuntimeError: It can be read only once and was read before.
        """
        return FilePieces(self, super().pieces(), getattr(self, "_run", None))

    def save(self, path: str | os.PathLike[str]) -> None:  # type: ignore[override]  # waits
        """Write it to `path` atomically, without holding all of it in memory.

        Raises `OSError` and what `pieces` raises; nothing is left behind then.
        """
        with AtomicFile(path) as file:
            for piece in self.pieces():
                file.write(piece)


class FilePieces:
    """The pieces of a file, for a thread, and for the client that sends the file on."""

    def __init__(
        self, file: AsyncFileChunk, source: AsyncGenerator[bytes, None], run: Run | None
    ) -> None:
        """Made by the library."""
        self._file = file
        self._source = source
        self._run = run

    def __iter__(self) -> Iterator[bytes]:
        """Give the pieces; each is waited for."""
        if self._file.is_whole:
            yield from cut_in_pieces(self._file.data)
            return
        if self._run is None:
            raise RuntimeError("this file is no result of a call: read it from where it is")
        yield from waited_for(self._run, self._source)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the pieces to the event loop of the client."""
        return self._source

    async def aclose(self) -> None:
        """End the reading there."""
        await self._source.aclose()


Chunk: TypeAlias = JsonChunk | TextChunk | FileChunk | LinkChunk | EmptyChunk | MixedChunk
"""Any chunk of a result."""


def with_blocking_files(run: Run, result: Any) -> Any:
    """Return a result whose files are read without an event loop."""
    match result:
        case AsyncFileChunk():
            return FileChunk.of(result, run)
        case MixedChunk(chunks):
            return MixedChunk(tuple(with_blocking_files(run, chunk) for chunk in chunks))
        case [*values] if any(isinstance(value, AsyncFileChunk) for value in values):
            return [with_blocking_files(run, value) for value in values]  # of a mixed result
    return result


class Stream(Generic[T]):
    """Chunks of a call, or events: `with room.stream("logs.tail") as chunks:`.

    Read it with `for chunk in chunks:`, which waits for each. The call is sent, or the subscription
    made, when the block is entered. Leaving the block ends it. One thread at a time reads it.
    """

    def __init__(
        self, run: Run, source: ChunkStream | EventStream[Any], read: Callable[[Any], T]
    ) -> None:
        """Made by the library.

        Args:
            run: Runs what reads the source.
            source: The items.
            read: Makes of an item of the source what the reader gets.
        """
        self._run = run
        self._source = source
        self._read = read
        self._is_entered = False

    def __enter__(self) -> Self:
        self._run(self._source.__aenter__)
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Unavailable):  # the client is closed, and the stream with it
            self._run(self._source.__aexit__)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._is_entered:
            raise RuntimeError("enter the stream first: with room.stream(...) as chunks:")
        try:
            return self._read(self._run(self._source.__anext__))
        except StopAsyncIteration:
            raise StopIteration from None
