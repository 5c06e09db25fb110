"""Prints the stacks of a process whose event loop is blocked until its connection is lost.

The log names what blocks the loop after a second (`toolbus.hosting.loop_watchdog`). That needs the
interpreter, and code that holds its lock for ever, such as a regular expression, lets nothing be
logged: the standard library's `faulthandler` prints without it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from toolbus.transport.websocket import PING_TIMEOUT_S

__all__ = ["stack_dump"]


@contextmanager
def stack_dump(*, limit_s: float = PING_TIMEOUT_S, stacks: TextIO | None = None) -> Iterator[None]:
    """Print the stacks of all threads once the loop was blocked for a time, while the block runs.

    There is one per process at a time.

    Args:
        limit_s: Seconds that the loop may be blocked.
        stacks: Where stacks are printed, a file of the operating system; stderr by default.
    """
    stacks = stacks or sys.__stderr__
    if stacks is None:  # there is no stderr, for instance in a Windows service
        yield
        return
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle | None = None

    def postpone() -> None:
        nonlocal timer
        faulthandler.dump_traceback_later(limit_s, file=stacks)
        timer = loop.call_later(limit_s / 4, postpone)

    postpone()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        faulthandler.cancel_dump_traceback_later()
