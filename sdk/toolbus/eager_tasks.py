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
from sys import getrefcount
from types import coroutine as awaitable
from typing import Any, Protocol, TypeAlias
from weakref import getweakrefcount

__all__ = ["Starter", "starter"]

_enter_task: Callable[..., None] = asyncio.tasks._enter_task
_leave_task: Callable[..., None] = asyncio.tasks._leave_task
_NOTHING = object()
_Work: TypeAlias = Coroutine[Any, Any, None]


class Starter(Protocol):
    """Starts the coroutines of one event loop."""

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        """Run a coroutine up to where it first waits; return its task, unless it has ended.

        Nothing that it raises is raised here: what ends a program, the event loop raises next.
        """

    def close(self) -> None:
        """End what is kept for later coroutines; those that were started go on."""


class _Native:
    """Leaves it to the tasks of Python 3.12."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        eagerly: dict[str, Any] = {"eager_start": True}
        self._make: Callable[..., asyncio.Task[None]] = partial(asyncio.Task, loop=loop, **eagerly)

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        try:
            task = self._make(work, context=context)
        except (KeyboardInterrupt, SystemExit) as error:
            self._loop.call_soon(_raise, error)
            return None
        return None if task.done() else task

    def close(self) -> None:
        """Nothing is kept."""


class _ByHand:
    """Does it for Python 3.11."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spare: _Spare | None = None
        self._is_closed = False

    def start(self, work: _Work, context: Context) -> asyncio.Task[None] | None:
        spare, loop = self._spare, self._loop
        if spare is None or spare.begun is None or spare.begun.done():
            return self._start_later(work, context)
        try:
            _enter_task(loop, spare.task)
        except RuntimeError:  # another task is at work
            return self._start_later(work, context)
        waits_for: Any = _NOTHING
        try:
            waits_for = context.run(work.send, None)
        except StopIteration:
            pass
        except BaseException as error:
            _tell(loop, error)
        finally:
            _leave_task(loop, spare.task)
        task: Any = spare.task
        if waits_for is not _NOTHING:
            self._spare = None
            spare.see_to(work, context, waits_for)
            return spare.task
        known = getrefcount(task), getweakrefcount(task)
        if known != spare.known or task._callbacks is not None:
            # It is the task of what has ended: somebody may still want to cancel it, or to hear of
            # its end, or know things by it.
            self._spare = None
            task.cancel()
        return None

    def _start_later(self, work: _Work, context: Context) -> asyncio.Task[None]:
        if (self._spare is None or self._spare.task.done()) and not self._is_closed:
            self._spare = _Spare(self._loop)
        return asyncio.Task(work, loop=self._loop, context=context)

    def close(self) -> None:
        self._is_closed = True
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()


class _Spare:
    """A task that waits for a coroutine which has begun in its name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun: asyncio.Future[None] | None = None
        """There as soon as it waits; done once it does not any more."""
        self._rest: tuple[_Work, Context, Any] | None = None
        self.task: asyncio.Task[None] = asyncio.Task(self._run(), loop=loop)
        self._hide(True)
        self.known: tuple[int, int] | None = None
        """How many references to the task there are, of both kinds, as long as it is a spare."""

    def _hide(self, is_spare: bool) -> None:
        """Let `asyncio.all_tasks()` tell of it only while it is somebody's."""
        task: Any = self.task
        (asyncio._unregister_task if is_spare else asyncio._register_task)(task)
        task._log_destroy_pending = not is_spare

    def _count(self) -> None:
        task: Any = self.task
        self.known = getrefcount(task), getweakrefcount(task)

    def see_to(self, work: _Work, context: Context, waits_for: Any) -> None:
        """Take over a coroutine that waits."""
        self._hide(False)
        if asyncio.isfuture(waits_for):
            # A task does so at once with what was yielded to it; until then nobody else can wait.
            waits_for._asyncio_future_blocking = False
        self._rest = work, context, waits_for
        if self.begun is not None and not self.begun.done():  # else it was cancelled meanwhile
            self.begun.set_result(None)

    def _take_rest(self) -> tuple[_Work, Context, Any]:
        assert self._rest is not None
        rest, self._rest = self._rest, None
        return rest

    async def _run(self) -> None:
        self.begun = self._loop.create_future()
        self._loop.call_soon(self._count)
        cancelled: asyncio.CancelledError | None = None
        try:
            await self.begun
        except asyncio.CancelledError as error:
            cancelled = error
        if self._rest is not None:
            await _the_rest(self._take_rest, cancelled)
        elif cancelled is not None:
            raise cancelled


@awaitable
def _the_rest(
    take: Callable[[], tuple[_Work, Context, Any]], error: BaseException | None
) -> Generator[Any, Any, None]:
    """Go on with a coroutine in the context in which it began."""
    work, context, waits_for = take()  # nobody else may hold what it waits for
    if asyncio.isfuture(waits_for):
        if error is not None and waits_for.cancel(*error.args):
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


def _tell(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
    """Do with what a coroutine raised before it first waited what is done with a task's error."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        loop.call_soon(_raise, error)
    elif not isinstance(error, asyncio.CancelledError):
        words = "what was started at once raised an error that nobody awaits"
        loop.call_exception_handler({"message": words, "exception": error})


def _raise(error: BaseException) -> None:
    raise error


def starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """Make what starts coroutines on this loop."""
    return _Native(loop) if sys.version_info >= (3, 12) else _ByHand(loop)
