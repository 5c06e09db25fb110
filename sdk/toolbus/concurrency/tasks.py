"""What is asked of asyncio's tasks and futures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Never

__all__ = ["is_cancelled", "raise_error", "retrieve_error", "wait_for_first"]


def is_cancelled() -> bool:
    """Whether the current task was cancelled, also where that has been taken for an error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retrieve_error(ended: asyncio.Future[Any]) -> None:
    """Mark the error of a future that is not awaited as retrieved, so that asyncio logs nothing."""
    if not ended.cancelled():
        ended.exception()


async def wait_for_first(
    *waits: Coroutine[Any, Any, object], timeout_s: float | None = None
) -> None:
    """Wait until one of several has ended, or the time is over, and cancel the others.

    Raises what that one raises.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


def raise_error(error: BaseException) -> Never:
    """Raise an error, as a callback."""
    raise error
