"""Reads chunks from the bodies of a call and packs files into bodies, at either end of a call.

Usually each body is one chunk. A large file is sent in several bodies and is read piece by piece
(PROTOCOL.md, STREAM-9). The source provides the bodies and decides what an invalid one ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from toolbus.chunks.chunk_types import (
    Chunk,
    EmptyChunk,
    FileChunk,
    chunk_from_wire,
    file_piece_from_wire,
    file_piece_to_wire,
)
from toolbus.chunks.file_io import cut_in_pieces
from toolbus.chunks.receive_credit import ReceivedChunk
from toolbus.concurrency.slices import run_in_slices
from toolbus.errors import RoomException, StreamBroken
from toolbus.wire import BadBody, pack_body, unpack_body
from toolbus.wire.body_steps import LARGE_BODY_BYTES, unpack_steps
from toolbus.wire.codec import short_list

__all__ = [
    "ChunkReader",
    "ConcurrentReadError",
    "InvalidChunkFactory",
    "OutgoingBody",
    "ReceivedChunkSource",
    "ReceivedFile",
    "file_bodies",
]

OutgoingBody: TypeAlias = tuple[bytes, bool]
"""A packed chunk and whether it is the last one."""
_NAMELESS = FileChunk(b"", "", "")


async def file_bodies(file: FileChunk, whole_bytes: int = 0) -> AsyncGenerator[OutgoingBody, None]:
    """Pack a file into one body if it has at most `whole_bytes`, else into one body per piece.

    The first body is given once it is known which of the two applies: with 0 a piece is given as
    soon as a next one exists. An empty file is one body. Raises what reading the file raises.
    """
    waiting: deque[bytes] = deque()
    size, begun = 0, False
    head = file
    async with aclosing(file.pieces()) as pieces:
        async for piece in pieces:
            waiting.extend(cut_in_pieces(piece))
            size += len(piece)
            while len(waiting) > 1 and (begun or size > whole_bytes):
                yield pack_body(file_piece_to_wire(head, waiting.popleft(), more=True)), False
                # Name and type are sent with the first piece only.
                head, begun = _NAMELESS, True
    yield pack_body(file_piece_to_wire(head, b"".join(waiting), more=False)), True


InvalidChunkFactory: TypeAlias = Callable[[ReceivedChunk, str, str], RoomException]
"""Makes the error for an invalid body, from its JSON pointer and the reason."""


class ReceivedChunkSource(Protocol):
    """The packed chunks of one call."""

    async def next(self) -> ReceivedChunk | None:
        """Wait for the next chunk; None after the last. Cancelling loses nothing."""

    def fail(self, error: RoomException) -> RoomException:
        """End the call because of an invalid chunk; return the error that its reader gets."""


class ConcurrentReadError(RuntimeError):
    """A second task tried to read a stream while another one waits; the first one continues."""

    def __init__(self) -> None:
        super().__init__("another task is reading this stream")


class ChunkReader:
    """Reads the chunks of one call, one task at a time.

    A file sent in pieces is a `FileChunk` that is read as its pieces arrive. Asking for the next
    chunk skips the pieces that were not read.

    Args:
        source: Provides the packed chunks.
        invalid_chunk: Makes the error for a body that is not a chunk.
        give_up: Cancels a call that is not a stream. Such a call has one chunk, its result, and
            only pieces of a file may arrive before its end; dropping that file cancels the call.
    """

    __slots__ = (
        "_count",
        "_file",
        "_give_up",
        "_invalid_chunk",
        "_is_reading",
        "_source",
        "_taken",
    )

    def __init__(
        self,
        source: ReceivedChunkSource,
        invalid_chunk: InvalidChunkFactory,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._invalid_chunk = invalid_chunk
        self._give_up = give_up
        self._count = 0
        self._file: object = None
        """Identifies the file whose pieces arrive now; None if there is none."""
        self._is_reading = False
        self._taken: ReceivedChunk | None = None
        """A chunk whose reading was cancelled."""

    def fail(self, error: RoomException) -> RoomException:
        """End the call as its reader refuses a chunk; return the error that the reader gets."""
        return self._source.fail(error)

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one and for a stream's empty result.

        Cancelling loses nothing.

        Raises:
            RoomException: What `source.fail` returns for `StreamBroken` (a file that does not
                continue, a chunk of a call that is not a stream) and for an invalid chunk.
            ConcurrentReadError: Another task is waiting.
            Exception: The error that ended the source.
        """
        while self._file is not None:
            await self._next_piece(self._file)
        taken = await self._take()
        if taken is None:
            return None
        received, fields = taken
        self._count += 1
        try:
            chunk = self._read(received, fields)
        except StreamBroken as broken:
            raise self.fail(broken) from None
        except ValueError as error:
            raise self.fail(self._invalid_chunk_error(received, error)) from error
        if received.last and self._give_up is None and isinstance(chunk, EmptyChunk):
            return None
        return chunk

    def _read(self, received: ReceivedChunk, fields: Any) -> Chunk:
        if isinstance(fields, BadBody):
            raise fields
        piece = file_piece_from_wire(fields)
        if piece is not None and piece[1] and not received.last:
            file = piece[0]
            self._file = marker = object()
            pieces = ReceivedFile(file.data, partial(self._next_piece, marker), self._give_up)
            return FileChunk.from_pieces(pieces, file.name, file.mime_type)
        if self._is_unexpected(received):
            raise ValueError
        return chunk_from_wire(fields)

    async def _next_piece(self, file: object) -> tuple[bytes, bool]:
        """Wait for the next piece of a file; return it and whether another one follows."""
        if self._file is not file:
            raise RuntimeError("this file was skipped: the next chunk was read before its end")
        received, fields = await self._take() or (None, ())
        piece = file_piece_from_wire(fields)
        if received is None or piece is None or not self._fits(received, more=piece[1]):
            raise self.fail(StreamBroken("a file did not continue or end as the protocol requires"))
        if not piece[1]:
            self._file = None
        return piece[0].data, piece[1]

    def _fits(self, received: ReceivedChunk, *, more: bool) -> bool:
        """Whether a piece is allowed here: the last piece of a result must be the result itself."""
        return not more if received.last else more or self._give_up is None

    def _is_unexpected(self, received: ReceivedChunk) -> bool:
        """Whether only a piece of a file is allowed here."""
        return self._give_up is not None and not received.last

    def _invalid_chunk_error(self, received: ReceivedChunk, error: ValueError) -> RoomException:
        if self._is_unexpected(received):
            return StreamBroken("a chunk arrived for a call that is not a stream")
        path, reason = "", "this is not a chunk"
        if isinstance(error, BadBody):
            path, reason = error.path, error.reason
        return self._invalid_chunk(received, f"/{self._count - 1}{path}", reason)

    async def _take(self) -> tuple[ReceivedChunk, Any] | None:
        """Wait for the next chunk; return it with its fields, or the `BadBody` of an invalid one.

        If this is cancelled, the chunk is taken again.
        """
        if self._is_reading:
            raise ConcurrentReadError
        self._is_reading = True
        try:
            received = self._taken or await self._source.next()
            if received is None:
                return None
            self._taken = received
            fields = await _fields_of(received.body)
            self._taken = None
            return received, fields
        finally:
            self._is_reading = False


async def _fields_of(body: bytes) -> Any:
    """Unpack the fields of a chunk, large ones in slices; return the error if that fails."""
    try:
        if len(body) <= LARGE_BODY_BYTES:
            return unpack_body(body, binary=True)
        fields = short_list(body)  # a text or a piece of a file
        if fields is None:
            fields = await run_in_slices(unpack_steps(body, binary=True), len(body))
        return fields
    except BadBody as error:
        return error


class ReceivedFile:
    """The pieces of a file that is still being received.

    `take` waits for the next piece, and returns it and whether another one follows. `give_up`
    cancels the call if the file is dropped, or left, before its last piece.
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
            # Garbage is collected on any thread, and after the end of the loop too.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._give_up)
