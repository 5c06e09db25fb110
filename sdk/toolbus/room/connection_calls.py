"""The calls in flight on each connection of one participant, those it made and those it runs.

Usually there is one connection. While a server drains there are two, and each call ends on the
connection on which it began, with all its nested calls. `reconnecting_connection` decides which
connection is used for new calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from toolbus.chunks.result_parts import PARTS_VERSION
from toolbus.client.caller import REPLY_TIMEOUT_S, Caller
from toolbus.client.connection import Connection, Handlers
from toolbus.client.pending_requests import PendingRequests
from toolbus.errors import RoomException
from toolbus.hosting.runner import Runner
from toolbus.tools.call_room import CallRoom
from toolbus.wire import (
    AssessDispatch,
    Cancel,
    Credit,
    Dispatch,
    Drain,
    Event,
    Failed,
    Input,
    Progress,
    Result,
    StreamChunk,
)

__all__ = ["ConnectionCalls"]


class ConnectionCalls:
    """The calls of one participant, by connection.

    Args:
        caller: Uses the connection for new calls.
        pending: The requests that wait for their reply, of all connections.
        runner: Runs hosted toolkits, for all connections.
        make_room: Makes the room for a call's tool, from the caller that its nested calls use, the
            dispatch's id and its deadline by the loop's clock.
    """

    def __init__(
        self,
        caller: Caller,
        pending: PendingRequests,
        runner: Runner,
        make_room: Callable[[Caller, int, float | None], CallRoom],
    ) -> None:
        self._caller = caller
        self._pending = pending
        self._runner = runner
        self._make_room = make_room
        self._runners: dict[Connection, Runner] = {}

    def begin(self, connection: Connection) -> Handlers:
        """Serve a new connection; return the handlers of its frames."""
        runner = self._runner.for_connection(
            connection.websocket,
            partial(self._make_room, self._caller.bound_to(connection)),
            sends_parts=connection.version >= PARTS_VERSION,
        )
        self._runners[connection] = runner

        def credit(frame: Credit) -> None:
            # Credit for input belongs to a call made here, credit for chunks to a call run here.
            (self._pending.receive if frame.of_input else runner.on_stream_frame)(frame)

        pending = self._pending
        return {
            Result: pending.settle,
            Failed: pending.settle,
            StreamChunk: pending.receive,
            Progress: pending.receive,
            Dispatch: runner.dispatch,
            AssessDispatch: runner.dispatch,
            Cancel: runner.cancel,
            Input: runner.on_stream_frame,
            Credit: credit,
        }

    def lose(self, connection: Connection) -> None:
        """End the calls of a connection that is lost."""
        runner = self._runners.pop(connection, None)
        if runner is not None:
            runner.cancel_all()
        self._pending.lose(connection.websocket)

    async def finish(self, connection: Connection) -> None:
        """Accept no more calls on a connection, and wait until all on it have ended."""
        runner = self._runners.get(connection)
        connection.ignore(Event)  # the other connection receives the same events
        await self._request_drain(connection)
        if runner is not None:
            await runner.idle()
        await self._pending.settled(connection.websocket)
        await connection.flushed()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more calls, and wait until running ones have ended.

        Args:
            timeout_s: Seconds that this may take; calls that still run then are cancelled.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for connection in list(self._runners):
                    await self._request_drain(connection)
                for connection, runner in list(self._runners.items()):
                    await runner.idle()
                    await connection.flushed()
        await self.stop()

    async def stop(self) -> None:
        """Cancel every call that runs here, and wait for those that can be stopped."""
        for runner in self._runners.values():
            runner.cancel_all()
        await self._runner.stop()

    def close(self) -> None:
        """End all calls: the participant leaves the room."""
        for connection in list(self._runners):
            self.lose(connection)
        self._pending.close()

    async def _request_drain(self, connection: Connection) -> None:
        deadline_at = asyncio.get_running_loop().time() + REPLY_TIMEOUT_S
        with suppress(RoomException):  # it is lost, or its server is older
            caller = self._caller.bound_to(connection)
            await caller.ask(Drain, {}, deadline_at=deadline_at)
