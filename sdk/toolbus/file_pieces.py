"""Where the bytes of a file come from that is not whole in memory, and how one is written.

Pieces come one after another, and none is larger than `FILE_PIECE_BYTES`. What a file is called
and how its pieces travel is not decided here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeVar

from toolbus.errors import InvalidResult

__all__ = [
    "FILE_PIECE_BYTES",
    "FileSource",
    "NotBytes",
    "PathSource",
    "PiecesSource",
    "cut_in_pieces",
    "write_in_one_step",
]

T = TypeVar("T")

FILE_PIECE_BYTES = 64 * 1024
"""So much of a file is sent at a time."""
_READ_BYTES = 16 * FILE_PIECE_BYTES
"""So much is read at a time: a thread costs more than the reading of one piece."""


class NotBytes(InvalidResult):
    """What was to be a file's pieces has something else among them."""


class FileSource(Protocol):
    """Gives the bytes of a file, piece by piece."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Go through the file from its beginning; to be closed where it is left in the middle.

        Raises:
            RuntimeError: It can be read once, and was.
        """


class PathSource:
    """A file on this machine, opened anew by each who reads it; threads do the reading.

    Args:
        path: Where it lies. What cannot be opened or read is an `OSError` of the reader's.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)

    async def check(self) -> None:
        """Raise `OSError` now where the file cannot be opened."""
        _close_file(await _on_thread(_opened, self.path, undo=_close_file))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Go through the file as it is now."""
        file = await _on_thread(_opened, self.path, undo=_close_file)
        try:
            while block := await _on_thread(file.read, _READ_BYTES):
                for piece in cut_in_pieces(block):
                    yield piece
        finally:
            file.close()


class PiecesSource:
    """What an async iterable brings, once.

    Args:
        pieces: Bytes, in pieces of any size.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces: AsyncIterable[bytes] | None = pieces

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Go through them; a generator that is left in the middle is closed."""
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            raise RuntimeError("the pieces of this file were read already: they come once")
        items = aiter(pieces)
        try:
            async for item in items:
                for piece in cut_in_pieces(_as_bytes(item)):
                    yield piece
        finally:
            await _close(items)


async def write_in_one_step(path: str | os.PathLike[str], data: bytes | FileSource) -> None:
    """Write a file on threads: whoever looks at `path` sees the old one or the whole new one.

    Where that fails, or is given up, nothing is left beside it. What is no plain file, such as a
    pipe, is written directly. Raises `OSError`, and what a source raises.
    """
    target = Path(path)
    if _is_special(target):
        await _write_directly(target, data)
        return
    beside = target.with_name(f".{secrets.token_hex(8)}.part")
    if isinstance(data, bytes):
        await _on_thread(_write_whole, target, beside, data)
        return
    file = await _on_thread(_create, target, beside, undo=partial(_drop, beside))
    try:
        async with aclosing(data.pieces()) as pieces:
            async for piece in pieces:
                await _on_thread(file.write, piece)
        await _on_thread(file.close)
        await _on_thread(os.replace, beside, target)
    except BaseException:
        _drop(beside, file)
        raise


def _is_special(target: Path) -> bool:
    """Whether something is there that another file must not take the place of."""
    return target.exists() and not target.is_file()


async def _write_directly(target: Path, data: bytes | FileSource) -> None:
    source = PiecesSource(_one(data)) if isinstance(data, bytes) else data
    file = await _on_thread(_opened, target, "wb", undo=_close_file)
    try:
        async with aclosing(source.pieces()) as pieces:
            async for piece in pieces:
                await _on_thread(file.write, piece)
    finally:
        await _on_thread(file.close)


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _on_thread(
    function: Callable[..., T], *arguments: Any, undo: Callable[[T], None] | None = None
) -> T:
    """Run a function on a thread and, where this is given up, let it end before going on.

    Args:
        function: What to run.
        arguments: What it takes.
        undo: Takes what it returned where that reaches nobody any more.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if running.exception() is None and undo is not None:
            undo(running.result())
        raise


def _opened(path: Path, mode: Literal["rb", "wb"] = "rb") -> BinaryIO:
    return open(path, mode)


def _close_file(file: BinaryIO) -> None:
    file.close()


def _drop(beside: Path, file: BinaryIO) -> None:
    file.close()
    beside.unlink(missing_ok=True)


def _create(target: Path, beside: Path) -> BinaryIO:
    try:
        file = open(beside, "xb")
    except OSError as error:
        error.filename = os.fspath(target)  # what was asked for, and not how it is done
        raise
    try:
        if target.exists():
            os.chmod(beside, target.stat().st_mode & 0o777)
    except BaseException:
        _drop(beside, file)
        raise
    return file


def _write_whole(target: Path, beside: Path, data: bytes) -> None:
    with _create(target, beside) as file:
        try:
            file.write(data)
            file.close()
            os.replace(beside, target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def cut_in_pieces(block: bytes) -> list[bytes]:
    """Cut bytes into pieces of at most `FILE_PIECE_BYTES`; of none there is no piece."""
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
