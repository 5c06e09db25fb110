"""How a host process ends: once it is told to, when its limit has passed, or at once.

The first signal lets calls finish, a second one ends the process at once. The limit holds whatever
tools do: where a tool swallows its cancel, holds a thread or blocks the event loop, the process
ends without it, and the log says which one it was. Signals are heard by Python itself, and the
limit has a thread of its own, so that both hold where the event loop stands still. No call is
answered by a process that ends without its tool: its caller gets `host_lost`, maybe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

from toolbus.errors import Cancelled
from toolbus.exit_codes import ExitCode
from toolbus.hosted_call import HostedCall, name_calls
from toolbus.standstill import leave_signals_to_others

__all__ = ["HostEnd"]

_logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# From the limit on: what was given up may clean up, the room is left, the event loop is closed.
_LAST_S = 3.0
# Of these: for what is left on threads once the room is left.
_THREADS_S = 0.5
_FLUSH_S = 2.5
_FLUSH_AT_ONCE_S = 0.5


class HostEnd:
    """Ends a host process: `with HostEnd(flush) as end:` around its event loop, or within it.

    Signals are heard from `listen` on to the end of the block, which sends the spans that are left.

    Args:
        flush: Sends spans; None where none are recorded.
    """

    def __init__(self, flush: Callable[[], None] | None = None) -> None:
        self._send_spans = flush
        self._limit_s = 0.0
        self._code = ExitCode.GIVEN_UP
        self._calls: Collection[HostedCall] = ()
        self._told = asyncio.Event()
        self._signals = 0
        self._joining: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._handlers_before = {number: signal.getsignal(number) for number in _SIGNALS}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._heard.put(False)
        if self._send_spans is not None:
            self._send_spans()
        if self._loop is not None:
            for number, handler in self._handlers_before.items():
                if handler is not None:  # else none of Python's
                    signal.signal(number, handler)

    def listen(self) -> None:
        """Hear SIGTERM and Ctrl-C from now on, for the running event loop.

        Raises:
            ValueError: This is not the main thread.
        """
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._attend, name="toolbus-signals", daemon=True).start()

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Give the block up on a signal, as nothing is hosted yet.

        Raises:
            Cancelled: It was given up.
        """
        task = self._joining = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._told.is_set() or task is None or task.uncancel():
                raise
            words = "told to end before anything was hosted"
            raise Cancelled(words, executed="no") from None
        finally:
            self._joining = None

    def hosts(self, calls: Collection[HostedCall], limit_s: float) -> None:
        """Learn that something is hosted: from here on the first signal ends the process well.

        Args:
            calls: A live view of those that have not ended.
            limit_s: How long they may take to finish after the first signal.
        """
        self._calls, self._limit_s, self._code = calls, limit_s, ExitCode.OK

    async def told(self) -> None:
        """Wait for the first signal."""
        await self._told.wait()

    def announce(self) -> None:
        """Say how many calls are left, how long they have, and how to end at once."""
        left = [each for each in self._calls if not each.ended]
        if left:
            _logger.warning(
                "told to end: waiting up to %g s for %s; another signal ends it now",
                self._limit_s,
                name_calls(left),
            )

    async def leave(self) -> None:
        """End the process here if it was told to and a call has not ended, the room being left.

        What runs on a thread has learned from `context.cancelled` that it shall end, and has half
        a second.
        """
        if not self._signals:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_THREADS_S):
                for hosted in {each.hosted for each in self._calls}:
                    await hosted.drained()
        if self._calls:
            self._end_without()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # Nothing that locks: the next signal may come in the middle of this.
        self._signals += 1
        self._heard.put(True)

    def _attend(self) -> None:
        """See to the end on a thread of its own, until the process goes on without it."""
        leave_signals_to_others()
        if not self._heard.get():
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._tell)
        try:
            is_signal = self._heard.get(timeout=self._limit_s + _LAST_S)
        except queue.Empty:
            self._end_without()
        else:
            if is_signal:
                self._end_at_once()

    def _tell(self) -> None:
        self._told.set()
        if self._joining is not None:
            self._joining.cancel()

    def _end_at_once(self) -> None:
        lost = f", {name_calls(self._calls)} cut off" if self._calls else ""
        # Not by logging: a tool that stands still may hold its locks.
        with suppress(OSError):
            os.write(2, f"toolbus: ended by a second signal{lost}\n".encode())
        self._exit(ExitCode.GIVEN_UP, None, _FLUSH_AT_ONCE_S)

    def _end_without(self) -> None:
        left = name_calls(self._calls) if self._calls else "a task or a thread"
        self._exit(self._code, f"ended without {left}: it does not end when cancelled", _FLUSH_S)

    def _exit(self, code: ExitCode, words: str | None, flush_s: float) -> None:
        """End the process now, its logs and spans sent as far as that can be done in time."""

        def flush() -> None:
            if words is not None:
                _logger.error("%s", words)
            if self._send_spans is not None:
                self._send_spans()
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # closed, or nobody reads it
                    stream.flush()

        # On a thread of its own: what stands still may hold a lock that this needs.
        flushing = threading.Thread(target=flush, name="toolbus-end", daemon=True)
        try:
            flushing.start()
            flushing.join(flush_s)
        finally:
            os._exit(code)
