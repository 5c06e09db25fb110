"""On whose account a call is made: by the server's own tables, never by what a frame says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolbus.errors import LoopDetected, PermissionDenied
from toolbus_server.flights import Room, Seat
from toolbus_server.limits import Limits
from toolbus_server.room_view import Member

__all__ = ["OWN", "Authority", "authority_of"]


class Authority(NamedTuple):
    """On whose account a call is made, how deep it is, and how long it may take at most."""

    principal: Member | None
    hops: int
    deadline_at: float | None


OWN = Authority(None, 1, None)
"""Of a call that is nobody's child and for nobody else."""


def authority_of(room: Room, caller: Seat, options: Mapping[str, Any], limits: Limits) -> Authority:
    """Find principal, depth and time of a call.

    Raises:
        PermissionDenied: Its parent is not in flight here, or the caller may not act for that one.
        LoopDetected: It is too deep within others.
    """
    on_behalf_of = options.get("on_behalf_of")
    parent_id = options.get("parent")
    if parent_id is None:
        return Authority(_principal(room, caller, on_behalf_of), 1, None)
    parent = caller.dispatched.get(parent_id)
    if parent is None:
        raise PermissionDenied("the parent call is not in flight on this connection")
    if parent.hops >= limits.max_hops:
        raise LoopDetected(f"more than {limits.max_hops} calls within each other")
    principal = parent.principal or parent.caller.member
    if on_behalf_of is not None and on_behalf_of != principal.identity.name:
        raise PermissionDenied("a nested call acts for the principal of its parent only")
    return Authority(principal, parent.hops + 1, parent.deadline_at)


def _principal(room: Room, caller: Seat, name: str | None) -> Member | None:
    if name is None:
        return None
    # Whether somebody is here is told to those alone who may act for that name.
    if not caller.member.rights.may_act_for(name):
        raise PermissionDenied(f"no grant to act for {name[:64]!r} (agents.act_for)")
    principal = room.state.named(name)
    if principal is None:
        several = room.state.all_named(name)
        words = "several here have the name" if several else "nobody here is named"
        raise PermissionDenied(f"{words} {name[:64]!r}", details={"on_behalf_of": name[:64]})
    return principal
