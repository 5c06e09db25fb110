"""Calls of participants at other nodes to hosts at this one."""

from __future__ import annotations

from math import inf
from typing import Any

from toolbus.errors import NoHost, Unavailable
from toolbus.wire import AssessDispatch, Dispatch, unpack_body
from toolbus_server.calls.call_state import Connection, RoutedRoom
from toolbus_server.calls.delegation import CallContext
from toolbus_server.cluster.peer import Peer, RelayedCall
from toolbus_server.registry.call_checks import STREAM_OPTION_TYPES, check_pin
from toolbus_server.registry.models import Participant, RegisteredToolkit
from toolbus_server.rooms.hub import Hub

__all__ = ["InboundCalls"]


class InboundCalls:
    """Dispatches the calls that arrive from other nodes.

    The caller's node has authorized them; this node checks that the host is still connected.

    Args:
        hub: The rooms of this node.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def accept(self, peer: Peer, relayed: RelayedCall) -> None:
        """Dispatch a call to its host.

        Raises:
            NoHost: The host has left this node, or accepts no more calls; the caller's node may
                know another one by now.
            DefinitionChanged: The call is pinned, and the host has replaced its definition.
            Unavailable: This node does not know the caller or its principal, not yet or no longer.
            RoomException: The call cannot be sent to the host.
        """
        if not self._hub.accepts_remote_calls:
            raise NoHost("the host's server has left", retry_after_s=0.05)
        room_name, host_id, caller_id, principal_id, hops, is_named, dispatch = relayed
        open_room = self._hub.rooms.get(room_name)
        host = None if open_room is None else open_room.routed.connections.get(host_id)
        if (
            open_room is None
            or host is None
            or host.participant.is_draining
            or host.participant.is_remote
        ):
            raise NoHost("the host has moved", retry_after_s=0.05)
        room = open_room.routed
        caller = room.connections.get(caller_id)
        principal = None if principal_id is None else room.connections.get(principal_id)
        if caller is None or (principal_id is not None and principal is None):
            raise _unknown_caller_error()
        header = dict(dispatch.header)
        forwarded_for = _forwarded_for(room, header)
        pin = header.pop("pin", None)
        toolkit = _toolkit_of(host, dispatch, header)
        if pin is not None:
            _check_definition(host, toolkit, pin)
        tool = toolkit.serving.definition.tools[dispatch.tool]
        acted_for = None if principal is None else principal.participant
        context = CallContext(acted_for, hops, None, is_named, None, forwarded_for)
        timeout_s = inf if dispatch.remaining_ms is None else dispatch.remaining_ms / 1000
        router = self._hub.router
        call = router.open_call(caller, dispatch, (toolkit, tool, context, host), timeout_s)
        if isinstance(dispatch, AssessDispatch):
            router.dispatch(call, dispatch, header, None)
            return
        options = {name: header[name] for name in STREAM_OPTION_TYPES.keys() & header.keys()}
        if options:
            router.streams.open(call, options | {"idle_ms": 0}, header)
        router.dispatch_relayed(room, call, dispatch, header)


def _toolkit_of(
    host: Connection, dispatch: Dispatch | AssessDispatch, header: dict[str, Any]
) -> RegisteredToolkit:
    is_public = header.get("private") is not True
    for toolkit in host.participant.toolkits:
        if toolkit.name == dispatch.toolkit and toolkit.public == is_public:
            if dispatch.tool in toolkit.serving.definition.tools:
                return toolkit
    raise NoHost(f"the host of {dispatch.toolkit} has moved", retry_after_s=0.05)


def _forwarded_for(room: RoutedRoom, header: dict[str, Any]) -> tuple[Participant, ...]:
    """Return those that a call was forwarded for: the calls that its host forwards are theirs."""
    packed = header.get("forwarded_for")
    if packed is None:
        return ()
    ids = [unpack_body(info)[0] for info in unpack_body(packed, binary=True)]
    known = [room.connections[caller] for caller in ids if caller in room.connections]
    if len(known) != len(ids):
        raise _unknown_caller_error()
    return tuple(connection.participant for connection in known)


def _unknown_caller_error() -> Unavailable:
    message = "the host's server does not know the caller yet"
    return Unavailable(message, executed="no", retry_after_s=0.05)


def _check_definition(host: Connection, toolkit: RegisteredToolkit, pin: str) -> None:
    """Refuse a call that is pinned to another definition than its host has now."""
    for generation in toolkit.generations:
        if host.participant in generation.hosts:
            check_pin(toolkit, pin, generation)
