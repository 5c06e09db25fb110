"""Ends calls that take too long. It stops what awaits; a function on a thread runs on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from toolbus.chunks.chunk_types import Chunk
from toolbus.concurrency.pausable_clock import PausableClock
from toolbus.errors import DeadlineExceeded
from toolbus.middlewares.outcomes import checked_seconds, closing, own_error
from toolbus.tools.context import run_of
from toolbus.tools.middleware import CallNext, ToolCall

__all__ = ["TimeLimit"]

_END: Final = object()


class TimeLimit:
    """A middleware that ends a call after a time, as `DeadlineExceeded` with its true `executed`.

    The function is cancelled and its end awaited, then the error is raised; a sync function on a
    thread cannot be stopped and makes `executed` "maybe". A stream that is not read ends when it is
    read again. Inside of `Retry` it limits each attempt, around it all attempts together.

    Args:
        seconds: Seconds that a call may take.

    Raises `TypeError` or `ValueError` for other values.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = checked_seconds("seconds", seconds)

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Run the call until its time is over."""
        # A person may be asked about the call; that takes none of its time.
        clock = run_of(call.context).pausable_clock()
        ends_at = clock.time() + self._seconds
        async with closing(next(call)) as chunks:
            # The limit surrounds each wait, never a `yield`: it must not cancel the reader.
            while (chunk := await _next_chunk(chunks, ends_at, clock)) is not None:
                if chunk is _END:
                    return
                yield chunk  # type: ignore[misc]  # not _END
        error = DeadlineExceeded(f"{call.tool.name} did not end within {self._seconds:g} s")
        raise own_error(call, error, began=True)


async def _next_chunk(chunks: object, ends_at: float, clock: PausableClock) -> object:
    """Return the next chunk, or `_END`; None if the time is over."""
    if clock.time() >= ends_at:
        return None  # a chunk that needs no wait would pass the limit below
    try:
        async with clock.timeout_at(ends_at) as limit:
            found = await anext(chunks, _END)  # type: ignore[call-overload]
    except TimeoutError:
        if not limit.expired():
            raise  # it is an error of the tool
        return None
    return None if limit.expired() else found
