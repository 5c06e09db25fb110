"""The chunks of one call on their way out, at either end of it, as far and as fast as they may go.

Each waits for the other side's credit and for its connection. What they hold and where they come
from is decided by who sends them: `hosted_stream` at the host, `input_sender` at the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from toolbus.wire import Frame, encode
from toolbus.wire.windows import SendWindow

__all__ = ["Outflow", "OutgoingLine", "catching_up"]

# One call's turn: so much it may send before others have theirs.
_TURN_CHUNKS, _TURN_BYTES = 32, 64 * 1024


class OutgoingLine(Protocol):
    """A connection, as those know it who send by it."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""

    def gather(self) -> None:
        """Let small messages that are sent in this turn of the loop leave together."""

    async def caught_up(self) -> None:
        """Wait until nothing has to wait any more, or the connection is gone."""

    def send_message(self, data: bytes) -> object:
        """Send a message, or drop it where nothing can be sent any more."""


def catching_up(line: OutgoingLine | None) -> Coroutine[Any, Any, None] | None:
    """Return what waits for a connection that is behind, to be run; None where none is."""
    if line is None or not line.is_behind or not line.is_open:
        return None
    return line.caught_up()


class Outflow:
    """The way out for the chunks of one call, one at a time.

    Args:
        line: The connection; without one, chunks are dropped.
        frame: Makes the frame of a chunk, from its number and what `send` was given.
        chunks: The credit to begin with, as totals.
        total_bytes: Likewise.
    """

    __slots__ = (
        "_frame",
        "_line",
        "_turn_bytes",
        "_turn_chunks",
        "_waiter",
        "_window",
        "is_stopped",
    )

    def __init__(
        self,
        line: OutgoingLine | None,
        frame: Callable[..., Frame],
        chunks: int = 0,
        total_bytes: int = 0,
    ) -> None:
        self._line = line
        self._frame = frame
        self._window = SendWindow(chunks, total_bytes)
        self._turn_chunks = self._turn_bytes = 0
        self._waiter: asyncio.Future[Any] | None = None
        """Where a chunk waits, for credit or for the connection."""
        self.is_stopped: bool = False
        """Whether `stop` was called."""

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit of the other side's."""
        self._window.give(chunks, total_bytes)
        waiter = self._waiter
        if self._window.is_open and waiter is not None and not isinstance(waiter, asyncio.Task):
            if not waiter.done():
                waiter.set_result(None)

    async def room(self) -> None:
        """Wait until a chunk may go: for credit and the connection, and for others' turns.

        Raises:
            CancelledError: Nothing more is to be sent.
        """
        if self._turn_chunks >= _TURN_CHUNKS or self._turn_bytes >= _TURN_BYTES:
            self._turn_chunks = self._turn_bytes = 0
            await asyncio.sleep(0)
        while not self.is_stopped and (waiting := self._obstacle()) is not None:
            self._waiter = waiting
            try:
                await waiting
            finally:
                self._waiter = None
                waiting.cancel()
        if self.is_stopped:
            raise asyncio.CancelledError

    def _obstacle(self) -> asyncio.Future[Any] | None:
        """Return what has to be waited for before a chunk can go, if there is something."""
        if not self._window.is_open:
            return asyncio.get_running_loop().create_future()
        waiting = catching_up(self._line)
        return None if waiting is None else asyncio.create_task(waiting)

    def send(self, body: bytes | None, *more: bool) -> None:
        """Send a packed chunk as the next one, once there is `room` for it.

        Args:
            body: The chunk; None is none, and counts for no bytes.
            more: What its frame says besides.
        """
        size = 0 if body is None else len(body)
        self._turn_chunks += 1
        self._turn_bytes += size
        frame = self._frame(self._window.take(size), body, *more)
        if self._line is not None:
            self._line.gather()
            self._line.send_message(encode(frame))

    def stop(self) -> None:
        """Send nothing more; who waits for room is cancelled."""
        self.is_stopped = True
        if self._waiter is not None:
            self._waiter.cancel()
