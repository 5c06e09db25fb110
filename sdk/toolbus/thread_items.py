"""The items of a sync generator, which runs on one thread from its first step to its last.

They reach the event loop as they come. The thread is at most `AHEAD` items ahead of whoever goes
through them, and closes the generator itself where nobody wants more.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from toolbus.context import ToolContext

__all__ = ["AHEAD", "ThreadItems"]

AHEAD = 16
"""How many items may wait between the thread and the event loop."""


class ThreadItems:
    """Goes through a sync generator: `async for item in ThreadItems(context, start):`.

    Raises what the generator raises, behind the items that came before. To be closed by `aclose`
    where it is left in the middle. The context is marked as entered by the thread.

    Args:
        context: Says where sync functions run.
        start: Makes the generator; called on the thread.
    """

    def __init__(self, context: ToolContext, start: Callable[[], Iterable[Any]]) -> None:
        self._context = context
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._places = threading.Semaphore(AHEAD)
        self._is_closed = False
        self._is_told = False
        """Whether the generator's own end was handed on."""
        self._waiter: asyncio.Future[None] | None = None
        self._thread: asyncio.Task[BaseException | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        thread = self._thread or self._begin()
        while not self._items:
            if thread.done():
                self._raise(await thread)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._places.release()
        return self._items.popleft()

    async def aclose(self) -> None:
        """Let the thread close the generator at its next item, and wait for that.

        One who is being cancelled does not wait: the thread ends by itself. Raises what the
        generator raises in its end.
        """
        self._is_closed = True
        self._places.release()
        task = asyncio.current_task()
        if self._thread is not None and (task is None or not task.cancelling()):
            await asyncio.wait([self._thread])
            if not self._is_told and not self._thread.cancelled():
                error = self._thread.result()
                if error is not None:
                    raise RuntimeError("the generator raised while it was closed") from error

    def _begin(self) -> asyncio.Task[BaseException | None]:
        work = functools.partial(contextvars.copy_context().run, self._work)
        self._thread = self._loop.create_task(_on_thread(self._context, work))
        self._thread.add_done_callback(self._end)
        return self._thread

    def _end(self, thread: asyncio.Task[Any]) -> None:
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
        """End as the generator did."""
        self._is_told = True
        if isinstance(error, StopAsyncIteration):
            raise RuntimeError("the generator raised StopAsyncIteration") from error
        raise StopAsyncIteration if error is None else error

    # On the thread

    def _work(self) -> BaseException | None:
        """Run the generator; return what it raised: a task must not end with a `SystemExit`."""
        if self._is_closed:
            return None
        self._context.entered = True
        try:
            items = iter(self._start())
            try:
                for item in items:
                    if not self._hand_over(item):
                        break
            finally:
                items.close()  # type: ignore[attr-defined]  # a generator's
        except BaseException as error:
            return error
        return None

    def _hand_over(self, item: Any) -> bool:
        """Give an item to the loop once there is a place; tell whether another one is wanted."""
        self._places.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._arrive, item)
        except RuntimeError:  # the loop has ended
            return False
        return True


async def _on_thread(context: ToolContext, work: Callable[[], Any]) -> Any:
    return await context.run_sync(work)
