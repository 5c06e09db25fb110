"""A plain iterable whose `next` may block, gone through on a thread of its own.

The thread works only when it is asked for an item. It cannot be stopped while it blocks: it is left
then, ends once its item has come, and keeps no program from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator, Iterable, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

__all__ = ["ThreadedItems"]

_END = object()
_logger = logging.getLogger(__name__)


class ThreadedItems:
    """An async iterator over an iterable; to be closed where it is left before its end.

    Args:
        items: Gone through on the thread, where a generator is closed as well.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._asked: SimpleQueue[asyncio.Future[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __aiter__(self) -> ThreadedItems:
        return self

    async def __anext__(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._thread is None:
            run = copy_context().run
            self._thread = threading.Thread(
                target=run, args=(self._work, loop), name="toolbus-input", daemon=True
            )
            self._thread.start()
        answer: asyncio.Future[Any] = loop.create_future()
        self._asked.put(answer)
        item = await answer
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Ask for no more; returns at once, and the thread closes the iterable when it can."""
        if self._thread is not None:
            self._asked.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        iterator: Iterator[Any] | None = None
        while (answer := self._asked.get()) is not None:
            item, error = None, None
            try:
                iterator = iter(self._items) if iterator is None else iterator
                item = next(iterator, _END)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, answer, item, error)
            except RuntimeError:  # the loop was closed meanwhile
                break
        _close(iterator)


def _settle(answer: asyncio.Future[Any], item: Any, error: BaseException | None) -> None:
    if answer.done():  # given up
        return
    if error is None:
        answer.set_result(item)
    else:
        answer.set_exception(error)


def _close(iterator: Iterator[Any] | None) -> None:
    if not isinstance(iterator, Generator):
        return
    try:
        iterator.close()
    except Exception:
        _logger.exception("an input raised while it was closed")
