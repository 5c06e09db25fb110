"""Threads for work of toolbus that may block: files, keys, tokens, credentials, local sync tools.

The default pool of an event loop (`asyncio.to_thread`) belongs to the program. Functions that run
there as long as they like would hold up what toolbus needs to stay connected. So each purpose here
has threads of its own, and none waits for those of another.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from errno import EAGAIN
from functools import partial
from typing import Any, Generic, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.tasks import retrieve_error
from toolbus.concurrency.thread_signals import stop_signals_blocked
from toolbus.forked_children import call_in_children

__all__ = ["WorkerThreads"]

T = TypeVar("T")

_logger = bounded_logger(__name__)

_IDLE_S = 10.0
"""How long a thread waits for work. Starting one takes longer than most reads of a file."""
_LONG_S = 5.0
_REPORT_EVERY_S = 60.0
_GRACE_S = 0.25
"""How long a cancelled caller waits for work that has begun.

Nearly all work ends in that time, so that a caller who was cancelled sees no half-written file; a
disk that hangs delays the caller by no more than this.
"""


class _Work(Generic[T]):
    """A function that waits for a thread or runs on one, and the future of its result."""

    __slots__ = (
        *("_is_given_up", "_lock", "_results", "_undo"),
        *("asked_at", "ended", "function", "has_begun", "loop", "name"),
    )

    def __init__(
        self, function: Callable[[], T], undo: Callable[[T], object] | None, name: str = ""
    ) -> None:
        self.function = function
        self.name = name
        self._undo = undo
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[T] = self.loop.create_future()
        self.asked_at = time.monotonic()
        self.has_begun = False
        # The thread and the caller decide between them who undoes, without the loop: it may end
        # before it runs what the thread scheduled.
        self._lock = threading.Lock()
        self._is_given_up = False
        self._results: list[T] = []
        """The result, if there is one that may have to be undone."""

    def run(self) -> None:
        """Run the function on a thread, unless its caller was cancelled before."""
        self.has_begun = True
        if self.ended.cancelled():
            return
        try:
            result = self.function()
        except BaseException as error:
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._fail, error)
            return
        with self._lock:
            self._results.append(result)
            is_given_up = self._is_given_up
        if is_given_up:
            self.undo()
        try:
            self.loop.call_soon_threadsafe(self._succeed, result)
        except RuntimeError:  # the loop has ended
            self.undo()

    def give_up(self) -> bool:
        """Leave the result to `undo`; return whether it is there, and `run` does not undo it."""
        with self._lock:
            self._is_given_up = True
            return bool(self._results)

    def undo(self) -> None:
        """Undo the result, once; on a thread."""
        with self._lock:
            results, self._results = self._results, []
        if results and self._undo is not None:
            with suppress(Exception):
                self._undo(results[0])

    def _succeed(self, result: T) -> None:
        if not self.ended.done():
            self.ended.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):  # a future cannot hold it
            error = RuntimeError("the function raised StopIteration")
        if not self.ended.done():
            self.ended.set_exception(error)


class WorkerThreads:
    """Daemon threads for one purpose, shared by all event loops of the process.

    Work beyond the limit waits for a thread, in the order in which it came. Work that waits for
    long is logged as a warning, at most once a minute. The program may end while work runs.

    Args:
        purpose: What they are for, in logs and in the names of the threads, such as "files".
        limit: The most threads at a time.
        may_take_long: Whether the work itself may take any time, as a user's function: then only
            the wait for a thread is logged.
    """

    def __init__(self, purpose: str, limit: int, *, may_take_long: bool = False) -> None:
        self._purpose = purpose
        self._limit = limit
        self._may_take_long = may_take_long
        self._report_at = 0.0
        self._reset()
        call_in_children(self._reset)  # a child has none of the threads of its parent

    def _reset(self) -> None:
        self._changed = threading.Condition()
        # Thousands may be cancelled at once, in any order: each is removed without a search.
        self._waiting: OrderedDict[_Work[Any], None] = OrderedDict()
        self._threads = 0
        self._idle = 0

    async def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """Run a function on a thread, in the caller's context, and return its result.

        A function that has begun goes on by itself when its caller is cancelled, who waits for it
        for at most 0.25 s, and not at all if it may take long. One that has not begun does not
        begin.

        Args:
            function: What to run.
            arguments: Its arguments.
            undo: Receives the result of a cancelled call, on a thread.

        Raises what the function raises, and `OSError` if the system allows no thread.
        """
        name = getattr(function, "__qualname__", type(function).__name__)
        work = self._start(partial(copy_context().run, function, *arguments), undo, name)
        timer = work.loop.call_later(_LONG_S, self._report, work)
        try:
            return await asyncio.shield(work.ended)
        except asyncio.CancelledError:
            await self._give_up(work)
            raise
        finally:
            timer.cancel()

    async def finish(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run a function that cleans up after an error or a cancellation.

        Waits for 0.25 s at most; the function goes on by itself, and its errors are dropped.
        """
        work = self._start(partial(function, *arguments), None)
        work.ended.add_done_callback(retrieve_error)
        await asyncio.wait([work.ended], timeout=_GRACE_S)

    async def _give_up(self, work: _Work[Any]) -> None:
        with self._changed:
            if work in self._waiting:
                del self._waiting[work]
                work.ended.cancel()
        work.ended.add_done_callback(retrieve_error)
        if work.give_up():
            with suppress(OSError):  # the system allows no thread
                self._start(work.undo, None)
        elif not (work.ended.done() or self._may_take_long):
            await asyncio.wait([work.ended], timeout=_GRACE_S)

    def _start(
        self, function: Callable[[], T], undo: Callable[[T], object] | None, name: str = ""
    ) -> _Work[T]:
        work = _Work(function, undo, name)
        with self._changed:
            self._waiting[work] = None
            if len(self._waiting) <= self._idle:
                self._changed.notify()
            elif self._threads < self._limit:
                self._add_thread(work)
        return work

    def _add_thread(self, work: _Work[Any]) -> None:
        self._threads += 1
        name = f"toolbus-{self._purpose}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:  # the system allows no further one, or the program is ending
            self._threads -= 1
            if not self._threads:
                del self._waiting[work]
                raise OSError(EAGAIN, str(error)) from error

    def _report(self, work: _Work[Any]) -> None:
        """Log work that has waited for long; on the loop of its caller."""
        now = time.monotonic()
        if now < self._report_at or (work.has_begun and self._may_take_long):
            return
        self._report_at = now + _REPORT_EVERY_S
        _logger.warning(
            "%s: %s has not ended after %.3g s: %d of %d threads are busy, and %d functions wait"
            " for one",
            self._purpose,
            work.name,
            now - work.asked_at,
            self._threads - self._idle,
            self._limit,
            len(self._waiting),
        )

    # On a thread

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            del work  # while it waits, a thread keeps no result alive

    def _next(self) -> _Work[Any] | None:
        """Return the next work; None if this thread has waited long enough, and is to end."""
        with self._changed:
            self._idle += 1
            with stop_signals_blocked():  # not while work runs: it may start a program
                self._changed.wait_for(lambda: self._waiting, _IDLE_S)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popitem(last=False)[0]
            self._threads -= 1
            return None
