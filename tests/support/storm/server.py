"""A server of a storm in its own process: `python server.py KEYS PORT [REDIS]`.

With a Redis it is one of several nodes, whose leases are shorter than usual. It prints its address,
then what it holds for each line that it reads, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from support.rooms.leftovers import forget_ended, report_holdings
from toolbus import KeyRing
from toolbus.concurrency import event_loop
from toolbus_server import RoomServer, ServerSettings

__all__ = ["HEARTBEAT_S", "LEASE_S", "PING_INTERVAL_S", "PING_TIMEOUT_S"]

PING_INTERVAL_S, PING_TIMEOUT_S = 1.0, 3.0
DRAIN_S = 3.0
HEARTBEAT_S, LEASE_S = 1.0, 4.0


def held_by(server: RoomServer) -> dict[str, Any]:
    """Count what a server holds of calls and participants, and list the participants by name and
    id.
    """
    hub = server.hub
    forget_ended(hub.router._deadlines)
    forget_ended(hub.router.streams._stalls)
    for each in hub.rooms.values():  # callers that are gone come back to no stored decision
        away_holds = each.hold_requests.away
        for away in list(away_holds._of_calls.values()):
            if away.decision:
                away_holds.end(away.hold.tool)
    connections = [
        connection for each in hub.rooms.values() for connection in each.routed.connections.values()
    ]
    return {
        "in_flight": hub.router.in_flight,
        "connections": len(connections),
        "people": sorted(
            [connection.participant.identity.name, connection.participant.id]
            for connection in connections
        ),
        "hosts": sum(
            sum(len(generation.hosts) for generation in toolkit.generations)
            for each in hub.rooms.values()
            for toolkit in each.routed.state._by_order.values()
        ),
        "entries": sum(
            len(connection.calls) + len(connection.call_ids) + len(connection.dispatched)
            for connection in connections
        ),
        "host_in_flight": sum(connection.participant.in_flight for connection in connections),
        "streams": sum(connection.stream_count for connection in connections),
        "held": sum(
            len(each.hold_requests.table.open) + len(each.hold_requests.table.counts)
            for each in hub.rooms.values()
        )
        + sum(len(connection.asked) + connection.usage.held_bytes for connection in connections),
        "ahead": sum(connection.outstanding_bytes for connection in connections),
    }


def shorten_leases() -> None:
    """Let nodes notice each other's ends sooner, and give up their own lease sooner."""
    from toolbus_server.cluster import node

    node.HEARTBEAT_S, node.LEASE_S = HEARTBEAT_S, LEASE_S


async def main(keys: str, port: str, redis: str | None = None) -> None:
    """Serve until SIGTERM."""
    if redis is not None:
        shorten_leases()
    settings = ServerSettings(
        keys=KeyRing.load(Path(keys)),
        port=int(port),
        drain_s=DRAIN_S,
        ping_interval_s=PING_INTERVAL_S,
        ping_timeout_s=PING_TIMEOUT_S,
        redis=redis,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with RoomServer(settings) as server:
        print(json.dumps({"url": server.url}), flush=True)  # noqa: T201 - the parent reads it
        reporting = asyncio.create_task(report_holdings(lambda: held_by(server)))
        await stop.wait()
        reporting.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    event_loop.run(main(*sys.argv[1:]))
