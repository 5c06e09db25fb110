"""Runs a program's main coroutine on the fastest loop there is: uvloop where it is installed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

_logger = logging.getLogger(__name__)

_PATIENCE_S = 2.0


T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new loop and return its result, as `asyncio.run` does.

    Other than there a task that does not end when it is cancelled, within 2 s, is left behind, and
    the log says so: the program may end without it.
    """
    try:
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            return runner.run(main)
        finally:
            if _is_quiet(runner.get_loop()):
                runner.close()
    finally:
        main.close()  # without a complaint, where Ctrl-C came before it began


def _is_quiet(loop: asyncio.AbstractEventLoop) -> bool:
    """End what still runs there, and tell whether it has ended."""
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return True
    for each in tasks:
        each.cancel()
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=_PATIENCE_S))
    if left:
        _logger.warning("%d tasks do not end when cancelled: left behind", len(left))
        loop.set_exception_handler(_say_no_more)
    return not left


def _say_no_more(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Take what Python has to say of the tasks that were left behind."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
