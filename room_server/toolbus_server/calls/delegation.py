"""For whom calls are made, from the server's own tables, and the end of those that lose that right.

Nothing that a frame claims is trusted: a parent call must be in flight on the caller's connection.
A call loses its authority with that of the call around it, or of its principal. One call may be the
outermost of thousands, so calls end in steps. A call that waits for its end takes no part in any
check.

A forwarded request is what a host asks for the caller of the call that it runs (CALL-29). It is
checked as that caller's own call would be, and as a call of the host besides. So it reaches nothing
that one of the two could not reach alone: a caller is not led past its grants by a host that has
more, and a host does not get at what only its callers may call. What the host itself owns is the
exception: it could run that code without any call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from toolbus.auth.participant_names import MAX_NAME_CHARS
from toolbus.errors import LoopDetected, NotFound, PermissionDenied, RoomException
from toolbus.wire import Assess, Call, Explain
from toolbus_server.calls.call_state import Connection, Delegation, InFlightCall, RoutedRoom
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import bad_option, check_principal, read_option
from toolbus_server.registry.models import Identity, Participant, RegisteredToolkit, pack_builders

__all__ = [
    "MAX_ENDS_PER_ITERATION",
    "ROOT_CONTEXT",
    "CallContext",
    "DelegatedCalls",
    "GradualEnds",
    "builders_of",
    "call_context",
    "callers_behind",
    "check_authority",
    "check_forwarders",
    "complete_refusal",
    "has_authority",
    "readers_of",
    "resolve_for",
]

Callers: TypeAlias = tuple[Participant, ...]
"""Those that a request is forwarded for, the nearest first.

There are several if the call that the host runs was forwarded too; the last of them made its call
itself.
"""
MAX_ENDS_PER_ITERATION = 128
"""Calls that end in one event-loop iteration, 1 to 2 ms; the next ones end in the next."""
_PARENT_ENDED = "the call that this one was nested in has ended"
_PRINCIPAL_LOST = "the participant that the call was made for has left, or lost the grant for it"
_AGENT_LOST = "the caller lost the grant to act for the participant (agents.act_for)"


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


class GradualEnds:
    """Ends many calls in steps, so that the calls of others are served between two of them.

    A connection that closes, or a call that others are nested in, may end thousands of calls. One
    that waits for its end may still end in another way, as by its deadline. `executed` is decided
    when it ends: what its host is sent meanwhile counts.

    This is not a job of the scheduler of `rooms`: there it would take turns with the events and
    walks of all participants, and a caller would learn only after them that its host is lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[InFlightCall, Callable[[InFlightCall], None]]] = deque()
        self._is_running = False

    def add(self, calls: Iterable[InFlightCall], end: Callable[[InFlightCall], None]) -> None:
        """End calls with `end`, after those that were added before; the first ones at once."""
        self._waiting.extend((call, end) for call in calls)
        if not self._is_running:
            self._run()

    def _run(self) -> None:
        self._is_running = True
        try:
            for _ in range(MAX_ENDS_PER_ITERATION):
                if not self._waiting:
                    break
                call, end = self._waiting.popleft()
                if not call.ended:
                    end(call)
        finally:  # one that fails with a bug keeps no other from its end
            if self._waiting:
                self._loop.call_soon(self._run)
            else:
                self._is_running = False


class DelegatedCalls:
    """The calls in flight that are nested in others, or made for a principal.

    Args:
        ends: Ends them in steps.
        cancel: Ends a call at its host and, with this message, at its caller.
    """

    def __init__(self, ends: GradualEnds, cancel: Callable[[str, InFlightCall], None]) -> None:
        self._ends = ends
        self._cancel = cancel

    def add(self, call: InFlightCall, delegation: Delegation) -> None:
        """List a call that was dispatched for a principal, until `remove`."""
        assert call.principal is not None, "a listed call has a principal"
        delegation.room.delegated.setdefault(call.principal.identity, {})[call] = None
        parent = delegation.parent
        if parent is not None:
            if parent.nested is None:
                parent.nested = {}
            parent.nested[call] = None

    def remove(self, call: InFlightCall, delegation: Delegation) -> None:
        """Remove a listed call that has ended."""
        assert call.principal is not None, "a listed call has a principal"
        identity, delegated = call.principal.identity, delegation.room.delegated
        del delegated[identity][call]
        if not delegated[identity]:
            del delegated[identity]
        if delegation.parent is not None and delegation.parent.nested is not None:
            del delegation.parent.nested[call]

    def end_nested(self, calls: Iterable[InFlightCall]) -> None:
        """End the calls within one that has ended, and those within them."""
        self._end(calls, _PARENT_ENDED)

    def check_principal(self, room: RoutedRoom, participant: Participant) -> None:
        """End the calls that are made for a participant and that it may not make any more.

        To be called after it left its room, or got other grants.
        """
        calls = room.delegated.get(participant.identity)
        if calls is not None:
            self._end(_unauthorized(room, calls), _PRINCIPAL_LOST)

    def check_agent(self, caller: Connection) -> None:
        """End the calls of a caller for those that a newer token does not let it act for."""
        agent = caller.participant
        lost = [
            call
            for call in caller.calls.values()
            if call.is_named and call.hops == 1 and call.principal and call.delegation
            if not call.delegation.room.state.issuers.may_act_for(agent, call.principal.identity)
        ]
        self._end(lost, _AGENT_LOST)

    def _end(self, calls: Iterable[InFlightCall], message: str) -> None:
        self._ends.add(calls, partial(self._cancel, message))


def has_authority(room: RoutedRoom, call: InFlightCall) -> bool:
    """Whether a call, which may wait for its end in a step, still has the authority to run."""
    if call.ended or not call.caller.participant.is_present or not call.host.participant.is_present:
        return False
    if call.delegation is not None and call.delegation.parent is not None:
        if not has_authority(room, call.delegation.parent):
            return False
    return call.principal is None or not _unauthorized(room, [call])


def _unauthorized(room: RoutedRoom, calls: Iterable[InFlightCall]) -> list[InFlightCall]:
    """Choose the calls without authority; each tool is checked once for each principal."""
    known: dict[tuple[int, int, int], bool] = {}
    lost = []
    for call in calls:
        key = (call.is_named or id(call.principal), id(call.definition), id(call.tool))
        is_authorized = known.get(key)
        if is_authorized is None:
            assert call.principal is not None, "a listed call has a principal"
            present = authorities(room, call.principal, is_named=call.is_named)
            toolkit, tool = call.definition.name, call.tool.name
            is_authorized = bool(present) and all(who.may_call(toolkit, tool) for who in present)
            known[key] = is_authorized
        if not is_authorized:
            lost.append(call)
    return lost
