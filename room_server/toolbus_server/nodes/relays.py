"""Calls of participants at other nodes to hosts at this one."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from toolbus.errors import NoHost, Unavailable
from toolbus.wire import Dispatch
from toolbus_server.flights import Flight, Seat
from toolbus_server.hub import Hub
from toolbus_server.nodes.peer import Peer, RelayedCall
from toolbus_server.request_options import STREAM_OPTIONS
from toolbus_server.room_view import Toolkit

__all__ = ["Relays"]


class Relays:
    """Makes flights of the calls that come from other nodes.

    Their own nodes have judged them; here it is seen whether the host is still there.

    Args:
        hub: Where the rooms are.
        loop: Its clock.
    """

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop

    def take(self, peer: Peer, relayed: RelayedCall) -> None:
        """Dispatch a call to its host.

        Raises:
            NoHost: The host is not here any more, or takes no more calls; the caller's node may
                know of another one by now.
            Unavailable: This node has not heard of the caller yet, or not of its principal; or
                either has gone.
            RoomException: It cannot be written to the host.
        """
        if not self._hub.takes_calls:
            raise NoHost("the host's server has left", retry_after_s=0.05)
        room_name, host_id, caller_id, principal_id, hops, dispatch = relayed
        open_room = self._hub.rooms.get(room_name)
        host = None if open_room is None else open_room.room.seats.get(host_id)
        if open_room is None or host is None or host.member.is_draining or host.member.is_far:
            raise NoHost("the host has moved", retry_after_s=0.05)
        room = open_room.room
        caller = room.seats.get(caller_id)
        principal = None if principal_id is None else room.seats.get(principal_id)
        if caller is None or (principal_id is not None and principal is None):
            words = "the host's server does not know the caller yet"
            raise Unavailable(words, executed="no", retry_after_s=0.05)
        header = dict(dispatch.header)
        toolkit = _toolkit(host, dispatch, header)
        flight = self._flight(caller, host, principal, hops, dispatch, toolkit)
        options = {name: header[name] for name in STREAM_OPTIONS.keys() & header.keys()}
        if options:
            self._hub.router.streams.open(flight, options | {"idle_ms": 0}, header)
        self._hub.router.relay(room, flight, dispatch, header)

    def _flight(
        self,
        caller: Seat,
        host: Seat,
        principal: Seat | None,
        hops: int,
        dispatch: Dispatch,
        toolkit: Toolkit,
    ) -> Flight:
        now = self._loop.time()
        timeout_ms = dispatch.remaining_ms
        host.last_dispatch += 1
        definition = toolkit.serving.definition
        return Flight(
            caller,
            dispatch.id,
            dispatch.call_id,
            host,
            host.last_dispatch,
            None if principal is None else principal.member,
            hops,
            inf if timeout_ms is None else now + timeout_ms / 1000,
            now,
            definition.tools[dispatch.tool],
            definition,
        )


def _toolkit(host: Seat, dispatch: Dispatch, header: dict[str, Any]) -> Toolkit:
    is_public = header.get("private") is not True
    for toolkit in host.member.toolkits:
        if toolkit.name == dispatch.toolkit and toolkit.public == is_public:
            if dispatch.tool in toolkit.serving.definition.tools:
                return toolkit
    raise NoHost(f"the host of {dispatch.toolkit} has moved", retry_after_s=0.05)
