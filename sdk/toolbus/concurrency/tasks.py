"""What is asked of asyncio's tasks and futures."""

from __future__ import annotations

import asyncio
from typing import Any, Never

__all__ = ["is_cancelled", "raise_error", "retrieve_error"]


def is_cancelled() -> bool:
    """Whether the current task was cancelled, also where that has been taken for an error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retrieve_error(ended: asyncio.Future[Any]) -> None:
    """Mark the error of a future that is not awaited as retrieved, so that asyncio logs nothing."""
    if not ended.cancelled():
        ended.exception()


def raise_error(error: BaseException) -> Never:
    """Raise an error, as a callback."""
    raise error
