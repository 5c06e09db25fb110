"""Sources of the bytes of files that are not completely in memory, and atomic writing of files.

Sources give pieces of at most `FILE_PIECE_BYTES`. Names, media types and frames are handled
elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Protocol

from toolbus.atomic_file import AtomicFile, write_atomically
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import InvalidResult

__all__ = [
    "FILE_BLOCK_BYTES",
    "FILE_PIECE_BYTES",
    "FILE_THREADS",
    "FileSource",
    "NotBytes",
    "PathSource",
    "PiecesSource",
    "cut_in_pieces",
    "write_file",
]

FILE_PIECE_BYTES = 64 * 1024
"""Size of the pieces in which a file is sent."""
FILE_BLOCK_BYTES = 16 * FILE_PIECE_BYTES
"""Size of one read or write: handing work to a thread costs more than reading one piece."""
FILE_THREADS = WorkerThreads("files", 32)
"""What opens, reads and writes files: a disk, a network share or a pipe may take any time.

With 32, some files that hang leave threads for the others; disks gain nothing from more.
"""


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
        file = await FILE_THREADS.run(_open_file, self.path, undo=_close_file)
        await FILE_THREADS.finish(file.close)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the current contents of the file."""
        file = await FILE_THREADS.run(_open_file, self.path, undo=_close_file)
        try:
            while block := await FILE_THREADS.run(file.read, FILE_BLOCK_BYTES):
                for piece in cut_in_pieces(block):
                    yield piece
        finally:
            # Not here: it would wait for a read that hangs on its thread after a cancellation.
            await FILE_THREADS.finish(file.close)


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
                if not isinstance(item, bytes | bytearray | memoryview):
                    message = f"a file holds bytes, not {type(item).__name__}"
                    raise NotBytes(message, details={"path": "/data", "message": message})
                for piece in cut_in_pieces(bytes(item)):
                    yield piece
        finally:
            if isinstance(items, AsyncGenerator):
                await items.aclose()


async def write_file(path: str | os.PathLike[str], data: bytes | FileSource) -> None:
    """Write a file on threads: a reader of `path` sees the old file or the complete new one.

    A write that fails or is cancelled leaves the old file as it was, and no draft; one that is
    cancelled in its last step may still succeed. A disk that hangs does not delay a cancellation:
    the draft is then removed when the disk works again. A path that is not a regular file, such as
    a pipe, is written directly. Raises `OSError`, and what a source raises.
    """
    if isinstance(data, bytes):
        await FILE_THREADS.run(write_atomically, path, data)
        return
    file = await FILE_THREADS.run(AtomicFile, path, undo=AtomicFile.discard)
    try:
        async with aclosing(data.pieces()) as pieces:
            async for piece in pieces:
                await FILE_THREADS.run(file.write, piece)
        await FILE_THREADS.run(file.commit)
    except BaseException:
        await FILE_THREADS.finish(file.discard)
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
