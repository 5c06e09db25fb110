"""One run of a tool: how far it has come, and what its runner provides.

For the runners of tools. What the author of a tool sees is `ToolContext`, which wraps a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from toolbus.chunks.chunk_types import Chunk, FileChunk, as_chunk
from toolbus.errors import Executed, InvalidResult, RoomException

__all__ = ["OnChunk", "RunSync", "ToolRun", "progress_chunk"]

T = TypeVar("T")
_Error = TypeVar("_Error", bound=RoomException)

RunSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop's thread and returns its result."""
OnChunk: TypeAlias = Callable[[Chunk], Awaitable[None]]
"""Receives a chunk before a call's end, and waits while its reader has no room."""


class ToolRun:
    """The state of one run of a tool, by which its runner can tell whether the function ran.

    Args:
        run_sync: Runs sync functions; `asyncio.to_thread` by default.
        on_chunk: Receives the chunks of a streaming tool; without it there is no stream.
        on_progress: Receives the plain value of each progress, on the thread that emits it.
    """

    # Class attributes: most runs change at most one of these.
    entered: bool = False
    """Set when the tool's own function is being called; it stays set."""
    cancelled: bool = False
    """Whether the call was cancelled."""
    _refusal: RoomException | None = None
    _failure: RoomException | None = None

    def __init__(
        self,
        run_sync: RunSync = asyncio.to_thread,
        on_chunk: OnChunk | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> None:
        self._run_sync = run_sync
        self._on_chunk = on_chunk
        self._on_progress = on_progress

    def cancel(self) -> None:
        """Set `cancelled`. Safe from any thread; it stops nothing by itself."""
        self.cancelled = True

    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function where sync tools run, and return its result."""
        result: T = await self._run_sync(function)
        return result

    @property
    def streams(self) -> bool:
        """Whether the caller accepts chunks before the call's end."""
        return self._on_chunk is not None

    async def put(self, chunk: Chunk) -> None:
        """Send a chunk to the caller, and wait while the caller has no room for more.

        Raises `RuntimeError` if the caller accepts no chunks: see `streams`.
        """
        if self._on_chunk is None:
            raise RuntimeError("the caller accepts no chunks")
        await self._on_chunk(chunk)

    def emit(self, value: Any) -> None:
        """Send a progress; see `ToolContext.emit`."""
        chunk = progress_chunk(value)
        if self._on_progress is not None:
            self._on_progress(chunk.value)

    def refuse(self, error: _Error) -> _Error:
        """Record an error met before the function is entered, and return it to be raised."""
        self._refusal = error
        return error

    def fail(self, error: _Error) -> _Error:
        """Record an error found after the function has ended, and return it to be raised."""
        self._failure = error
        return error

    def is_recorded(self, error: RoomException) -> bool:
        """Return whether `refuse` or `fail` recorded this error for the current phase."""
        return error is (self._failure if self.entered else self._refusal)

    @property
    def executed(self) -> Executed:
        """Whether the function ran, once the call has ended.

        "maybe" if it was not entered: an override of `Toolkit.execute` may have acted instead.
        """
        return "yes" if self.entered else "maybe"


def progress_chunk(value: Any) -> Chunk:
    """Convert a progress to a chunk. Raises `InvalidResult` if it cannot be sent or is a file."""
    chunk = as_chunk(value)
    if isinstance(chunk, FileChunk):
        raise InvalidResult("a progress must not be a file")
    return chunk
