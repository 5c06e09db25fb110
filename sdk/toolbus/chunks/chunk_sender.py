"""Sends the chunks of one call, at either end, within the receiver's credit.

Each chunk waits for credit and for the connection. The contents come from the caller of `send`:
`OutputStream` on the host, `InputSender` on the caller's side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from toolbus.wire import Frame, encode
from toolbus.wire.flow_control import SendWindow

__all__ = ["ChunkSender", "OutgoingConnection", "drain_if_behind"]

# After so much, one call yields to others on the event loop.
_BURST_CHUNKS, _BURST_BYTES = 32, 64 * 1024


class OutgoingConnection(Protocol):
    """A connection as seen by those who send on it."""

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""

    @property
    def is_behind(self) -> bool:
        """Whether a message that is sent now has to wait in a queue."""

    def gather(self) -> None:
        """Write small messages of this event-loop iteration together."""

    async def drained(self) -> None:
        """Wait until the queue is empty or the connection is closed."""

    def send_message(self, data: bytes) -> object:
        """Send a message, or drop it if the connection is closed."""


def drain_if_behind(connection: OutgoingConnection | None) -> Coroutine[Any, Any, None] | None:
    """Return a coroutine that waits for a connection's queue to drain; None if it need not."""
    if connection is None or not connection.is_behind or not connection.is_open:
        return None
    return connection.drained()


class ChunkSender:
    """Sends the chunks of one call, one at a time; without a connection they are dropped.

    `frame` makes the frame of a chunk from its number and the arguments of `send`. The initial
    credit is in chunks and in bytes, as totals.
    """

    __slots__ = (
        "_burst_bytes",
        "_burst_chunks",
        "_connection",
        "_frame",
        "_waiter",
        "_window",
        "is_stopped",
    )

    def __init__(
        self,
        connection: OutgoingConnection | None,
        frame: Callable[..., Frame],
        chunks: int = 0,
        total_bytes: int = 0,
    ) -> None:
        self._connection = connection
        self._frame = frame
        self._window = SendWindow(chunks, total_bytes)
        self._burst_chunks = self._burst_bytes = 0
        self._waiter: asyncio.Future[Any] | None = None
        """What a chunk waits for: credit or the connection."""
        self.is_stopped: bool = False
        """Whether `stop` was called."""

    def add_credit(self, chunks: int, total_bytes: int) -> None:
        """Add credit of the receiver, as totals since the call began; it may end a wait."""
        self._window.give(chunks, total_bytes)
        waiter = self._waiter
        if self._window.is_open and waiter is not None and not isinstance(waiter, asyncio.Task):
            if not waiter.done():
                waiter.set_result(None)

    async def ready(self) -> None:
        """Wait until a chunk may be sent: for credit, the connection, and other calls' iterations.

        Raises:
            CancelledError: `stop` was called.
        """
        if self._burst_chunks >= _BURST_CHUNKS or self._burst_bytes >= _BURST_BYTES:
            self._burst_chunks = self._burst_bytes = 0
            await asyncio.sleep(0)
        while not self.is_stopped and (wait := self._pending_wait()) is not None:
            self._waiter = wait
            try:
                await wait
            finally:
                self._waiter = None
                wait.cancel()
        if self.is_stopped:
            raise asyncio.CancelledError

    def _pending_wait(self) -> asyncio.Future[Any] | None:
        """Return a future to wait for before a chunk can be sent, or None."""
        if not self._window.is_open:
            return asyncio.get_running_loop().create_future()
        wait = drain_if_behind(self._connection)
        return None if wait is None else asyncio.create_task(wait)

    def send(self, body: bytes | None, *more: bool) -> None:
        """Send a packed chunk as the next one, after `ready`; None counts for no bytes."""
        size = 0 if body is None else len(body)
        self._burst_chunks += 1
        self._burst_bytes += size
        frame = self._frame(self._window.take(size), body, *more)
        if self._connection is not None:
            self._connection.gather()
            self._connection.send_message(encode(frame))

    def stop(self) -> None:
        """Send nothing more and cancel a waiting `ready`."""
        self.is_stopped = True
        if self._waiter is not None:
            self._waiter.cancel()
