"""Forwarded requests: what a host asks for the caller of the call that it runs (CALL-29).

A forwarded call is checked as that caller's own call would be, and as a call of the host besides.
So it reaches nothing that one of the two could not reach alone: a caller is not led past its grants
by a host that has more, and a host does not get at what only its callers may call. What the host
itself owns is the exception: it could run that code without any call.

`callers` are those that a request is forwarded for, the nearest first. There are several if the
call that the host runs was forwarded too; the last of them made its call itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from toolbus.errors import NotFound, PermissionDenied
from toolbus_server.calls.call_state import Connection, RoutedRoom
from toolbus_server.registry.call_checks import bad_option, read_option
from toolbus_server.registry.models import Participant, RegisteredToolkit

__all__ = [
    "Callers",
    "callers_behind",
    "check_forwarders",
    "readers_of",
    "resolve_for",
]

Callers: TypeAlias = tuple[Participant, ...]


def callers_behind(forwarder: Connection, options: Mapping[str, Any]) -> Callers:
    """Return the participants that a request is forwarded for; none if it is not forwarded.

    Raises:
        InvalidArguments: The option has another type, or there is no `parent`.
        PermissionDenied: The parent is not in flight here, or one of them has left.
    """
    if not read_option(options, "forward", bool):
        return ()
    parent_id = read_option(options, "parent", int)
    if parent_id is None:
        raise bad_option("forward", "must come with the option parent")
    parent = forwarder.dispatched.get(parent_id)
    if parent is None:
        raise PermissionDenied("the parent call is not in flight on this connection")
    callers = (parent.caller.participant, *parent.forwarded_for)
    if not all(caller.is_present and not caller.has_expired for caller in callers):
        raise PermissionDenied("the participant that the call is forwarded for has left")
    return callers


def resolve_for(
    room: RoutedRoom, participant: Participant, callers: Callers, name: str, owner: str | None
) -> RegisteredToolkit:
    """Find the toolkit that a name means for who asks: the last of the callers, if there are any.

    All those through whom it is forwarded have to see it too. Raises as `RoomState.resolve`.
    """
    if not callers:
        return room.state.resolve(participant, name, owner)
    toolkit = room.state.resolve(callers[-1], name, owner)
    if not all(map(toolkit.is_visible_to, _forwarders(participant, callers))):
        raise NotFound(f"toolkit {name[:64]} not found")
    return toolkit


def check_forwarders(
    forwarder: Participant, callers: Callers, toolkit: RegisteredToolkit, tool: str
) -> None:
    """Refuse a tool that one of those may not call through whom it is forwarded.

    The grants of the last of the callers are checked as for any call. Raises PermissionDenied.
    """
    for host in _forwarders(forwarder, callers):
        if host.identity != toolkit.owner and not host.may_call(toolkit.name, tool):
            name = f"{toolkit.name}.{tool}"
            details = {"grant": "agents.call", "lacks": "host", "tool": name}
            raise PermissionDenied(f"{host.full_name} has no grant for {name}", details=details)


def readers_of(
    toolkit: RegisteredToolkit, participant: Participant, callers: Callers
) -> list[Participant]:
    """Return the participants that must all be able to read what a description of it shows."""
    if not callers:
        return [participant]
    hosts = _forwarders(participant, callers)
    return [callers[-1], *(host for host in hosts if host.identity != toolkit.owner)]


def _forwarders(forwarder: Participant, callers: Callers) -> Iterator[Participant]:
    yield forwarder
    yield from callers[:-1]
