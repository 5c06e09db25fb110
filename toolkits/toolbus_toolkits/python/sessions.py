"""The interpreters that stay between the calls of an asker: one for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolbus import ToolContext, ToolFailed
from toolbus_toolkits.callers import Asker, asker_of
from toolbus_toolkits.launcher.output import CommandOutput
from toolbus_toolkits.python.interpreter import Interpreter

__all__ = ["PythonSessions"]

_MAX_SESSIONS = 8
"""Of all askers together: each is a process with all that its code has loaded."""
_IDLE_S = 600.0


@dataclass(eq=False, slots=True)
class _Session:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    """Calls that use it, or wait for their turn."""
    interpreter: Interpreter | None = None
    timer: asyncio.TimerHandle | None = None
    """Ends it while nobody uses it."""
    ended: str = ""
    """Why it was ended, where no result has said so."""

    @property
    def is_alive(self) -> bool:
        found = self.interpreter
        return found is not None and not self.ended and found.process.returncode is None

    def end_idle(self) -> None:
        if self.interpreter is not None:
            self.ended = f"the one before was ended, after {_IDLE_S / 60:g} idle minutes"
            self.interpreter.process.kill()

    async def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is not None:
            await interpreter.process.aclose()
            interpreter.close()


class PythonSessions:
    """The interpreters that stay.

    Args:
        start: Starts one for a call, and waits until it is ready.
        check: Raises if a call may not go on with one.
    """

    def __init__(
        self,
        start: Callable[[ToolContext, bool], Awaitable[Interpreter]],
        check: Callable[[ToolContext, Interpreter, bool], None],
    ) -> None:
        self._start = start
        self._check = check
        self._by_asker = dict[Asker, _Session]()

    def running(self, context: ToolContext) -> Interpreter | None:
        """Return the interpreter that the next call of an asker would get; from any thread."""
        session = self._by_asker.get(asker_of(context))
        return session.interpreter if session is not None and session.is_alive else None

    @asynccontextmanager
    async def opened(
        self, context: ToolContext, within: bool
    ) -> AsyncIterator[tuple[Interpreter, list[str]]]:
        """Give the interpreter of an asker when it is this call's turn, with notes about it.

        `within` says whether the code must keep within, and is passed on to `start` and `check`.
        The interpreter is ended if the block is left by an error or a cancellation: its code still
        runs then.

        Raises `ToolFailed` if there are as many as may be, and what `start` and `check` raise.
        """
        asker = asker_of(context)
        session = await self._session(asker)
        session.users += 1
        if session.timer is not None:
            session.timer.cancel()
        try:
            async with session.lock:
                notes = []
                interpreter = session.interpreter
                if interpreter is not None and session.is_alive:
                    self._check(context, interpreter, within)
                else:
                    lost = session.ended or (interpreter and "the one before has ended")
                    if lost:
                        notes.append(f"this is a new interpreter, without earlier names: {lost}")
                    await session.end()
                    session.interpreter = interpreter = await self._start(context, within)
                    session.ended = ""
                try:
                    yield interpreter, notes
                except BaseException:
                    session.ended = "its call was cancelled, or took too long"
                    await interpreter.process.aclose()
                    raise
                finally:
                    # What its threads write from now on comes before the next code's.
                    interpreter.output = CommandOutput(interpreter.process)
        finally:
            session.users -= 1
            if not session.users and session.is_alive:
                loop = asyncio.get_running_loop()
                session.timer = loop.call_later(_IDLE_S, session.end_idle)
            elif not session.users:
                await session.end()
                is_known = self._by_asker.get(asker) is session
                if is_known and not session.users and not session.ended:
                    del self._by_asker[asker]

    async def end(self, context: ToolContext) -> bool:
        """End the interpreter of an asker, also while it runs code; return whether it had one."""
        session = self._by_asker.get(asker_of(context))
        had_one = session is not None and session.is_alive
        if session is not None:
            session.ended = ""
            await session.end()
        return had_one

    async def end_all(self) -> None:
        """End all interpreters."""
        sessions = tuple(self._by_asker.values())
        self._by_asker.clear()
        for session in sessions:
            await session.end()

    async def _session(self, asker: Asker) -> _Session:
        if asker not in self._by_asker:
            for other, session in tuple(self._by_asker.items()):
                if not session.users and not session.is_alive:
                    if self._by_asker.get(other) is session:
                        del self._by_asker[other]
                    await session.end()
            if len(self._by_asker) >= _MAX_SESSIONS:
                text = f"{_MAX_SESSIONS} callers have an interpreter that stays, and no more may"
                text += " have one: leave `keep` out, or try again later"
                raise ToolFailed(text, retryable=True, details={"reason": "too_many"})
        return self._by_asker.setdefault(asker, _Session())
