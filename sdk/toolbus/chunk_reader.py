"""Chunks read out of the bodies that come one after another, at either end of a call.

Mostly each body is a chunk; a large file comes in several and is read piece by piece (PROTOCOL.md,
STREAM-9). Where bodies come from, and what a wrong one ends, is their source's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias

from toolbus.chunks import Chunk, EmptyChunk, FileChunk, chunk_from_wire, file_piece_from_wire
from toolbus.errors import RoomException, StreamBroken
from toolbus.inflow import Arrival
from toolbus.wire import BadBody, unpack_body

__all__ = ["Arrivals", "ChunkReader", "NoChunk", "ReceivedFile", "TwoReaders"]

NoChunk: TypeAlias = Callable[[Arrival, str, str], RoomException]
"""Says what it is that a body cannot be read; by its JSON pointer, and the reason."""


class Arrivals(Protocol):
    """The chunks of one call, packed."""

    async def next(self) -> Arrival | None:
        """Wait for the next one; None behind the last. Cancelling it loses nothing."""

    def wrong(self, error: RoomException) -> RoomException:
        """Learn what is wrong with what came; return what its reader is to be told."""


class TwoReaders(RuntimeError):
    """A second task wants to read while a first one waits; the first one goes on."""

    def __init__(self) -> None:
        super().__init__("another task is reading this stream")


class ChunkReader:
    """The chunks of one call, read by one task at a time.

    A file that comes in pieces is a `FileChunk` to be read as they come; what of it is not read
    when the next chunk is asked for is skipped.

    Args:
        arrivals: What they are made of.
        no_chunk: What becomes of a body that is none.
        give_up: Ends a call that is no stream: its one chunk is its result, and before its end only
            a file can come, with which it is given up where that is dropped.
    """

    __slots__ = ("_arrivals", "_count", "_file", "_give_up", "_is_read", "_no_chunk")

    def __init__(
        self, arrivals: Arrivals, no_chunk: NoChunk, give_up: Callable[[], None] | None = None
    ) -> None:
        self._arrivals = arrivals
        self._no_chunk = no_chunk
        self._give_up = give_up
        self._count = 0
        self._file: object = None
        """Stands for the file whose pieces come now."""
        self._is_read = False

    def wrong(self, error: RoomException) -> RoomException:
        """Learn that a chunk is not what its reader takes; return what that one is to be told."""
        return self._arrivals.wrong(error)

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None behind the last one, and for a stream's empty result.

        Cancelling it loses nothing.

        Raises:
            RoomException: What `arrivals` make of `StreamBroken` for a file that does not go on and
                for a chunk of a call that is no stream, and of what is no chunk.
            TwoReaders: Another task is waiting.
            Exception: How `arrivals` ended.
        """
        while self._file is not None:
            await self._next_piece(self._file)
        arrival = await self._take()
        if arrival is None:
            return None
        self._count += 1
        try:
            chunk = self._read(arrival)
        except StreamBroken as broken:
            raise self.wrong(broken) from None
        except ValueError as error:
            raise self.wrong(self._unreadable(arrival, error)) from error
        is_end = arrival.last and self._give_up is None and isinstance(chunk, EmptyChunk)
        return None if is_end else chunk

    def _read(self, arrival: Arrival) -> Chunk:
        fields = unpack_body(arrival.body, binary=True)
        piece = file_piece_from_wire(fields)
        if piece is not None and piece[1] and not arrival.last:
            return self._begun(piece[0])
        if self._is_stray(arrival):
            raise ValueError
        return chunk_from_wire(fields)

    def _begun(self, file: FileChunk) -> FileChunk:
        self._file = mark = object()
        pieces = ReceivedFile(file.data, partial(self._next_piece, mark), self._give_up)
        return FileChunk.from_pieces(pieces, file.name, file.mime_type)

    async def _next_piece(self, file: object) -> tuple[bytes, bool]:
        """Wait for the next piece of a file; with whether another one follows."""
        if self._file is not file:
            raise RuntimeError("this file was skipped: it was left for what comes behind it")
        arrival = await self._take()
        piece = None if arrival is None else _piece_of(arrival.body)
        if arrival is None or piece is None or not self._fits(arrival, more=piece[1]):
            raise self.wrong(StreamBroken("a file did not go on, or end, as it has to"))
        if not piece[1]:
            self._file = None
        return piece[0].data, piece[1]

    def _fits(self, arrival: Arrival, *, more: bool) -> bool:
        """Whether a piece stands where it may: the last one of a result is the result itself."""
        return not more if arrival.last else more or self._give_up is None

    def _is_stray(self, arrival: Arrival) -> bool:
        """Whether nothing but a piece of a file can stand where this does."""
        return self._give_up is not None and not arrival.last

    def _unreadable(self, arrival: Arrival, error: ValueError) -> RoomException:
        if self._is_stray(arrival):
            return StreamBroken("a chunk came of a call that is no stream")
        path, reason = "", "this is no chunk"
        if isinstance(error, BadBody):
            path, reason = error.path, error.reason
        return self._no_chunk(arrival, f"/{self._count - 1}{path}", reason)

    async def _take(self) -> Arrival | None:
        if self._is_read:
            raise TwoReaders
        self._is_read = True
        try:
            return await self._arrivals.next()
        finally:
            self._is_read = False


class ReceivedFile:
    """The pieces of a file that are still coming.

    Args:
        first: The first one.
        take: Waits for the next one; tells whether another one follows.
        give_up: Ends the call where the file is dropped, or left, before its last piece.
    """

    __slots__ = ("_first", "_give_up", "_loop", "_more", "_take")

    def __init__(
        self,
        first: bytes,
        take: Callable[[], Awaitable[tuple[bytes, bool]]],
        give_up: Callable[[], None] | None,
    ) -> None:
        self._first = first
        self._take = take
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._more = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece, self._first = self._first, b""
        try:
            yield piece
            while self._more:
                piece, self._more = await self._take()
                yield piece
        finally:
            if self._more and self._give_up is not None:
                self._more = False
                self._give_up()

    def __del__(self) -> None:
        if self._more and self._give_up is not None:
            # Garbage is collected on whatever thread runs, and after the loop's end too.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._give_up)


def _piece_of(body: bytes) -> tuple[FileChunk, bool] | None:
    try:
        return file_piece_from_wire(unpack_body(body, binary=True))
    except BadBody:
        return None
