"""The principal, depth and deadline of a call, from the server's own tables; nested refusals.

Nothing that a frame claims is trusted: a parent call must be in flight on the caller's connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolbus.auth.participant_names import MAX_NAME_CHARS
from toolbus.errors import LoopDetected, PermissionDenied, RoomException
from toolbus.wire import Assess, Call, Explain
from toolbus_server.calls.call_state import Connection, Delegation, InFlightCall, RoutedRoom
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import check_principal
from toolbus_server.registry.models import (
    Identity,
    Participant,
    RegisteredToolkit,
    pack_builders,
)

__all__ = [
    "ROOT_CONTEXT",
    "CallContext",
    "authorities",
    "builders_of",
    "call_context",
    "check_authority",
    "complete_refusal",
]


class CallContext(NamedTuple):
    """For whom a call is made, how deep it is nested, and the deadline that it inherits."""

    principal: Participant | None
    hops: int
    deadline_at: float | None
    is_named: bool = False
    """As `InFlightCall.is_named`."""
    delegation: Delegation | None = None
    """Set if it has a principal, at the caller's node."""
    forwarded_for: tuple[Participant, ...] = ()
    """As `InFlightCall.forwarded_for`."""


ROOT_CONTEXT = CallContext(None, 1, None)
"""That of a call without a parent, made on the caller's own behalf."""


def call_context(
    room: RoutedRoom,
    caller: Connection,
    request: Call | Assess | Explain,
    options: Mapping[str, Any],
    limits: Limits,
) -> CallContext:
    """Find the principal, the depth and the inherited deadline of a call.

    Raises:
        PermissionDenied: Its parent is not in flight here, or is an assessment, within which
            nothing runs; the caller may not act for the principal, or the principal has left.
        InvalidArguments: The principal is named with an unknown alias.
        LoopDetected: It is nested too deeply.
    """
    on_behalf_of = options.get("on_behalf_of")
    parent_id = options.get("parent")
    if parent_id is None:
        principal = _principal(room, caller, on_behalf_of)
        if principal is None:
            return ROOT_CONTEXT
        return CallContext(principal, 1, None, True, Delegation(room, None))
    parent = caller.dispatched.get(parent_id)
    if parent is None:
        raise PermissionDenied("the parent call is not in flight on this connection")
    if parent.patterns is not None and type(request) is not Assess:
        # Else a host that was only asked could act with the authority of who asked.
        raise PermissionDenied("nothing runs within an assessment")
    if parent.hops >= limits.max_hops:
        raise LoopDetected(f"more than {limits.max_hops} calls within each other")
    principal = parent.principal or parent.caller.participant
    # No grant `act_for`: it only narrows what the host may call itself. Nor may it name the caller
    # of a parent that has a principal, who would lend its grants to whom it acts for.
    if on_behalf_of is not None and _named(room, caller, on_behalf_of) != principal.identity:
        raise PermissionDenied("a nested call acts for the principal of its parent only")
    present = authorities(room, principal, is_named=parent.is_named)
    if not present:
        raise PermissionDenied("the participant that the call is made for has left")
    delegation = Delegation(room, parent)
    return CallContext(present[0], parent.hops + 1, parent.deadline_at, parent.is_named, delegation)


def authorities(
    room: RoutedRoom, principal: Participant, *, is_named: bool
) -> Sequence[Participant]:
    """Return the participants whose grants must all cover a call for a principal (CALL-27).

    Those are the connections of its identity if it was named, else its own. Without one that is in
    the room with a valid token, the call has no authority.
    """
    if not is_named:
        return (principal,) if principal.is_present and not principal.has_expired else ()
    return _connections_of(room, principal.identity)


def check_authority(
    room: RoutedRoom, context: CallContext, toolkit: RegisteredToolkit, tool: str
) -> None:
    """Refuse a call whose principal, if it has one, may not call the tool itself.

    Raises PermissionDenied.
    """
    if context.principal is not None:
        present = authorities(room, context.principal, is_named=context.is_named)
        check_principal(present, toolkit, tool)


def builders_of(call: InFlightCall) -> bytes:
    """Pack what all of those may ask a host to build who are behind a call with a principal.

    Those are its caller, whom that forwards it for, and the principal, by all of the connections
    that its authority depends on (BUILD-3): an agent in between adds nothing to what the first
    caller may. To be called while the call begins, at the caller's node.
    """
    assert call.principal is not None, "builders of a call without one are in its caller's header"
    assert call.delegation is not None, "a call with a principal is listed at its caller's node"
    present = authorities(call.delegation.room, call.principal, is_named=call.is_named)
    behind = (call.caller.participant, *call.forwarded_for, *present)
    return pack_builders(
        tuple(dict.fromkeys(participant.scope.agents.builders for participant in behind))
    )


def _connections_of(room: RoutedRoom, identity: Identity) -> Sequence[Participant]:
    return [
        participant
        for participant in room.state.participants_of(identity)
        if not participant.has_expired
    ]


def _named(room: RoutedRoom, caller: Connection, name: str) -> Identity:
    return room.state.issuers.identity_of(name, caller.participant.identity, "on_behalf_of")


def _principal(room: RoutedRoom, caller: Connection, name: str | None) -> Participant | None:
    if name is None:
        return None
    identity = _named(room, caller, name)
    # Only a caller that may act for the name learns whether such a participant is connected.
    if not room.state.issuers.may_act_for(caller.participant, identity):
        raise PermissionDenied(
            f"no grant to act for {name[:64]!r} (agents.act_for)",
            details={"grant": f"agents.act_for={name[:MAX_NAME_CHARS]}"},
        )
    present = _connections_of(room, identity)
    if not present:
        message = f"no participant here is named {name[:64]!r}"
        raise PermissionDenied(message, details={"on_behalf_of": name[:64]})
    return present[0]


def complete_refusal(
    room: RoutedRoom, caller: Connection, request: Call | Assess | Explain, error: RoomException
) -> None:
    """Add to the refusal of a nested call what the caller of its parent may know (ERR-9).

    That is who lacks the grant: the host that made the call, or the principal; and the name of the
    tool, if that caller may list or call it.
    """
    options = request.options or {}
    if "lacks" not in error.details or "parent" not in options:
        return
    parent = caller.dispatched.get(options["parent"])
    if parent is None:
        return
    if options.get("forward"):
        # The refusal is that of the call that the last caller would make itself: is it nested?
        is_nested = parent.hops - len(parent.forwarded_for) > 1
        if error.details["lacks"] == "caller" and is_nested:
            error.details["lacks"] = "host"
        return
    if error.details["lacks"] == "caller":
        error.details["lacks"] = "host"
    informed, owner = parent.caller.participant, options.get("participant")
    toolkit = room.state.resolve(caller.participant, request.toolkit, owner)
    if toolkit.is_visible_to(informed) and informed.rights.may_read(toolkit.name, request.tool):
        error.details["tool"] = f"{toolkit.name}.{request.tool}"
