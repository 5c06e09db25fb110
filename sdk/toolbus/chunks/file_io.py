"""Sources of the bytes of files that are not completely in memory, and atomic writing of files.

Sources give pieces of at most `FILE_PIECE_BYTES`. Names, media types and frames are handled
elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from toolbus.atomic_file import AtomicFile, write_atomically
from toolbus.errors import InvalidResult

__all__ = [
    "FILE_PIECE_BYTES",
    "FileSource",
    "NotBytes",
    "PathSource",
    "PiecesSource",
    "cut_in_pieces",
    "write_file",
]

T = TypeVar("T")

FILE_PIECE_BYTES = 64 * 1024
"""Size of the pieces in which a file is sent."""
_READ_BYTES = 16 * FILE_PIECE_BYTES
"""Size of one read: starting a thread costs more than reading one piece."""


class NotBytes(InvalidResult):
    """The pieces of a file contain something that is not bytes."""


class FileSource(Protocol):
    """Provides the bytes of a file, piece by piece."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the pieces from the start of the file; close the generator if you leave it early.

        Raises:
            RuntimeError: It can be read only once and was read before.
        """


class PathSource:
    """A file on this machine; each reader opens it again, and threads read it.

    Args:
        path: The path. A file that cannot be opened or read is an `OSError` for the reader.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)

    async def check(self) -> None:
        """Raise `OSError` now if the file cannot be opened."""
        _close_file(await _run_in_thread(_open_file, self.path, undo=_close_file))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the current contents of the file."""
        file = await _run_in_thread(_open_file, self.path, undo=_close_file)
        try:
            while block := await _run_in_thread(file.read, _READ_BYTES):
                for piece in cut_in_pieces(block):
                    yield piece
        finally:
            file.close()


class PiecesSource:
    """The pieces of an async iterable, which can be read once.

    Args:
        pieces: Bytes, in pieces of any size.

    Raises `TypeError` if it is not an async iterable.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        if not isinstance(pieces, AsyncIterable):
            kind = type(pieces).__name__
            raise TypeError(f"the pieces of a file must be an async iterable of bytes, not {kind}")
        self._pieces: AsyncIterable[bytes] | None = pieces

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the pieces; a generator that is left early is closed."""
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            raise RuntimeError("the pieces of this file can be read only once and were read before")
        items = aiter(pieces)
        try:
            async for item in items:
                for piece in cut_in_pieces(_as_bytes(item)):
                    yield piece
        finally:
            await _close(items)


async def write_file(path: str | os.PathLike[str], data: bytes | FileSource) -> None:
    """Write a file on threads: a reader of `path` sees the old file or the complete new one.

    A write that fails or is cancelled leaves the old file as it was, and no draft. A path that is
    not a regular file, such as a pipe, is written directly. Raises `OSError`, and what a source
    raises.
    """
    if isinstance(data, bytes):
        await _run_in_thread(write_atomically, path, data)
        return
    file = await _run_in_thread(AtomicFile, path, undo=AtomicFile.discard)
    try:
        async with aclosing(data.pieces()) as pieces:
            async for piece in pieces:
                await _run_in_thread(file.write, piece)
        await _run_in_thread(file.commit)
    except BaseException:
        file.discard()
        raise


async def _run_in_thread(
    function: Callable[..., T], *arguments: Any, undo: Callable[[T], None] | None = None
) -> T:
    """Run a function on a thread; if cancelled, wait for its end first.

    Args:
        function: What to run.
        arguments: Its arguments.
        undo: Receives the result if the call was cancelled.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if running.exception() is None and undo is not None:
            undo(running.result())
        raise


def _open_file(path: Path) -> BinaryIO:
    return open(path, "rb")


def _close_file(file: BinaryIO) -> None:
    file.close()


def cut_in_pieces(block: bytes) -> list[bytes]:
    """Cut bytes into pieces of at most `FILE_PIECE_BYTES`; no bytes give no piece."""
    if len(block) <= FILE_PIECE_BYTES:
        return [block] if block else []
    starts = range(0, len(block), FILE_PIECE_BYTES)
    return [block[start : start + FILE_PIECE_BYTES] for start in starts]


def _as_bytes(item: object) -> bytes:
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    message = f"a file holds bytes, not {type(item).__name__}"
    raise NotBytes(message, details={"path": "/data", "message": message})


async def _close(items: AsyncIterator[bytes]) -> None:
    if isinstance(items, AsyncGenerator):
        await items.aclose()
