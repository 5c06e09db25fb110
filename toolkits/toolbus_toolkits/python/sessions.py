"""The interpreters that stay between the calls of an asker: one for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolbus import ToolContext, ToolFailed
from toolbus_toolkits.callers import MAX_ASKERS, Asker, LastUsed, asker_of
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

    @property
    def is_alive(self) -> bool:
        return self.interpreter is not None and self.interpreter.process.returncode is None


class PythonSessions:
    """The interpreters that stay.

    Args:
        start: Starts one for a call, and waits until it is ready.
        check: Raises if a call may not go on with one.
    """

    def __init__(
        self,
        start: Callable[[ToolContext], Awaitable[Interpreter]],
        check: Callable[[ToolContext, Interpreter], None],
    ) -> None:
        self._start = start
        self._check = check
        self._by_asker = dict[Asker, _Session]()
        self._lost = LastUsed[Asker, str](MAX_ASKERS)
        """Why the last interpreter of an asker ended between calls."""

    def running(self, context: ToolContext) -> Interpreter | None:
        """Return the interpreter that the next call of an asker would get; from any thread."""
        session = self._by_asker.get(asker_of(context))
        return session.interpreter if session is not None and session.is_alive else None

    @asynccontextmanager
    async def opened(self, context: ToolContext) -> AsyncIterator[tuple[Interpreter, list[str]]]:
        """Give the interpreter of an asker when it is this call's turn, with notes about it.

        It is ended if the block is left by an error or a cancellation: its code still runs then.

        Raises `ToolFailed` if there are as many as may be, and what `start` and `check` raise.
        """
        asker = asker_of(context)
        session = self._by_asker.get(asker)
        if session is None:
            self._by_asker = {
                other: found
                for other, found in self._by_asker.items()
                if found.users or found.is_alive
            }
            if len(self._by_asker) >= _MAX_SESSIONS:
                text = f"{_MAX_SESSIONS} callers have an interpreter that stays, and no more may"
                text += " have one: leave `keep` out, or try again later"
                raise ToolFailed(text, retryable=True, details={"reason": "too_many"})
            session = self._by_asker[asker] = _Session()
        session.users += 1
        if session.timer is not None:
            session.timer.cancel()
        try:
            async with session.lock:
                notes = []
                if session.interpreter is not None and session.is_alive:
                    self._check(context, session.interpreter)
                else:
                    if session.interpreter is not None:
                        self._lost[asker] = "it had ended by itself"
                        session.interpreter.close()
                    session.interpreter = None
                    session.interpreter = await self._start(context)
                    lost = self._lost.pop(asker, None)
                    if lost is not None:
                        notes.append(f"this is a new interpreter, without earlier names: {lost}")
                interpreter = session.interpreter
                assert interpreter is not None
                try:
                    yield interpreter, notes
                except BaseException:
                    await interpreter.process.aclose()
                    raise
                finally:
                    # What its threads write from now on comes before the next code's.
                    interpreter.output = CommandOutput(interpreter.process)
        finally:
            session.users -= 1
            if not session.users:
                self._rest(asker, session)

    async def end(self, context: ToolContext) -> bool:
        """End the interpreter of an asker, also while it runs code; return whether it had one."""
        asker = asker_of(context)
        interpreter = self.running(context)
        self._lost.pop(asker, None)
        if interpreter is None:
            return False
        await interpreter.process.aclose()
        session = self._by_asker.get(asker)
        if session is not None and not session.users:
            self._rest(asker, session)
        return True

    async def end_all(self) -> None:
        """End all interpreters."""
        sessions = tuple(self._by_asker.values())
        self._by_asker.clear()
        self._lost.clear()
        for session in sessions:
            if session.timer is not None:
                session.timer.cancel()
            if session.interpreter is not None:
                await session.interpreter.process.aclose()
                session.interpreter.close()

    def _rest(self, asker: Asker, session: _Session) -> None:
        """Let an unused interpreter end after a while, and forget one that has ended."""
        if session.is_alive:
            loop = asyncio.get_running_loop()
            session.timer = loop.call_later(_IDLE_S, self._end_idle, asker, session)
            return
        if session.timer is not None:
            session.timer.cancel()
        if session.interpreter is not None:
            session.interpreter.close()
        if self._by_asker.get(asker) is session:
            del self._by_asker[asker]

    def _end_idle(self, asker: Asker, session: _Session) -> None:
        if session.interpreter is not None:
            session.interpreter.process.kill()
            session.interpreter.close()
        if self._by_asker.get(asker) is session:
            del self._by_asker[asker]
            self._lost[asker] = f"the one before was ended, after {_IDLE_S / 60:g} idle minutes"
