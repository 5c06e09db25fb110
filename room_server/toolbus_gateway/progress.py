"""The progress of one call, for a client that asked for it."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeGuard

from toolbus.untrusted_text import visible
from toolbus_gateway.limits import HEARTBEAT_S

__all__ = ["ProgressSender"]

_MAX_UNSENT = 64
"""Values that wait for a client that reads slowly; a tool may emit any number of them."""
_MAX_MESSAGE_CHARS = 1_000
"""Of a message made from another value: it is one line for people."""
_STEP_DIGITS = 4
_SMALL_STEP = 10**-_STEP_DIGITS
"""What a message adds to a tool's own number: MCP wants more each time, and the tool may say next
that it has come a little further. It comes to 0.1 in three hours of silence."""
_Send: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]


class ProgressSender:
    """Sends what a tool emits, and something every 10 s while it emits nothing.

    Args:
        send: Sends progress, total and message; it may wait for the client to read.
        heartbeat_s: Seconds without progress after which a message without news is sent.
    """

    def __init__(self, send: _Send, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._send = send
        self._heartbeat_s = heartbeat_s
        self._unsent: deque[Any] = deque(maxlen=_MAX_UNSENT)
        self._has_unsent = asyncio.Event()
        self._is_sending = asyncio.Lock()
        self._progress = 0.0
        self._total: float | None = None
        self._step = 1.0
        """What a message without a number of the tool adds."""

    def emit(self, value: Any) -> None:
        """Send a value soon; of many that the client does not read the latest count."""
        self._unsent.append(value)
        self._has_unsent.set()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send while the block runs; what was emitted before its end is sent."""
        task = asyncio.create_task(self._run())
        try:
            yield
            await self._flush()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._has_unsent.wait()
            except TimeoutError:
                self._unsent.append(None)
            await self._flush()

    async def _flush(self) -> None:
        # Its end waits for a value that the task has taken: cancelling would lose that one.
        async with self._is_sending:
            while self._unsent:
                await self._send(*self._facts(self._unsent.popleft()))
            self._has_unsent.clear()

    def _facts(self, value: Any) -> tuple[float, float | None, str | None]:
        """Return progress, total and message of a value; None is a message without news.

        MCP wants each progress to be more than the one before. Those of a tool are its own matter.
        """
        match value:
            case {"progress": progress, **others} if _is_number(progress):
                total: Any = others.get("total")
                self._total = total if _is_number(total) else None
                self._progress = progress
                self._step = _SMALL_STEP
                message = others.get("message")
                return progress, self._total, message if isinstance(message, str) else None
            case None:
                return *self._grown(), None
        return *self._grown(), _message(value)

    def _grown(self) -> tuple[float, float | None]:
        """Return the next progress, and the total if it is still more."""
        stepped = round(self._progress + self._step, _STEP_DIGITS)
        # A step is nothing beside a very large number.
        more = max(stepped, math.nextafter(self._progress, math.inf))
        if math.isfinite(more):  # JSON has no infinity
            self._progress = more
        is_within = self._total is not None and self._progress <= self._total
        return self._progress, self._total if is_within else None


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether JSON has this number; true and false are numbers in Python alone."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _message(value: Any) -> str:
    """Return a value as a line: a text as it is, an event of an agent in words."""
    match value:
        case str():
            text = value
        case {"type": "text", "text": str(words)}:
            text = words[-_MAX_MESSAGE_CHARS:]  # of an answer that grows, its latest words
        case {"type": "tool_call", "tool": str(tool)}:
            text = f"calls {tool}"
        case {"type": "progress", "tool": str(tool), "value": of_tool}:
            text = f"{tool}: {_message(of_tool)}"
        case {"type": "tool_result", "tool": str(tool), "state": str(state)}:
            text = f"{tool}: {state}"
        case {"type": "restart"}:
            text = "asks the model again"
        case {"type": "dropped"}:
            text = "the model does not see all of what was said before"
        case {"message": str(words)}:
            text = words
        case _:
            text = json.dumps(value, ensure_ascii=False, default=str)  # a file is named
    return visible(text, _MAX_MESSAGE_CHARS)
