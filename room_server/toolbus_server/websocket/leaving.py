"""How participants leave a server that drains, or that is isolated from the other nodes.

Those that are notified connect elsewhere, or wait. No connection is closed here: a server that has
drained does that afterwards. `Admission.draining` must be set before, so that no participant joins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from math import ceil

from websockets.asyncio.server import Server

from toolbus.concurrency.tasks import wait_for_first
from toolbus.wire import Notice, encode
from toolbus_server.calls.call_state import Connection
from toolbus_server.rooms.hub import Hub

__all__ = ["STAY_S", "Relocation", "drain", "stop_accepting"]

STAY_S = 1.0
"""How long a server keeps connections open, calls in flight or not (PROTOCOL.md, LEAVE-7).

A call that was sent before its caller got the notice is refused in this time; on a closed
connection its outcome would be unknown. And hosts connect elsewhere before they disappear here.
"""
_SLICE_S = 0.1
_SLICES = 10
_MAX_SLICE = 50
"""Participants that are asked at once: others have to admit them."""
_AGAIN_S = 3.0
_MOVE = encode(Notice("move", {}))


async def drain(hub: Hub, drain_s: float) -> None:
    """Notify participants, and wait until all have left or no call is in flight.

    What waits for a person ends at once (PROTOCOL.md, HOLD-18): it is not in flight any more.
    """
    hub.router.is_draining = True
    notice = encode(Notice("leaving", {"grace_ms": int(drain_s * 1000)}))
    for connection in _connections(hub):
        if not connection.participant.is_remote:
            connection.port.send_message(notice)
    for connection in list(_connections(hub)):  # callers have the notice: they ask elsewhere
        hub.router.end_holds_at(connection)
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await wait_for_first(hub.wait_until_empty(), _until_idle(hub))
            while hub.router.in_flight:  # another node's call may have come at the last moment
                await hub.router.wait_until_idle()
    hub.accepts_remote_calls = False
    for connection in list(_connections(hub)):
        hub.router.fail_hosted_calls(connection)


def _connections(hub: Hub) -> Iterator[Connection]:
    for open_room in hub.rooms.values():
        yield from open_room.routed.connections.values()


async def _until_idle(hub: Hub) -> None:
    await asyncio.sleep(STAY_S)
    await hub.router.wait_until_idle()


async def stop_accepting(server: Server) -> None:
    """Stop listening, and return once `server` has registered every accepted connection.

    asyncio accepts a connection and reports it one or two iterations of the loop later. A server
    that is closed in between loses that one: its socket would stay open, without an answer.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        with suppress(NotImplementedError):  # not every loop accepts in a reader
            loop.remove_reader(listening)
    await asyncio.sleep(0)  # accepted sockets get transports, which a closed server refuses
    server.server.close()
    for _ in range(2):  # one iteration reports the connection, and starts its handler
        await asyncio.sleep(0)


class Relocation:
    """Asks the participants of an isolated node to connect to another one, in slices, repeatedly.

    A participant keeps its connection, and its calls go on, until another server has accepted it
    (PROTOCOL.md, LEAVE-11). So nothing is lost where there is no other server to connect to.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._task: asyncio.Task[None] | None = None

    def set_active(self, is_active: bool) -> None:
        """Start to ask participants, or stop."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if is_active:
            self._task = asyncio.get_running_loop().create_task(self._ask_repeatedly())

    async def _ask_repeatedly(self) -> None:
        while True:
            present = [
                session.connection
                for room in self._hub.rooms.values()
                for session in room.sessions.values()
                if not session.connection.participant.is_draining  # else it has moved
            ]
            # Hosts first: the toolkits of a host that has moved can be called from all nodes.
            present.sort(key=lambda connection: not connection.participant.toolkits)
            size = min(_MAX_SLICE, ceil(len(present) / _SLICES))
            while present:
                asked, present = present[:size], present[size:]
                for connection in asked:
                    connection.port.send_message(_MOVE)
                await asyncio.sleep(_SLICE_S)
            await asyncio.sleep(_AGAIN_S)
