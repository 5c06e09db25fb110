"""Starts tasks, eagerly if Python supports that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

__all__ = ["start_task"]

_EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


def start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], context: Context
) -> asyncio.Task[None] | None:
    """Run a coroutine as a task of the running loop and return the task.

    From Python 3.12 on the coroutine runs at once up to its first wait. Returns None if it raised
    `KeyboardInterrupt` or `SystemExit` there; the loop raises that in its next iteration.
    """
    try:
        return asyncio.Task(coroutine, loop=loop, context=context, **_EAGER)
    except (KeyboardInterrupt, SystemExit) as error:
        loop.call_soon(_raise, error)
        return None


def _raise(error: BaseException) -> None:
    raise error
