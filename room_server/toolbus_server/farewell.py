"""How a server leaves: it tells everybody, lets calls in flight end, and ends what is left.

Who is told goes elsewhere by itself, or waits. No connection is closed here: that is the server's
work once this has ended. Nobody must come in any more by then (`Admission.draining`), and then the
door is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from websockets.asyncio.server import Server

from toolbus.wire import Notice, encode
from toolbus_server.flights import Seat
from toolbus_server.hub import Hub

__all__ = ["STAY_S", "close_door", "take_leave"]

STAY_S = 1.0
"""How long a server stays for those who are there, calls in flight or not (PROTOCOL.md, LEAVE-7).

A call that was sent before its caller was told is refused within it, where on a closed connection
nobody would know what became of it; and hosts are elsewhere before they are gone here.
"""


async def take_leave(hub: Hub, drain_s: float) -> None:
    """Tell everybody, and wait until all have gone or nothing is left to wait for.

    Args:
        hub: Who is there, and what is in flight.
        drain_s: How long that may take at most; calls that are still in flight then are ended.
    """
    hub.router.is_leaving = True
    notice = encode(Notice("leaving", {"grace_ms": int(drain_s * 1000)}))
    for seat in _seats(hub):
        if not seat.member.is_far:
            seat.port.send_message(notice)
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await _nothing_left(hub)
            while hub.router.in_flight:  # a call of another node came at the last moment
                await hub.router.quiet()
    hub.takes_calls = False
    for seat in list(_seats(hub)):
        hub.router.abandon(seat)


def _seats(hub: Hub) -> Iterator[Seat]:
    for open_room in hub.rooms.values():
        yield from open_room.room.seats.values()


async def _nothing_left(hub: Hub) -> None:
    either = [asyncio.ensure_future(wait) for wait in (hub.deserted(), _quiet(hub))]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in either:
            each.cancel()


async def _quiet(hub: Hub) -> None:
    await asyncio.sleep(STAY_S)
    await hub.router.quiet()


async def close_door(server: Server) -> None:
    """Listen no more, and return once `server` knows of everybody who was still taken.

    asyncio takes a connection and tells of it a turn or two of its loop later. A server that is
    closed in between forgets that one: its socket would stay open, and nobody would answer there.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        with suppress(NotImplementedError):  # not each loop takes connections in a reader
            loop.remove_reader(listening)
    await asyncio.sleep(0)  # who was taken before gets a transport, which a closed server refuses
    server.server.close()
    for _ in range(2):  # it is told of in the next turn; its handler is known from then on
        await asyncio.sleep(0)
