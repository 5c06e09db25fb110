"""What a server in this process holds: connections, calls in flight, a monitor of calls."""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus_server.testing import TestServer

INTERVAL_S, SILENCE_S = 0.4, 1.2


def connection_of(server: TestServer, name: str) -> Any:
    connections = server.server.hub.rooms["lab"].routed.connections.values()
    return next(
        connection for connection in connections if connection.participant.identity.name == name
    )


async def until_in_flight(server: TestServer, count: int) -> None:
    async with asyncio.timeout(60):
        while server.server.hub.router.in_flight != count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


def is_watched(server: TestServer, room: str = "lab") -> bool:
    return server.server.hub.rooms[room].routed.monitor is not None
