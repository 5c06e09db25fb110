"""Chunks as the bodies that travel one after another: mostly one each, of a large file several.

Says how a file is cut for the way, and puts one together again that comes in pieces (PROTOCOL.md,
STREAM-9). Who may send how much at a time is not decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from toolbus.chunks import (
    Chunk,
    FileChunk,
    chunk_from_wire,
    file_piece_from_wire,
    file_piece_to_wire,
)
from toolbus.errors import InvalidArguments, RoomException, StreamBroken
from toolbus.file_pieces import cut_in_pieces
from toolbus.wire import BadBody, pack_body, unpack_body

__all__ = ["ChunkReader", "OutgoingBody", "file_bodies"]

OutgoingBody: TypeAlias = tuple[bytes, bool]
"""A packed chunk, and whether it is the last."""
_NAMELESS = FileChunk(b"", "", "")


async def file_bodies(file: FileChunk, whole_bytes: int = 0) -> AsyncGenerator[OutgoingBody, None]:
    """Pack a file: as one body where it has at most `whole_bytes`, else as one for each piece.

    Begins once it is known which of the two: with 0 a piece goes once there is another one. An
    empty file is one body. Raises what reading the file raises.
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
                # Name and type are those of the first piece.
                head, begun = _NAMELESS, True
    yield pack_body(file_piece_to_wire(head, b"".join(waiting), more=False)), True


class ChunkReader:
    """Chunks, put together of the bodies that come.

    A file that comes in pieces is a `FileChunk` to be read piece by piece; what of it is not read
    when the next chunk is asked for is skipped.

    Args:
        take: Waits for the next body, None behind the last. Cancelling it loses nothing.
        fail: Learns what is wrong with what came; returns what its reader is to be told.
    """

    def __init__(
        self,
        take: Callable[[], Awaitable[bytes | None]],
        fail: Callable[[RoomException], RoomException],
    ) -> None:
        self._take = take
        self._fail = fail
        self._count = 0
        self._file: object = None
        """Stands for the file whose pieces come now."""

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None behind the last.

        Raises:
            RoomException: What `fail` makes of `InvalidArguments` for what is no chunk, and of
                `StreamBroken` for a file that ended in its middle.
            Exception: What `take` raises.
        """
        while self._file is not None:
            await self._next_piece()
        body = await self._take()
        if body is None:
            return None
        self._count += 1
        fields = self._fields(body)
        piece = file_piece_from_wire(fields)
        if piece is not None and piece[1]:
            file = piece[0]
            self._file = mark = object()
            return FileChunk.from_pieces(self._pieces(mark, file.data), file.name, file.mime_type)
        try:
            return chunk_from_wire(fields)
        except ValueError as error:
            raise self._wrong("", "this is no chunk") from error

    async def _pieces(self, mark: object, first: bytes) -> AsyncIterator[bytes]:
        yield first
        more = True
        while more:
            if self._file is not mark:
                raise RuntimeError("this file was left for what comes behind it: it is gone")
            data = await self._next_piece()
            more = self._file is mark
            yield data

    async def _next_piece(self) -> bytes:
        body = await self._take()
        piece = None if body is None else file_piece_from_wire(self._fields(body))
        if piece is None:
            raise self._fail(StreamBroken("a file ended in its middle"))
        file, more = piece
        if not more:
            self._file = None
        return file.data

    def _fields(self, body: bytes) -> list[object]:
        try:
            fields = unpack_body(body, binary=True)
        except BadBody as error:
            raise self._wrong(error.path, error.reason) from error
        if type(fields) is not list:
            raise self._wrong("", "this is no chunk")
        return fields

    def _wrong(self, path: str, reason: str) -> RoomException:
        place = f"/input/{max(self._count - 1, 0)}{path}"
        return self._fail(InvalidArguments(reason, details={"path": place, "message": reason}))
