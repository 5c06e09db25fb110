"""Runs coroutines on the event loop of another thread, and event loops on threads of their own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.event_loop import running_loop

__all__ = ["LoopEnded", "LoopThread", "LoopWork", "run_on_shared_loop"]

T = TypeVar("T")
_logger = bounded_logger(__name__)
# A loop that is closed between accepting a callback and running it leaves work that nothing
# ends. That is rare, so a waiting thread checks seldom: 10,000 of them wake up 2,000 times a
# second.
_CHECK_S = 5.0
# What a program's end waits for all threads together: each needs a round trip to leave its room.
_EXIT_S = 2.0
# Replies that are there when the loop ends are delivered; what waits longer is cancelled.
_LAST_REPLIES_S = 0.5


_GREENLETS = (
    "the threads of this process are greenlets, and an event loop needs a thread of its own: leave "
    "them as they are (gevent.monkey.patch_all(thread=False, queue=False)), or use toolbus in "
    "another process"
)


class LoopEnded(Exception):
    """The loop has ended: it has run nothing of the work, and will not."""


class LoopWork(Generic[T]):
    """Work of a thread on the loop of another thread.

    Args:
        loop: The loop.
        start: Starts the work, on the loop. It runs in a copy of the waiting thread's context, so
            that its spans have the right parent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Callable[[], Awaitable[T]]) -> None:
        self._loop = loop
        self._start = start
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        # A bare lock, held until the work has ended, and not a `concurrent.futures.Future`: its
        # condition is entered by Python code, where Ctrl-C may leave it locked, and the loop would
        # block when it sets the result.
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> T:
        """Run the work, once, and wait for it. Ctrl-C in the waiting thread cancels the work.

        Raises:
            LoopEnded: The loop has ended before; nothing has run.
            concurrent.futures.CancelledError: The work was cancelled, or the loop has ended, and
                the work with it.
            Exception: What the work raises.
        """
        # Ctrl-C raises between any two bytecodes of this thread. Wherever that is, nothing runs on:
        # - before the `try` nothing was scheduled;
        # - in `call_soon_threadsafe`, `_begin` was scheduled or not, and the loop was woken or not.
        #   `cancel` schedules another callback, and wakes the loop. If `_begin` is there, it is the
        #   earlier one: its task is cancelled before its first step, or there is none, as it saw
        #   the flag;
        # - until the lock is acquired, the task may run, and is cancelled;
        # - once it is acquired, the work has ended: only its result is lost.
        # A second Ctrl-C that comes within `cancel` may stop that. The `try` has only one call: of
        # a loop, Python 3.13 leaves the jump back to its start out of the `try`.
        try:
            self._schedule_and_wait()
        except BaseException:
            self.cancel()
            raise
        task = self._task
        self._task = None
        if task is None or task.cancelled():
            raise concurrent.futures.CancelledError
        try:
            return task.result()
        finally:
            del task  # an error's traceback has this frame, and the task has the error

    def _schedule_and_wait(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError as error:
            raise LoopEnded from error
        while not self._running.acquire(timeout=_CHECK_S):
            if self._loop.is_closed() and not self._running.acquire(blocking=False):
                raise concurrent.futures.CancelledError

    def cancel(self) -> None:
        """Cancel the work, also before it runs; nothing if it has ended. Safe from any thread."""
        self._is_cancelled = True
        with suppress(RuntimeError):  # the loop has ended, and the work with it
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _begin(self) -> None:
        if self._is_cancelled:
            self._running.release()
            return

        async def work() -> T:
            return await self._start()

        self._task = self._loop.create_task(work())
        self._task.add_done_callback(lambda _: self._running.release())

    def _cancel_task(self) -> None:
        task = self._task  # the waiting thread may take it away meanwhile
        if task is not None:
            task.cancel()


class LoopThread:
    """An event loop on a daemon thread, for work of other threads.

    The thread ends with `stop`, or with the program.

    Args:
        name: The name of the thread.
        at_end: Runs on the loop before it ends; an error is logged.

    Raises `RuntimeError` where a thread is a greenlet of the thread that makes it.
    """

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._process = os.getpid()
        self._stopping = asyncio.Event()
        started = concurrent.futures.Future[asyncio.AbstractEventLoop]()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.loop: asyncio.AbstractEventLoop = started.result()
        if running_loop() is self.loop:  # gevent and eventlet put greenlets in the place of threads
            self.request_stop()
            raise RuntimeError(_GREENLETS)
        _running.add(self)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from that of the thread, which it does not have."""
        return os.getpid() != self._process

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, so that the loop runs no more work."""
        return not self._thread.is_alive()

    def run(self, start: Callable[[], Awaitable[T]]) -> T:
        """Run work on the loop and wait for its result; raises what `LoopWork.run` raises."""
        return LoopWork(self.loop, start).run()

    def request_stop(self) -> None:
        """Let the loop end, without waiting for that."""
        if not self.is_forked:
            with suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self._stopping.set)

    def stop(self, timeout_s: float) -> None:
        """Let the loop end and wait for that, at most so many seconds."""
        self.request_stop()
        if not self.is_forked:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _logger.warning("thread %s did not end within %g s", self._thread.name, timeout_s)

    def _run(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        try:
            # Not uvloop: after a callback's SystemExit it cannot be closed, and who waits for work
            # on it would not notice its end. Its speed is not missed: passing work to a thread and
            # back costs more than either loop.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                try:
                    runner.run(self._until_stopped(started))
                finally:
                    runner.run(self._end())
        except BaseException as error:  # a callback's SystemExit ends only this thread
            if not started.done():
                started.set_exception(error)
                return
            _logger.exception("the event loop of thread %s has ended", self._thread.name)

    async def _until_stopped(
        self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]
    ) -> None:
        started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()

    async def _end(self) -> None:
        try:
            await self._at_end()
        except Exception:
            _logger.exception("thread %s did not end in order", self._thread.name)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=_LAST_REPLIES_S)


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_shared: LoopThread | None = None
_sharing = threading.Lock()


def run_on_shared_loop(start: Callable[[], Awaitable[T]]) -> T:
    """Run work on the loop that all such work of this process shares, and wait for its result.

    What belongs to a loop, such as an open connection, so serves later work too. Raises what
    `LoopWork.run` raises.
    """
    global _shared
    with _sharing:
        if _shared is None or _shared.has_ended:
            # Nothing is to be ended: its work has ended, or is cancelled.
            _shared = LoopThread("toolbus-shared", lambda: asyncio.sleep(0))
        thread = _shared
    return thread.run(start)


def _forget_shared() -> None:
    """Have another loop in a forked child, where the thread is not, and the lock may be held."""
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)


@atexit.register
def _stop_all() -> None:
    """Stop all threads: a daemon thread that runs while the interpreter ends may crash it."""
    threads = list(_running)
    for thread in threads:
        thread.request_stop()
    end_at = monotonic() + _EXIT_S
    for thread in threads:
        thread.stop(max(0.0, end_at - monotonic()))
