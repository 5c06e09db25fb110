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
from typing import TypeVar

from toolbus.bounded_logging import bounded_logger

__all__ = ["LoopEnded", "LoopThread", "begin_on", "result_of"]

T = TypeVar("T")
_logger = bounded_logger(__name__)
# A loop that is closed between accepting a callback and running it leaves a future that nothing
# ends. That is rare, so a waiting thread checks seldom: 10,000 of them wake up 2,000 times a
# second.
_CHECK_S = 5.0
# What a program's end waits for all threads together: each needs a round trip to leave its room.
_EXIT_S = 2.0
# Replies that are there when the loop ends are delivered; what waits longer is cancelled.
_LAST_REPLIES_S = 0.5


class LoopEnded(Exception):
    """The loop has ended: it has run nothing of the work, and will not."""


def begin_on(
    loop: asyncio.AbstractEventLoop, start: Callable[[], Awaitable[T]]
) -> concurrent.futures.Future[T]:
    """Start work on the loop of another thread; return its future, for `result_of`.

    The work runs in a copy of this thread's context, so that its spans have the right parent.

    Raises:
        LoopEnded: Nothing was started.
    """

    async def work() -> T:
        return await start()

    coroutine = work()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:
        coroutine.close()
        raise LoopEnded from error


def result_of(future: concurrent.futures.Future[T], loop: asyncio.AbstractEventLoop) -> T:
    """Wait for work that `begin_on` started. Ctrl-C in the waiting thread cancels the work.

    Raises:
        concurrent.futures.CancelledError: The work was cancelled, or the loop has ended, and the
            work with it. Not `LoopEnded`, after which nothing has run.
        Exception: What the work raises.
    """
    try:
        while not future.done():
            with suppress(TimeoutError):
                return future.result(_CHECK_S)
            if loop.is_closed() and not future.done():
                raise concurrent.futures.CancelledError
        return future.result()
    except BaseException:
        future.cancel()  # nothing for work that has ended
        raise
    finally:
        del future  # an error's traceback has this frame, and the future has the error


class LoopThread:
    """An event loop on a daemon thread, for work of other threads.

    The thread ends with `stop`, or with the program.

    Args:
        name: The name of the thread.
        at_end: Runs on the loop before it ends; an error is logged.
    """

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._process = os.getpid()
        self._stopping = asyncio.Event()
        started = concurrent.futures.Future[asyncio.AbstractEventLoop]()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self._loop = started.result()
        _running.add(self)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from that of the thread, which it does not have."""
        return os.getpid() != self._process

    def run(self, start: Callable[[], Awaitable[T]]) -> T:
        """Run work on the loop and wait for its result; raises what `result_of` raises."""
        return result_of(begin_on(self._loop, start), self._loop)

    def request_stop(self) -> None:
        """Let the loop end, without waiting for that."""
        if not self.is_forked:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

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


@atexit.register
def _stop_all() -> None:
    """Stop all threads: a daemon thread that runs while the interpreter ends may crash it."""
    threads = list(_running)
    for thread in threads:
        thread.request_stop()
    end_at = monotonic() + _EXIT_S
    for thread in threads:
        thread.stop(max(0.0, end_at - monotonic()))
