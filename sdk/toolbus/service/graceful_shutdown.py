"""Shuts a host process down: gracefully on the first signal, at once on the second.

After the first signal running calls may finish within a limit. The limit holds whatever tools do:
if a tool ignores its cancellation, holds a thread or blocks the event loop, the process exits
without waiting for it, and the log names the tool. Signals are handled by Python itself, and the
limit by a separate thread, so both work even if the event loop is blocked. A process that exits
before a tool has ended does not answer its call: the caller gets `host_lost`, maybe.
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
from types import FrameType
from typing import Self

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.thread_signals import STOP_SIGNALS, stop_signals_blocked
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.errors import Cancelled
from toolbus.forked_children import keep_handler_from_children
from toolbus.hosting.hosted_call import HostedCall, describe_calls

__all__ = ["GracefulShutdown"]

_logger = bounded_logger(__name__)

# After the limit: cancelled calls may clean up, the room is left, the event loop is closed.
_LAST_S = 3.0
# Part of it: for calls that still run on threads after the room was left.
_THREADS_S = 0.5
_FLUSH_S = 2.5
_FLUSH_AT_ONCE_S = 0.5


class GracefulShutdown:
    """Ends a host process: `with GracefulShutdown(flush) as end:` around or in its event loop.

    Signals are handled from `install_handlers` to the end of the block, which sends the remaining
    spans.

    Args:
        flush: Sends spans; None if none are recorded.
    """

    def __init__(self, flush: Callable[[], None] | None = None) -> None:
        self._send_spans = flush
        self._limit_s = 0.0
        self._calls: Collection[HostedCall] = ()
        self._is_hosting = False
        self._stop_requested = asyncio.Event()
        self._signals = 0
        self._joining_task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signal_queue: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._handlers_before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal_queue.put(False)
        if self._send_spans is not None:
            self._send_spans()
        if self._loop is not None:
            for number, handler in self._handlers_before.items():
                if handler is not None:  # None: it was not installed by Python
                    signal.signal(number, handler)

    def install_handlers(self) -> None:
        """Handle SIGTERM and Ctrl-C from now on, for the running event loop.

        Raises:
            ValueError: This is not the main thread.
        """
        self._loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
            keep_handler_from_children(number)
        threading.Thread(target=self._supervise, name="toolbus-signals", daemon=True).start()

    @contextmanager
    def cancel_on_signal(self) -> Iterator[None]:
        """Cancel the block on a signal that comes before `hosting_started`.

        The block ends without an error if calls were running then: those are what was hosted.

        Raises:
            Cancelled: A signal has cancelled the block, and nothing was hosted.
        """
        task = self._joining_task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            is_stopped = self._joining_task is not None and self._stop_requested.is_set()
            if not is_stopped or task is None or task.uncancel():
                raise
            if self._is_hosting:
                return
            text = "stopped by a signal before anything was hosted"
            raise Cancelled(text, executed="no") from None
        finally:
            self._joining_task = None

    def watch_calls(self, calls: Collection[HostedCall], limit_s: float) -> None:
        """Let calls that begin from now on end before the process does.

        It is called before the first registration is sent: a call may begin, and may block the
        event loop, before the reply to that is read.

        Args:
            calls: A live view of the calls that have not ended.
            limit_s: Seconds that they may take to finish after the first signal.
        """
        self._calls = calls
        self._limit_s = limit_s

    def hosting_started(self) -> None:
        """Start graceful shutdown: from now on the first signal ends the process with code 0."""
        self._is_hosting = True
        self._joining_task = None

    @property
    def _is_serving(self) -> bool:
        return self._is_hosting or bool(self._calls)

    async def wait_for_signal(self) -> None:
        """Wait for the first signal."""
        await self._stop_requested.wait()

    def log_pending_calls(self) -> None:
        """Log how many calls are running, how long they may take, and how to exit at once."""
        left = [call for call in self._calls if not (call.ended or call.is_held)]
        if left:
            _logger.warning(
                "stopping: waiting up to %g s for %s; a second signal stops at once",
                self._limit_s,
                describe_calls(left),
            )

    async def exit_if_calls_remain(self) -> None:
        """Exit after a signal if calls have not ended although the room was left.

        A call on a thread can see from `context.cancelled` that it has to end; it may take half a
        second.
        """
        if not self._signals:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_THREADS_S):
                for hosted in {call.hosted for call in self._calls}:
                    await hosted.drained()
        if self._calls:
            self._exit_without_calls()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # No locks here: the next signal may interrupt this handler.
        self._signals += 1
        self._signal_queue.put(True)

    @stop_signals_blocked()
    def _supervise(self) -> None:
        """Wait for signals on a separate thread; exit at the limit or on the second signal."""
        if not self._signal_queue.get():
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._request_stop)
        try:
            limit_s = _LAST_S
            if self._is_serving:
                limit_s += self._limit_s
            is_signal = self._signal_queue.get(timeout=limit_s)
        except queue.Empty:
            self._exit_without_calls()
        else:
            if is_signal:
                self._exit_now()

    def _request_stop(self) -> None:
        self._stop_requested.set()
        self._is_hosting = self._is_serving
        if self._joining_task is not None:
            self._joining_task.cancel()

    def _exit_now(self) -> None:
        text = "toolbus: stopped by a second signal"
        if self._calls:
            text = f"{text}, {describe_calls(self._calls)} lost"
        # Without logging: a blocked tool may hold its locks.
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())
        self._exit(ExitCode.CANCELLED, None, _FLUSH_AT_ONCE_S)

    def _exit_without_calls(self) -> None:
        left = describe_calls(self._calls) if self._calls else "a task or a thread"
        code = ExitCode.OK if self._is_serving else ExitCode.CANCELLED
        self._exit(code, f"exiting without {left}: did not end when cancelled", _FLUSH_S)

    def _exit(self, code: ExitCode, text: str | None, flush_s: float) -> None:
        """Exit now; send logs and spans as far as the time allows."""

        def flush() -> None:
            if text is not None:
                _logger.error("%s", text)
            if self._send_spans is not None:
                self._send_spans()
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # closed, or a broken pipe
                    stream.flush()

        # On a separate thread: blocked code may hold a lock that this needs.
        flushing = threading.Thread(target=flush, name="toolbus-end", daemon=True)
        try:
            flushing.start()
            flushing.join(flush_s)
        finally:
            os._exit(code)
