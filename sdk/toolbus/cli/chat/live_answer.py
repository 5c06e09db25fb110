"""Work on the event loop, which the main thread follows and can interrupt."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

from toolbus.cli.chat.interrupts import Interrupted, Interrupts
from toolbus.errors import RoomException

__all__ = ["Live", "Pause", "once"]

T = TypeVar("T")
A = TypeVar("A")
_MAX_UNREAD = 256
"""Events that wait for the terminal; then the agent waits, as at a slow reader of a stream."""
_TICK_S = 0.25
"""How often a wait looks up: to show that it waits, and for signals that no lock wakes up for."""


class Pause:
    """A person is asked in the terminal: nothing is printed until it has ended."""

    def __init__(self) -> None:
        self.is_quiet: asyncio.Event = asyncio.Event()
        """The main thread prints nothing any more."""
        self.has_ended: threading.Event = threading.Event()


class Live(Generic[T]):
    """What an async generator yields on a loop, read by the main thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: Callable[[], AsyncGenerator[T, None]]
    ) -> None:
        self._loop = loop
        self._source = source
        self._events: queue.SimpleQueue[tuple[T | Pause] | None] = queue.SimpleQueue()
        self._space: asyncio.Semaphore
        self._task: asyncio.Task[None] | None = None
        self._cancels = 0
        loop.call_soon_threadsafe(self._begin)

    def read(self, interrupts: Interrupts) -> Generator[T | Pause | None, None, None]:
        """Yield what happens, and None from time to time. Raises what the generator raises.

        Raises:
            Interrupted: A signal has cancelled it; its generator has ended, unless a second signal
                came before that.
            Terminated: So has SIGTERM.
        """
        with interrupts.cancelling(self.cancel):
            try:
                yield from self._read()
            finally:
                if self._task is None or not self._task.done():
                    self.cancel()
        failure: BaseException | None = Interrupted("interrupted", executed="maybe")
        if self._task is not None and self._task.done() and not self._task.cancelled():
            failure = self._task.exception()
        known = failure.executed if isinstance(failure, RoomException) else "maybe"
        interrupts.check(known)
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """Cancel the generator; the second time, do not wait until it has ended."""
        self._cancels += 1
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())
        if self._cancels > 1:
            self._events.put(None)

    async def ask(self, asking: Callable[[], Awaitable[A]]) -> A:
        """Ask a person while nothing is printed, and return the answer. Runs on the loop."""
        pause = Pause()
        self._events.put((pause,))
        try:
            await pause.is_quiet.wait()
            return await asking()
        finally:
            pause.has_ended.set()

    def wait_for(self, pause: Pause) -> None:
        """Let a person be asked, and wait until that has ended."""
        self._loop.call_soon_threadsafe(pause.is_quiet.set)
        while not pause.has_ended.wait(_TICK_S) and self._cancels < 2:
            pass

    def _read(self) -> Iterator[T | Pause | None]:
        while True:
            try:
                entry = self._events.get(timeout=_TICK_S)
            except queue.Empty:
                if self._loop.is_closed():
                    return
                yield None
                continue
            if entry is None:
                return
            if not isinstance(entry[0], Pause):
                self._loop.call_soon_threadsafe(self._space.release)
            # What came before an interruption is not shown after it.
            if not self._cancels or isinstance(entry[0], Pause):
                yield entry[0]

    def _begin(self) -> None:
        self._space = asyncio.Semaphore(_MAX_UNREAD)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(lambda _: self._events.put(None))

    async def _run(self) -> None:
        async with aclosing(self._source()) as events:
            async for event in events:
                await self._space.acquire()
                self._events.put((event,))


def once(work: Callable[[], Awaitable[T]]) -> Callable[[], AsyncGenerator[list[T], None]]:
    """Return the source of a `Live` that yields the result of one piece of work, in a list."""

    async def source() -> AsyncGenerator[list[T], None]:
        yield [await work()]

    return source
