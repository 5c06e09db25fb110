"""Tries a call again where that can do no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from toolbus.chunks.chunk_types import Chunk
from toolbus.concurrency.backoff import backoff_pause_s
from toolbus.errors import RoomException
from toolbus.middlewares.outcomes import checked_count, checked_seconds, failure_seen
from toolbus.tools.middleware import CallNext, ToolCall

__all__ = ["Retry"]


class Retry:
    """A middleware that tries a failed call again where that can do no harm.

    The rule is that of the bus: the error is `retryable`, and the tool certainly did not run
    (`executed` is "no") or is `idempotent`. A tool says that a retry helps by
    `ToolFailed("...", retryable=True)`; any other exception of a tool is not retryable. A call is
    never tried again after a chunk came, nor if its tool takes an input.

    Pauses double and have jitter; none is shorter than the error's `retry_after_s`, and none goes
    beyond the deadline of the call: then the error is raised at once. The final error covers all
    attempts: if one of them may have run, its `executed` is not "no".

    Args:
        attempts: Attempts in all, the first included.
        backoff_s: Seconds of the first pause.
        max_backoff_s: Seconds of the longest pause, without jitter.

    Raises `TypeError` or `ValueError` for other values.
    """

    def __init__(
        self, attempts: int = 3, *, backoff_s: float = 0.05, max_backoff_s: float = 1.0
    ) -> None:
        self._attempts = checked_count("attempts", attempts)
        self._first_s = checked_seconds("backoff_s", backoff_s, zero=True)
        self._longest_s = checked_seconds("max_backoff_s", max_backoff_s, zero=True)

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Run the call, again if need be."""
        number, may_have_run = 1, False
        while True:
            has_chunk = False
            try:
                async for chunk in next(call):
                    has_chunk = True
                    yield chunk
                return
            except Exception as error:
                failure = failure_seen(call, error)
                pause_s = None if has_chunk else self._pause_s(call, number, failure)
                if pause_s is None:
                    # The last error covers the earlier attempts.
                    if may_have_run and isinstance(error, RoomException):
                        if error.executed == "no":
                            error.executed, error.retryable = "maybe", False
                    raise
                may_have_run = may_have_run or failure.executed != "no"
            await asyncio.sleep(pause_s)
            number += 1

    def _pause_s(self, call: ToolCall, number: int, error: RoomException) -> float | None:
        """Return the pause before the next attempt; None if there is none."""
        is_safe = error.executed == "no" or call.tool.idempotent
        if number >= self._attempts or not error.retryable or not is_safe or call.tool.takes:
            return None
        pause_s = backoff_pause_s(
            number, error.retry_after_s, first_s=self._first_s, longest_s=self._longest_s
        )
        left_s = call.context.deadline
        return pause_s if left_s is None or pause_s < left_s else None
