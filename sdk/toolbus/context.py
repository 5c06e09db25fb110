"""What a tool is told of the call that runs it, and how far that call has come.

The facts are set by whoever runs the tool, who also takes what it says before its end; nothing here
sends or decides. The marks of how far it came (`entered`, `refuse`, `fail`) let the runner say
afterwards, exactly, whether the tool's function ran.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from toolbus.chunks import Chunk, FileChunk, as_chunk
from toolbus.errors import Executed, InvalidResult, RoomException

__all__ = ["OnChunk", "Participant", "RunSync", "ToolContext", "progress_chunk"]

T = TypeVar("T")
_Error = TypeVar("_Error", bound=RoomException)

RunSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop's thread and gives what it returned."""
OnChunk: TypeAlias = Callable[[Chunk], Awaitable[None]]
"""Takes a chunk that comes before a call's end, and waits as long as its reader is behind."""


@dataclass(frozen=True, slots=True)
class Participant:
    """Somebody in a room, as the server's own tables name them."""

    id: str
    """This connection."""
    name: str
    """The token's `sub`."""
    role: str = "user"
    issuer: str = ""
    """The token's `iss`; name and issuer together are the identity."""


_LOCAL = Participant(id="local", name="local")


class ToolContext:
    """The call that a tool is running for.

    A tool takes it as a parameter annotated `ToolContext`. `ToolContext()` is enough to run a tool
    locally, in a test for instance.

    Args:
        room: The room, bound to this call: what it calls is this call's child.
        caller: Who made the call; a participant named "local" unless given.
        on_behalf_of: The principal for whom the caller acts, if any.
        caller_context: What the caller sent along; its own words, checked by nobody.
        deadline_at: When the call's time is up, by `clock`; None is never.
        clock: Seconds that only grow; `time.monotonic` unless given.
        run_sync: Runs sync tools; `asyncio.to_thread` unless given.
        on_chunk: Takes what a streaming tool gives, piece by piece; without it there is no stream.
        on_progress: Takes the plain value of each progress, on the thread that tells it.
    """

    # Of these most calls change one, or none.
    entered: bool = False
    """Set when the tool's own function is being called; it stays set."""
    _room: Any = None
    _caller_context: Mapping[str, Any] | None = None
    _cancelled = False
    _refusal: RoomException | None = None
    _failure: RoomException | None = None

    def __init__(  # noqa: PLR0913 - each is one fact of a call, and all but two are by keyword
        self,
        room: Any = None,
        caller: Participant = _LOCAL,
        *,
        on_behalf_of: Participant | None = None,
        caller_context: Mapping[str, Any] | None = None,
        deadline_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        run_sync: RunSync = asyncio.to_thread,
        on_chunk: OnChunk | None = None,
        on_progress: Callable[[Any], None] | None = None,
    ) -> None:
        self._room = room
        self._caller = caller
        self._on_behalf_of = on_behalf_of
        self._caller_context = caller_context
        self._deadline_at = deadline_at
        self._clock = clock
        self._run_sync = run_sync
        self._on_chunk = on_chunk
        self._on_progress = on_progress

    @property
    def room(self) -> Any:
        """The room, bound to this call; None in a local call that was given none."""
        return self._room

    @property
    def caller(self) -> Participant:
        """Who made the call."""
        return self._caller

    @property
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""
        return self._on_behalf_of

    @property
    def caller_context(self) -> Mapping[str, Any] | None:
        """What the caller sent along, or None. Nobody has checked it."""
        return self._caller_context

    @property
    def deadline(self) -> float | None:
        """Seconds left, never below 0; None where the call has no deadline."""
        if self._deadline_at is None:
            return None
        return max(0.0, self._deadline_at - self._clock())

    @property
    def cancelled(self) -> bool:
        """Whether the call was given up. A sync tool looks at it now and then, on its thread."""
        return self._cancelled

    def cancel(self) -> None:
        """Let `cancelled` be true from now on. Safe from any thread; it ends nothing by itself."""
        self._cancelled = True

    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function where sync tools run, and wait for what it returns."""
        result: T = await self._run_sync(function)
        return result

    @property
    def streams(self) -> bool:
        """Whether the caller takes chunks before the call's end."""
        return self._on_chunk is not None

    async def put(self, chunk: Chunk) -> None:
        """Hand a chunk on to the caller, and wait as long as it has no room for more.

        What a streaming tool yields comes here by itself. Raises `RuntimeError` where the caller
        takes no chunks: see `streams`.
        """
        if self._on_chunk is None:
            raise RuntimeError("the caller takes no chunks: context.streams tells")
        await self._on_chunk(chunk)

    def emit(self, value: Any) -> None:
        """Tell the caller how far the call is. May be called from any thread, and never waits.

        Only the latest value counts: one that the way to the caller has no room for is dropped, and
        so are all where nobody listens. On the wire a value has at most 16 KiB; a larger one is
        dropped too. Raises `InvalidResult` for what cannot be sent.
        """
        chunk = progress_chunk(value)
        if self._on_progress is not None:
            self._on_progress(chunk.value)

    def refuse(self, error: _Error) -> _Error:
        """Record an error met before the function is entered, and return it to be raised."""
        self._refusal = error
        return error

    def fail(self, error: _Error) -> _Error:
        """Record what toolbus found wrong after the function ended, and return it to be raised."""
        self._failure = error
        return error

    def stands(self, error: RoomException) -> bool:
        """Tell whether `refuse` or `fail` recorded this error, in the phase it was meant for."""
        return error is (self._failure if self.entered else self._refusal)

    @property
    def executed(self) -> Executed:
        """Whether the function ran, once the call has ended.

        "maybe" where it was not entered: an override of `Toolkit.execute` may have acted for it.
        """
        return "yes" if self.entered else "maybe"


def progress_chunk(value: Any) -> Chunk:
    """Turn a progress into a chunk. Raises `InvalidResult` for what cannot be sent, and a file."""
    chunk = as_chunk(value)
    if isinstance(chunk, FileChunk):
        raise InvalidResult("a progress is no file")
    return chunk
