"""The items of a plain iterable, gone through on one thread from its first step to its last.

They reach the event loop as they come. Which thread that is, and how far it may be ahead of whoever
goes through them, is for its maker to say. A thread that blocks cannot be stopped: it ends once its
item has come.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self

__all__ = ["ThreadItems", "on_own_thread"]

_END = object()
_logger = logging.getLogger(__name__)


def on_own_thread(work: Callable[[], Any]) -> Awaitable[Any]:
    """Run what never raises on a thread of its own, which keeps no program from ending.

    Returns what gives its result.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def run() -> None:
        result = work()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set_result, result)

    threading.Thread(target=run, name="toolbus-input", daemon=True).start()
    return ended


class ThreadItems:
    """Goes through an iterable whose `next` may block: `async for item in ThreadItems(start):`.

    Raises what the iterable raises, behind the items that came before. To be closed where it is
    left in the middle: `aclose` waits for the thread, `leave` does not. Cancelling who waits for an
    item loses nothing. What it calls sees the context of who asked for the first item.

    Args:
        start: Makes the iterable; called on the thread, which closes it too if it is a generator.
        on_thread: Runs all of that, and gives what it returned; a thread of its own unless said.
        ahead: How many items may wait for whoever goes through them. With 0 the thread works only
            while it is asked for an item.
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
        self._places: SimpleQueue[None] = SimpleQueue()
        """One for each item that may be made; faster than a semaphore."""
        for _ in range(ahead):
            self._places.put(None)
        self._is_asked = False
        """Whether the item that is waited for has its place."""
        self._is_left = self._is_awaited = False
        self._is_told = False
        """Whether the iterable's own end was handed on."""
        self._waiter: asyncio.Future[None] | None = None
        self._thread: asyncio.Future[BaseException | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        thread = self._thread or self._begin()
        if not self._is_asked:
            self._is_asked = True
            self._places.put(None)
        while not self._items:
            if thread.done():
                self._raise(thread.result())
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_asked = False
        return self._items.popleft()

    def leave(self) -> None:
        """Let the thread end at its next item; returns at once. What closing raises is logged."""
        self._is_left = True
        self._places.put(None)

    async def aclose(self) -> None:
        """Let the thread end at its next item, and wait for that.

        One who is being cancelled does not wait: the thread ends by itself. Raises what the
        iterable raises in its end.
        """
        task = asyncio.current_task()
        self._is_awaited = task is None or not task.cancelling()
        self.leave()
        if self._thread is not None and self._is_awaited:
            await asyncio.wait([self._thread])
            if not self._is_told and not self._thread.cancelled():
                error = self._thread.result()
                if error is not None:
                    raise RuntimeError("the generator raised while it was closed") from error

    def _begin(self) -> asyncio.Future[BaseException | None]:
        loop = asyncio.get_running_loop()
        work = functools.partial(contextvars.copy_context().run, self._work, loop)
        self._thread = asyncio.ensure_future(self._on_thread(work))
        self._thread.add_done_callback(self._end)
        return self._thread

    def _end(self, thread: asyncio.Future[Any]) -> None:
        if not thread.cancelled():
            thread.exception()  # looked at, where nobody waits for it any more
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _arrive(self, item: Any) -> None:
        self._items.append(item)
        self._wake()

    def _raise(self, error: BaseException | None) -> None:
        """End as the iterable did."""
        self._is_told = True
        if isinstance(error, StopAsyncIteration):
            raise RuntimeError("the generator raised StopAsyncIteration") from error
        raise StopAsyncIteration if error is None else error

    # On the thread

    def _work(self, loop: asyncio.AbstractEventLoop) -> BaseException | None:
        """Run the iterable; return what it raised: a task must not end with a `SystemExit`."""
        if self._is_left:
            return None
        try:
            items = iter(self._start())
            while self._is_wanted() and (item := next(items, _END)) is not _END:
                try:
                    loop.call_soon_threadsafe(self._arrive, item)
                except RuntimeError:  # the loop has ended
                    break
        except BaseException as error:
            return error
        return self._close(items) if isinstance(items, Generator) else None

    def _is_wanted(self) -> bool:
        """Wait until there is a place for an item; tell whether one is wanted."""
        self._places.get()
        return not self._is_left

    def _close(self, items: Generator[Any, Any, Any]) -> BaseException | None:
        try:
            items.close()
        except BaseException as error:
            if not self._is_awaited:
                _logger.exception("a generator raised while it was closed")
            return error
        return None
