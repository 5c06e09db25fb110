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


def stop_on_signals(*, once: bool = False) -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set from now on, instead of their default action.

    With `once` a second signal ends the process at once.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if once:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
                # Python's own for Ctrl-C raises in any task, also in uvicorn's, which go on.
                signal.signal(number, signal.SIG_DFL)
        stop.set()

    # Not possible on Windows and outside the main thread: KeyboardInterrupt ends the command there.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
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
