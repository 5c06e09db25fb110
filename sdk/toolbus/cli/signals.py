"""Stopping a command by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from toolbus.concurrency.thread_signals import STOP_SIGNALS
from toolbus.diagnostics.exit_codes import Terminated
from toolbus.forked_children import keep_handler_from_children

__all__ = ["cancel_on_sigterm", "stop_on_signals", "wait_for_first"]


def stop_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on Ctrl-C and SIGTERM instead of their default action."""
    # Not possible on Windows and outside the main thread: KeyboardInterrupt ends the command there.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop)
            keep_handler_from_children(number)


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


@contextmanager
def cancel_on_sigterm() -> Iterator[None]:
    """Cancel the current task on SIGTERM during the block, which then raises `Terminated`."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    received = False

    def cancel() -> None:
        nonlocal received
        received = True
        task.cancel()

    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGTERM, cancel)
        keep_handler_from_children(signal.SIGTERM)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()
        raise Terminated("cancelled by SIGTERM") from None
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGTERM)
