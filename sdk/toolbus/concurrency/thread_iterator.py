"""Iterates over a synchronous iterable on a thread and passes its items to the event loop.

One thread runs the iterable from start to end. The user of `ThreadIterator` chooses the thread and
how far it may run ahead of the reader. A blocked thread cannot be stopped: it ends after its
current item.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.tasks import retrieve_error

__all__ = ["ThreadIterator", "on_own_thread"]

_END = object()
_logger = bounded_logger(__name__)


def on_own_thread(work: Callable[[], Any], name: str = "toolbus-input") -> Awaitable[Any]:
    """Run a function that never raises on a new daemon thread of a name.

    Returns an awaitable of its result. If it is cancelled, the result is dropped.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end(result: Any) -> None:
        if not ended.done():
            ended.set_result(result)

    def run() -> None:
        result = work()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


class ThreadIterator:
    """Iterates over an iterable whose `next` may block: `async for item in ThreadIterator(start):`.

    Raises what the iterable raises, after the items that came before. Close it if you leave it
    before its end: `aclose` waits for the thread, `stop` does not. Cancelling a task that waits for
    an item loses nothing. The iterable runs in the context of the task that asked for the first
    item.

    Args:
        start: Makes the iterable; called on the thread, which also closes it if it is a generator.
        on_thread: Runs a function on a thread and returns its result; a new thread by default.
        ahead: How many items may wait for the reader. With 0 the thread works only while an item is
            requested.
    """

    def __init__(
        self,
        start: Callable[[], Iterable[Any]],
        on_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = on_own_thread,
        *,
        ahead: int = 0,
    ) -> None:
        self._start = start
        self._on_thread = on_thread
        self._items: deque[Any] = deque()
        self._permits: SimpleQueue[None] = SimpleQueue()
        """One permit for each item that may be produced; faster than a semaphore."""
        for _ in range(ahead):
            self._permits.put(None)
        self._is_requested = False
        """Whether a permit was added for the item that is waited for."""
        self._is_stopped = self._is_awaited = False
        self._end_delivered = False
        """Whether the end of the iterable was raised to the reader."""
        self._waiter: asyncio.Future[None] | None = None
        self._thread: asyncio.Future[BaseException | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        thread = self._thread or self._start_thread()
        if not self._is_requested:
            self._is_requested = True
            self._permits.put(None)
        while not self._items:
            if thread.done():
                self._end_delivered = True
                error = thread.result()
                if isinstance(error, StopAsyncIteration):
                    raise RuntimeError("the generator raised StopAsyncIteration") from error
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_requested = False
        return self._items.popleft()

    def stop(self) -> None:
        """Let the thread end at its next item; returns at once. Errors while closing are logged."""
        self._is_stopped = True
        self._permits.put(None)

    async def aclose(self) -> None:
        """Let the thread end at its next item and wait for that.

        A task that is being cancelled does not wait; the thread then ends by itself. Raises what
        the iterable raises while it is closed.
        """
        task = asyncio.current_task()
        self._is_awaited = task is None or not task.cancelling()
        self.stop()
        if self._thread is not None and self._is_awaited:
            await asyncio.wait([self._thread])
            if not self._end_delivered and not self._thread.cancelled():
                error = self._thread.result()
                if error is not None:
                    raise RuntimeError("the generator raised while it was closed") from error

    def _start_thread(self) -> asyncio.Future[BaseException | None]:
        loop = asyncio.get_running_loop()
        work = functools.partial(contextvars.copy_context().run, self._work, loop)
        self._thread = asyncio.ensure_future(self._on_thread(work))
        self._thread.add_done_callback(retrieve_error)
        self._thread.add_done_callback(lambda _: self._wake())
        return self._thread

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _on_item(self, item: Any) -> None:
        self._items.append(item)
        self._wake()

    # On the thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> BaseException | None:
        """Run the iterable; return its error, since a task must not end with a `SystemExit`."""
        if self._is_stopped:
            return None
        try:
            items = iter(self._start())
            while self._is_wanted() and (item := next(items, _END)) is not _END:
                try:
                    loop.call_soon_threadsafe(self._on_item, item)
                except RuntimeError:  # the loop has ended
                    break
        except BaseException as error:
            return error
        return self._close(items) if isinstance(items, Generator) else None

    def _is_wanted(self) -> bool:
        """Wait for a permit; return whether another item is wanted."""
        self._permits.get()
        return not self._is_stopped

    def _close(self, items: Generator[Any, Any, Any]) -> BaseException | None:
        try:
            items.close()
        except BaseException as error:
            if not self._is_awaited:
                _logger.exception("a generator raised while it was closed")
            return error
        return None
