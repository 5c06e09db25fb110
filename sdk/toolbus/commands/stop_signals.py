"""How a command that runs until it is told to end hears that it shall."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

__all__ = ["stop_on_signals"]


def stop_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Let Ctrl-C and SIGTERM call a function in the place of what they do otherwise."""
    # Not on Windows and not outside the main thread; there KeyboardInterrupt ends the command.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
