"""Event loops of programs, and of threads: which one runs, and running a coroutine on a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from toolbus.bounded_logging import bounded_logger

__all__ = ["run", "run_on_any_thread", "running_loop"]

_logger = bounded_logger(__name__)

_CANCEL_TIMEOUT_S = 2.0

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run_on_any_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; blocks, also where an event loop runs.

    Without a loop it runs on this thread, where Ctrl-C cancels it; else on a thread of its own.
    """
    if running_loop() is None:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine of a program on a new loop, uvloop if that is installed.

    Unlike `asyncio.run`, it abandons tasks that have not ended 2 s after they were cancelled and
    logs their number, so that the program can end.
    """
    try:
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            return runner.run(main)
        finally:
            if _cancel_all_tasks(runner.get_loop()):
                runner.close()
    finally:
        main.close()  # no "never awaited" warning if Ctrl-C came before it started


def _cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancel all tasks and return whether all of them have ended."""
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return True
    for task in tasks:
        task.cancel()
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S))
    if left:
        _logger.warning("%d tasks did not end after they were cancelled: abandoned", len(left))
        loop.set_exception_handler(lambda _loop, _context: None)  # Python reports them, too
    return not left


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
