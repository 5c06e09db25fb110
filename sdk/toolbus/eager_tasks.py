"""Tasks that run at once, up to where they first wait.

Most tools never wait, and then a task costs more than the tool: a turn of the event loop, and an
entry among all tasks. From Python 3.12 on a task may run at once. Before, a coroutine's first part
runs here in the name of a spare task, which sees to the rest, and is kept for the next coroutine
where there is no rest. So `asyncio.current_task()` is the same before the first wait and after it,
and each coroutine has its own context throughout. What an event loop has to be told of a task that
runs is in Python's documentation of asyncio, under "Extending".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from types import coroutine as awaitable
from typing import Any, Protocol, TypeAlias

__all__ = ["Starter", "starter"]

_enter_task: Callable[..., None] = asyncio.tasks._enter_task
_leave_task: Callable[..., None] = asyncio.tasks._leave_task
_Work: TypeAlias = Coroutine[Any, Any, None]


class Starter(Protocol):
    """Starts the coroutines of one event loop."""

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        """Run a coroutine up to where it first waits; return its task, unless it has ended.

        A `CancelledError` that it raises ends it; whatever else it raises may be raised here.
        """

    async def close(self) -> None:
        """End what is kept for later coroutines; those that were started go on."""


class _Native:
    """Leaves it to the tasks of Python 3.12."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        eagerly: dict[str, Any] = {"eager_start": True}
        self._make: Callable[..., asyncio.Task[None]] = partial(asyncio.Task, loop=loop, **eagerly)

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        task = self._make(work, context=context)
        return None if task.done() else task

    async def close(self) -> None:
        """Nothing is kept."""


class _ByHand:
    """Does it for Python 3.11."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spare: _Spare | None = None

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        spare = self._spare
        if spare is None or spare.begun is None or spare.begun.done():
            return self._start_later(work, context)
        try:
            _enter_task(self._loop, spare.task)
        except RuntimeError:  # another task is at work
            return self._start_later(work, context)
        try:
            waits_for = context.run(work.send, None)
        except (StopIteration, asyncio.CancelledError):
            return None
        finally:
            _leave_task(self._loop, spare.task)
        self._spare = None
        spare.see_to(work, context, waits_for)
        return spare.task

    def _start_later(self, work: _Work, context: Context) -> asyncio.Task[None]:
        if self._spare is None or self._spare.task.done():
            self._spare = _Spare(self._loop)
        return asyncio.Task(work, loop=self._loop, context=context)

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()
            await asyncio.wait([spare.task])


class _Spare:
    """A task that waits for a coroutine which has begun in its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun: asyncio.Future[None] | None = None
        """There as soon as it waits; done once it does not any more."""
        self._rest: tuple[_Work, Context, Any] | None = None
        self.task: asyncio.Task[None] = asyncio.Task(self._run(), loop=loop)

    def see_to(self, work: _Work, context: Context, waits_for: Any) -> None:
        """Take over a coroutine that waits."""
        if asyncio.isfuture(waits_for):
            # A task does so at once with what was yielded to it; until then nobody else can wait.
            waits_for._asyncio_future_blocking = False
        self._rest = work, context, waits_for
        if self.begun is not None and not self.begun.done():  # else it was cancelled meanwhile
            self.begun.set_result(None)

    async def _run(self) -> None:
        self.begun = self._loop.create_future()
        cancelled: asyncio.CancelledError | None = None
        try:
            await self.begun
        except asyncio.CancelledError as error:
            cancelled = error
        if self._rest is not None:
            await _the_rest(*self._rest, cancelled)
        elif cancelled is not None:
            raise cancelled


@awaitable
def _the_rest(
    work: _Work, context: Context, waits_for: Any, error: BaseException | None
) -> Generator[Any, Any, None]:
    """Go on with a coroutine in the context in which it began."""
    if asyncio.isfuture(waits_for):
        if error is not None and waits_for.cancel():
            error = None  # comes from there
        # What a task looks for in a future that is yielded to it.
        waits_for._asyncio_future_blocking = True
    while True:
        if error is None:
            try:
                step = partial(work.send, (yield waits_for))
            except BaseException as thrown:
                error = thrown
        if error is not None:
            step, error = partial(work.throw, error), None
        try:
            waits_for = context.run(step)
        except StopIteration:
            return


def starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """Make what starts coroutines on this loop."""
    return _Native(loop) if sys.version_info >= (3, 12) else _ByHand(loop)
