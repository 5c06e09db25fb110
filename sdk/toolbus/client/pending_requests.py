"""The requests of one participant that wait for their replies; each is settled exactly once.

A request is settled by its reply, the loss of its connection, its deadline or its removal. Frames
before the reply are passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from threading import get_ident
from typing import Any

from msgspec import Struct

from toolbus.chunks.receive_credit import BufferBudget
from toolbus.client.inbound_stream import InboundStream
from toolbus.client.local_errors import check_loop
from toolbus.concurrency.timers import Alarm
from toolbus.errors import ConnectionLost, DeadlineExceeded, Executed, RoomException
from toolbus.wire import Credit, Failed, Progress, Result, StreamChunk, exception_of

__all__ = ["PendingRequest", "PendingRequests"]

_PAUSE_PER_REQUEST_S, _MAX_PAUSE_S = 0.000_01, 0.02


class PendingRequest(Struct, eq=False):
    """A request that waits for its reply; as a ticket it records whether it was sent."""

    id: int
    future: Any
    """Receives the end: a future, or an `InboundStream` if chunks come before it."""
    ends_at: float
    """The deadline by the loop's clock; infinity for none."""
    websocket: Any = None
    """The connection that it was sent on and that its reply arrives on."""
    written: bool = False
    ended: bool = False
    on_result: Callable[[Any], None] | None = None
    """Called with the connection when the result arrives, before what arrives after it."""

    @property
    def executed(self) -> Executed:
        """Whether a call's tool ran, as far as this side knows."""
        return "maybe" if self.written else "no"


class PendingRequests:
    """The requests of one participant, on all its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._pending: dict[int, PendingRequest] = {}
        self._alarm = Alarm(loop, self._expire_due)
        self._last_id = 0
        self.dropped: int = 0
        """Number of replies and chunks that were late or for unknown requests; never an error."""
        self.budget: BufferBudget = BufferBudget()
        """Buffer memory of all streams."""

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, deadline_at: float) -> PendingRequest:
        """Open a request with a new id; it ends by itself at its deadline by the loop's clock.

        Raises `Unavailable` in another loop: every request passes here before it is sent.
        """
        # To ask for the running loop takes a system call (for the process id), which each call
        # would pay for. Where this loop runs in this thread, no other one does.
        if get_ident() != self._thread or not self._loop.is_running():
            check_loop(self._loop)
        self._last_id += 1
        pending = PendingRequest(self._last_id, self._loop.create_future(), deadline_at)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        return pending

    def open_stream(
        self, stream: InboundStream, deadline_at: float, websocket: Any
    ) -> PendingRequest:
        """Open a request whose chunks and end go to a stream; infinity is no deadline.

        Raises `Unavailable` in another loop.
        """
        check_loop(self._loop)
        self._last_id += 1
        pending = PendingRequest(self._last_id, stream, deadline_at, websocket)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        stream.attach(pending, self.remove)
        return pending

    def close(self) -> None:
        """End all requests; none is opened any more."""
        self.lose_all()
        self._alarm.close()

    def settle(self, reply: Result | Failed) -> None:
        """Pass a reply to the task that waits for it.

        A reply that no task waits for is dropped and counted.
        """
        pending = self._pending.pop(reply.id, None)
        if pending is None:
            self.dropped += 1
            return
        pending.ended = True
        waiting = pending.future
        if waiting.done():
            self.dropped += 1
        elif isinstance(reply, Result):
            if pending.on_result is not None:
                pending.on_result(pending.websocket)
            waiting.set_result(reply)
        else:
            waiting.set_exception(exception_of(reply))

    def receive(self, frame: StreamChunk | Credit | Progress) -> None:
        """Pass a frame to its call before the call's end, or drop it if no task waits for the call.

        The first chunk of a call without a stream becomes its result; a dropped chunk is counted.
        """
        pending = self._pending.get(frame.id)
        waiting: Any = None if pending is None else pending.future
        if isinstance(waiting, InboundStream):
            waiting.receive(frame)
        elif isinstance(frame, StreamChunk):
            if pending is None or waiting.done():
                self.dropped += 1
                return
            stream = InboundStream(self.budget)
            pending.future = stream
            stream.attach(pending, self.remove)
            stream.receive(frame)
            waiting.set_result(stream)

    def remove(self, pending: PendingRequest) -> bool:
        """Remove a request that no task waits for; return whether it was pending."""
        pending.ended = True
        return self._pending.pop(pending.id, None) is not None

    def _expire_due(self, now: float) -> float:
        """End the requests whose deadline has passed; return when to check again.

        All are scanned: there are rarely more than the server allows one participant. To use at
        most a hundredth of the time even if deadlines follow each other closely, an end may be late
        by 10 us for each pending request, and by 20 ms at most.
        """
        for pending in [request for request in self._pending.values() if request.ends_at <= now]:
            message = "no reply arrived before the deadline"
            self._end(pending, DeadlineExceeded(message, executed=pending.executed))
        waiting = [request.ends_at for request in self._pending.values()]
        pause_s = min(len(waiting) * _PAUSE_PER_REQUEST_S, _MAX_PAUSE_S)
        return max(min(waiting, default=inf), now + pause_s)

    def lose_all(self) -> None:
        """End all requests: the connection is lost."""
        for pending in list(self._pending.values()):
            self._lose(pending)

    def lose(self, websocket: Any) -> None:
        """End the requests that were sent on a lost connection."""
        for pending in list(self._pending.values()):
            if pending.websocket is websocket:
                self._lose(pending)

    def _lose(self, pending: PendingRequest) -> None:
        self._end(pending, ConnectionLost("the connection was lost", executed=pending.executed))

    def _end(self, pending: PendingRequest, error: RoomException) -> None:
        if self.remove(pending) and not pending.future.done():
            pending.future.set_exception(error)

    async def settled(self, websocket: Any) -> None:
        """Wait until no request that was sent on a connection is pending."""
        while waiting := [
            request.future.ended() if isinstance(request.future, InboundStream) else request.future
            for request in self._pending.values()
            if request.websocket is websocket and not request.future.done()
        ]:
            await asyncio.wait(waiting)
