"""The requests of one participant that wait for their answers: each is settled exactly once.

By its answer, by the loss of the connection, by its time, or by being given up; what comes before
that is handed over.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from msgspec import Struct

from toolbus.call_flow import CallFlow
from toolbus.deadlines import Alarm
from toolbus.errors import ConnectionLost, DeadlineExceeded, Executed, RoomException
from toolbus.inflow import Shares
from toolbus.wire import Credit, Failed, Progress, Result, StreamChunk, exception_of

__all__ = ["CallTable", "Pending"]

_LOOK_S, _MOST_LOOK_S = 0.000_01, 0.02


class Pending(Struct, eq=False):
    """A request that waits for its answer; as a ticket it tells whether it was sent at all."""

    id: int
    future: Any
    """Told of the end: a future, or a `CallFlow` where chunks come before that."""
    ends_at: float
    """When its time is up, by the loop's clock; infinity where it has all the time."""
    connection: Any = None
    """What it was sent on; its answer comes by no other."""
    written: bool = False
    ended: bool = False

    @property
    def executed(self) -> Executed:
        """What this side knows by itself of whether a call's tool ran."""
        return "maybe" if self.written else "no"


class CallTable:
    """The requests of one participant, on whichever connection they were sent.

    Args:
        loop: Where the futures live.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, Pending] = {}
        self._alarm = Alarm(loop, self._expire_due)
        self._last_id = 0
        self.dropped: int = 0
        """Late and unknown answers and chunks: counted, never fatal."""
        self.shares: Shares = Shares()
        """The memory of all flows."""

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, deadline_at: float) -> Pending:
        """Open a request with an id of its own; at a time by the loop's clock it ends by itself."""
        self._last_id += 1
        pending = Pending(self._last_id, self._loop.create_future(), deadline_at)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        return pending

    def open_flow(self, flow: CallFlow, deadline_at: float, connection: Any) -> Pending:
        """Open a request whose chunks and end go to a flow; with infinity it has all the time."""
        self._last_id += 1
        pending = Pending(self._last_id, flow, deadline_at, connection)
        self._pending[pending.id] = pending
        if deadline_at < self._alarm.at:
            self._alarm.set(deadline_at)
        flow.attach(pending, self.give_up)
        return pending

    def close(self) -> None:
        """End everything; no request is opened any more."""
        self.lose_all()
        self._alarm.close()

    def settle(self, reply: Result | Failed) -> None:
        """Hand an answer to whoever waits for it.

        One that nobody waits for is dropped and counted.
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
            waiting.set_result(reply)
        else:
            waiting.set_exception(exception_of(reply))

    def take(self, frame: StreamChunk | Credit | Progress) -> None:
        """Hand what comes before an end to the call it is of, or drop it where nobody waits.

        The first chunk of a call that has no flow is its answer; one that is dropped is counted.
        """
        pending = self._pending.get(frame.id)
        waiting: Any = None if pending is None else pending.future
        if isinstance(waiting, CallFlow):
            waiting.take(frame)
        elif isinstance(frame, StreamChunk):
            if pending is None or waiting.done():
                self.dropped += 1
                return
            flow = CallFlow(self.shares)
            pending.future = flow
            flow.attach(pending, self.give_up)
            flow.take(frame)
            waiting.set_result(flow)

    def give_up(self, pending: Pending) -> bool:
        """Forget a request that nobody waits for any more; return whether it was under way."""
        pending.ended = True
        return self._pending.pop(pending.id, None) is not None

    def _expire_due(self, now: float) -> float:
        """End the requests whose time is up and whose answer did not come; say when to look again.

        All are gone through: there are hardly ever more than the server lets one participant have.
        So that this takes no more than a hundredth of the time where their times follow close upon
        each other, an end may be late by 10 us for each that waits, and by 20 ms at most.
        """
        for pending in [each for each in self._pending.values() if each.ends_at <= now]:
            words = "no answer came in time"
            self._end(pending, DeadlineExceeded(words, executed=pending.executed))
        waiting = [each.ends_at for each in self._pending.values()]
        pause_s = min(len(waiting) * _LOOK_S, _MOST_LOOK_S)
        return max(min(waiting, default=inf), now + pause_s)

    def lose_all(self) -> None:
        """End everything: there is no connection any more."""
        for pending in list(self._pending.values()):
            self._lose(pending)

    def lose(self, connection: Any) -> None:
        """End what was sent on a connection that is gone."""
        for pending in list(self._pending.values()):
            if pending.connection is connection:
                self._lose(pending)

    def _lose(self, pending: Pending) -> None:
        self._end(pending, ConnectionLost("the connection was lost", executed=pending.executed))

    def _end(self, pending: Pending, error: RoomException) -> None:
        if self.give_up(pending) and not pending.future.done():
            pending.future.set_exception(error)

    async def settled(self, connection: Any) -> None:
        """Wait until nothing that was sent on a connection waits for its answer."""
        while waiting := [
            each.future.over() if isinstance(each.future, CallFlow) else each.future
            for each in self._pending.values()
            if each.connection is connection and not each.future.done()
        ]:
            await asyncio.wait(waiting)
