"""Requests under way: which answer belongs to which, and what becomes of them when no answer comes.

A `CallTable` owns correlation and nothing else. Every request opened here is settled exactly once:
by its answer, by the loss of the connection, by its time, or by being given up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from toolbus.errors import ConnectionLost, DeadlineExceeded, Executed
from toolbus.wire import Failed, Result, exception_of

__all__ = ["CallTable", "Pending"]

Reply: TypeAlias = Result | Failed


@dataclass(slots=True, eq=False)
class Pending:
    """A request that waits for its answer; as a ticket it tells whether it was sent at all."""

    id: int
    future: asyncio.Future[Result]
    written: bool = False
    ended: bool = False

    @property
    def executed(self) -> Executed:
        """What this side knows by itself of whether a call's tool ran."""
        return "maybe" if self.written else "no"


class CallTable:
    """The requests of one connection at a time.

    Args:
        loop: Where the futures live.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, Pending] = {}
        self._last_id = 0
        self.dropped = 0
        """Late and unknown answers: counted, never fatal."""

    def __len__(self) -> int:
        return len(self._pending)

    def open(self) -> Pending:
        """Open a request with an id of its own."""
        self._last_id += 1
        pending = Pending(self._last_id, self._loop.create_future())
        self._pending[pending.id] = pending
        return pending

    def settle(self, reply: Reply) -> None:
        """Hand an answer to whoever waits for it.

        One that nobody waits for is dropped and counted.
        """
        pending = self._pending.pop(reply.id, None)
        if pending is None:
            self.dropped += 1
            return
        pending.ended = True
        if pending.future.done():
            self.dropped += 1
        elif isinstance(reply, Result):
            pending.future.set_result(reply)
        else:
            pending.future.set_exception(exception_of(reply))

    def give_up(self, pending: Pending) -> bool:
        """Forget a request that nobody waits for any more; return whether it was under way."""
        pending.ended = True
        return self._pending.pop(pending.id, None) is not None

    def expire(self, pending: Pending) -> None:
        """End a request whose time is up and whose answer did not come."""
        if self.give_up(pending) and not pending.future.done():
            error = DeadlineExceeded("no answer came in time", executed=pending.executed)
            pending.future.set_exception(error)

    def lose_all(self) -> None:
        """End everything: the connection is gone."""
        lost, self._pending = self._pending, {}
        for pending in lost.values():
            pending.ended = True
            if not pending.future.done():
                error = ConnectionLost("the connection was lost", executed=pending.executed)
                pending.future.set_exception(error)
