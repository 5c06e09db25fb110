"""A stream as its caller reads it: chunk by chunk, until its end or until the block is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from toolbus.call_flow import unreadable_result
from toolbus.chunk_reader import ChunkReader
from toolbus.chunks import Chunk
from toolbus.errors import RoomException
from toolbus.stream_calls import LiveCall

__all__ = ["ChunkStream"]


class ChunkStream:
    """The chunks of one call: `async with room.stream("logs", "tail") as chunks:`.

    The call is sent where the block is entered, and given up where it is left before its end.
    `async for chunk in chunks:` goes through what comes. A reader that is slow slows the tool down:
    at most 256 chunks and 1 MiB wait here. What ended the call with an error is raised behind the
    chunks that came before it, with their number as `details["chunks"]`. A file that comes in
    pieces is one chunk; going on to the next one skips what was not read of it.

    It can be entered once, and is read by one task at a time: another one gets a `RuntimeError`.

    Args:
        prepare: Makes the call, once, where the block is entered.
    """

    __slots__ = ("_call", "_chunks", "_count", "_is_over", "_prepare", "_was_entered")

    def __init__(self, prepare: Callable[[], Awaitable[LiveCall]]) -> None:
        self._prepare = prepare
        self._was_entered = False
        self._call: LiveCall | None = None
        self._chunks: ChunkReader | None = None
        self._count = 0
        self._is_over = False

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("this stream was entered already: make another one")
        self._was_entered = True
        call = await self._prepare()
        try:
            await call.begin()
        except BaseException as error:
            call.leave()
            if isinstance(error, RoomException):
                self._count_into(error)
            raise
        self._call, self._chunks = call, ChunkReader(call, unreadable_result)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._call is not None:
            self._call.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            raise RuntimeError("enter the stream first: async with room.stream(...) as chunks:")
        if self._is_over:
            raise StopAsyncIteration
        try:
            chunk = await self._chunks.next()
        except RoomException as error:
            self._is_over = True
            self._count_into(error)
            raise
        if chunk is None:
            self._is_over = True
            raise StopAsyncIteration
        self._count += 1
        return chunk

    def _count_into(self, error: RoomException) -> None:
        error.details = {**error.details, "chunks": self._count}
