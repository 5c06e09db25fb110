"""A stream as its caller reads it, chunk by chunk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from toolbus.chunks.chunk_sequences import ChunkReader
from toolbus.chunks.chunk_types import Chunk
from toolbus.client.inbound_stream import unreadable_result
from toolbus.client.streaming_call import StreamingCall
from toolbus.errors import RoomException

__all__ = ["ChunkStream"]


class ChunkStream:
    """The chunks of one call: `async with room.stream("logs.tail") as chunks:`.

    The call is sent when the block is entered, and cancelled if the block is left before its end.
    Read it with `async for chunk in chunks:`. A slow reader slows the tool down: at most 256 chunks
    and 1 MiB are buffered here. An error that ended the call is raised after the chunks that came
    before it, with their number as `details["chunks"]`. A file sent in pieces is one chunk; reading
    the next chunk skips its unread pieces.

    It can be entered once and is read by one task at a time: a second one gets a `RuntimeError`.
    """

    __slots__ = ("_call", "_chunk_count", "_chunks", "_has_ended", "_prepare", "_was_entered")

    def __init__(self, prepare: Callable[[], Awaitable[StreamingCall]]) -> None:
        """Made by the library.

        Args:
            prepare: Makes the call, once, when the block is entered.
        """
        self._prepare = prepare
        self._was_entered = False
        self._call: StreamingCall | None = None
        self._chunks: ChunkReader | None = None
        self._chunk_count = 0
        self._has_ended = False

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("this stream was already entered: make another one")
        self._was_entered = True
        call = await self._prepare()
        try:
            await call.begin()
        except BaseException as error:
            call.cancel()
            if isinstance(error, RoomException):
                self._add_chunk_count(error)
            raise
        self._call, self._chunks = call, ChunkReader(call, unreadable_result)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._has_ended = True
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            raise RuntimeError("enter the stream first: async with room.stream(...) as chunks:")
        if self._has_ended:
            raise StopAsyncIteration
        try:
            chunk = await self._chunks.next()
        except RoomException as error:
            self._has_ended = True
            self._add_chunk_count(error)
            raise
        if chunk is None:
            self._has_ended = True
            raise StopAsyncIteration
        self._chunk_count += 1
        return chunk

    def _add_chunk_count(self, error: RoomException) -> None:
        error.details = {**error.details, "chunks": self._chunk_count}
