"""Prints the stacks of a process whose event loop is blocked until its connection is lost.

The log names what blocks the loop after a second (`toolbus.hosting.loop_watchdog`). That needs the
interpreter, and code that holds its lock for ever, such as a regular expression, lets nothing be
logged: the standard library's `faulthandler` prints without it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from types import TracebackType
from typing import Self, TextIO

from toolbus.transport.websocket import PING_TIMEOUT_S

__all__ = ["StackDump"]


class StackDump:
    """Prints the stacks of all threads once the loop was blocked for a time, while its block runs.

    There is one per process at a time.

    Args:
        limit_s: Seconds that the loop may be blocked.
        stacks: Where stacks are printed, a file of the operating system; stderr by default.
    """

    def __init__(self, *, limit_s: float = PING_TIMEOUT_S, stacks: TextIO | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._stacks = stacks or sys.__stderr__
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._postpone()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _postpone(self) -> None:
        if self._stacks is not None:  # there is no stderr, for instance in a Windows service
            faulthandler.dump_traceback_later(self._limit_s, file=self._stacks)
            self._timer = self._loop.call_later(self._limit_s / 4, self._postpone)
