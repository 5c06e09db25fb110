"""Tells in the log when an event loop stands still for so long that its connection is lost.

An async tool that blocks keeps everything else from running, the answers to the server's pings too:
then the server gives the host up, and callers get `host_lost`. From within the loop that looks like
a lost connection; a thread beside it sees what it is, and which tool it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Self

from toolbus.hosted_call import HostedCall
from toolbus.transport import PING_TIMEOUT_S

__all__ = ["Standstill", "leave_signals_to_others"]

_logger = logging.getLogger(__name__)

_LOOK_S = 1.0


class Standstill:
    """Watches the running event loop from a thread while its block runs.

    It says so once the loop has stood still for `limit_s`, and again, with the whole time, when it
    goes on.

    Args:
        calls: A live view of the calls that run there.
        limit_s: How long it may stand still.
        look_s: How often it is looked at.
    """

    def __init__(
        self,
        calls: Collection[HostedCall],
        *,
        limit_s: float = PING_TIMEOUT_S,
        look_s: float = _LOOK_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._limit_s = limit_s
        self._look_s = look_s
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="toolbus-standstill", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        leave_signals_to_others()
        while not self._over.wait(self._look_s):
            beat = threading.Event()
            try:
                self._loop.call_soon_threadsafe(beat.set)
            except RuntimeError:  # it is closed
                return
            self._wait_for(beat)

    def _wait_for(self, beat: threading.Event) -> None:
        still_s, tool, is_told = 0.0, "", False
        since_s, worked_s = time.monotonic(), time.process_time()
        while not beat.wait(self._look_s):
            tool = self._blocking() or tool
            now_s, now_worked_s = time.monotonic(), time.process_time()
            # Where the whole process stood still, nobody in it is to blame.
            most_s = max(2 * self._look_s, 2 * (now_worked_s - worked_s))
            still_s += min(now_s - since_s, most_s)
            since_s, worked_s = now_s, now_worked_s
            if still_s >= self._limit_s and not is_told:
                is_told = True
                _logger.error("the event loop has stood still for %.3g s: %s", still_s, _hint(tool))
        if is_told:
            still_s += time.monotonic() - since_s
            _logger.error("the event loop stood still for %.3g s: %s", still_s, _hint(tool))

    def _blocking(self) -> str:
        """Name the tool whose call runs there at this moment; empty where it is none's own task."""
        task = asyncio.current_task(self._loop)
        if task is not None:
            for each in tuple(self._calls):
                # One that has started eagerly knows its task only once it waits.
                if each.task is task or (each.task is None and each.started):
                    return each.method
        return ""


def leave_signals_to_others() -> None:
    """Let no signal reach this thread: Python acts on those alone that interrupt its main one."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _hint(tool: str) -> str:
    return f"{tool or 'a tool'} blocks it; make it `def`, or use asyncio.to_thread"
