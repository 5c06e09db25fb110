"""Asks the participants of an isolated node to connect to another one.

A participant keeps its connection, and its calls go on, until another server has accepted it
(PROTOCOL.md, LEAVE-11). So nothing is lost where there is no other server to connect to. Those that
stay are asked again.
"""

from __future__ import annotations

import asyncio
from math import ceil

from toolbus.wire import Notice, encode
from toolbus_server.calls.call_state import Connection
from toolbus_server.rooms.hub import Hub

__all__ = ["Relocation"]

_SLICE_S = 0.1
_SLICES = 10
_MAX_SLICE = 50
"""Participants that are asked at once: others have to admit them."""
_AGAIN_S = 3.0
_MOVE = encode(Notice("move", {}))


class Relocation:
    """Sends the notices, in slices and repeatedly.

    Args:
        hub: The rooms of this server.
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
            await self._ask_all()
            await asyncio.sleep(_AGAIN_S)

    async def _ask_all(self) -> None:
        """Ask hosts first: the toolkits of a host that has moved can be called from all nodes."""
        present = sorted(
            self._present(), key=lambda connection: not connection.participant.toolkits
        )
        size = min(_MAX_SLICE, ceil(len(present) / _SLICES))
        while present:
            asked, present = present[:size], present[size:]
            for connection in asked:
                connection.port.send_message(_MOVE)
            await asyncio.sleep(_SLICE_S)

    def _present(self) -> list[Connection]:
        """Return the participants of this node that have not moved."""
        return [
            session.connection
            for room in self._hub.rooms.values()
            for session in room.sessions.values()
            if not session.connection.participant.is_draining
        ]
