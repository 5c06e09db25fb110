"""Stopping a command by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from toolbus.concurrency.thread_signals import STOP_SIGNALS
from toolbus.diagnostics.exit_codes import Terminated
from toolbus.forked_children import keep_handler_from_children

__all__ = ["cancel_on_sigterm", "stop_on_signals"]


def stop_on_signals() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set from now on, instead of their default action."""
    stop = asyncio.Event()
    # Not possible on Windows and outside the main thread: KeyboardInterrupt ends the command there.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
            keep_handler_from_children(number)
    return stop


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
