"""Stopping a command by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

__all__ = ["stop_on_signals"]


def stop_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on Ctrl-C and SIGTERM instead of their default action."""
    # Not possible on Windows and outside the main thread: KeyboardInterrupt ends the command there.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
