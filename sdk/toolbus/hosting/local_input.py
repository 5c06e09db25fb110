"""The input of a call in this process: what its caller sends, as the tool reads it.

An error of the caller's own iterable is kept, so that the caller gets it unchanged, as it does for
a call elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from toolbus.chunks.chunk_types import Chunk, FileChunk, as_chunk
from toolbus.errors import InvalidArguments, InvalidResult, RoomException
from toolbus.tools.tool_run import ToolRun

__all__ = ["LocalInput"]

_END: Any = object()


class LocalInput:
    """The source of an `InputStream`, for one call.

    Args:
        items: The values; read as the tool asks for them.
    """

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self._count = 0
        self.run: ToolRun | None = None
        """Records the error with which the input ends the call; set when the call begins."""
        self.error: Exception | None = None
        """What the iterable raised, or the error for a value that cannot be sent."""

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one."""
        try:
            value = await anext(self._items, _END)
        except Exception as error:
            self.error = error
            raise
        if value is _END:
            return None
        self._count += 1
        try:
            chunk = as_chunk(value)
        except InvalidResult as error:
            invalid = InvalidArguments(error.message, executed="maybe", details=error.details)
            self.error = invalid
            raise invalid from error
        if isinstance(chunk, FileChunk) and not chunk.is_whole:
            return FileChunk.from_pieces(self._pieces(chunk), chunk.name, chunk.mime_type)
        return chunk

    async def _pieces(self, file: FileChunk) -> AsyncGenerator[bytes, None]:
        async with aclosing(file.pieces()) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except Exception as error:
                self.error = error
                raise

    def fail(self, error: RoomException) -> RoomException:
        """Let the call fail with an error, unless the tool handles it."""
        run = self.run
        if run is None:
            return error
        is_first = self._count <= 1 and not run.entered
        error.executed = "no" if is_first else run.executed
        return run.record(error)
