"""Starts tasks, eagerly if Python supports that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

__all__ = ["start_task"]


def start_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, None],
    context: Context,
    name: str,
) -> asyncio.Task[None] | None:
    """Run a coroutine as a task of the running loop, with a name for logs, and return the task.

    From Python 3.12 on the coroutine runs at once up to its first wait. Returns None if it raised
    `KeyboardInterrupt` or `SystemExit` there; the loop raises that in its next iteration.
    """
    if sys.version_info < (3, 12):
        return asyncio.Task(coroutine, loop=loop, name=name, context=context)
    try:
        return asyncio.Task(coroutine, loop=loop, name=name, context=context, eager_start=True)
    except (KeyboardInterrupt, SystemExit) as error:
        loop.call_soon(_raise, error)
        return None


def _raise(error: BaseException) -> None:
    raise error
