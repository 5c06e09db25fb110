"""Ends calls that lost their authority: that of the call around them, or of their principal.

One call may be the outermost of thousands, so they end in steps. A call that waits for its end
takes no part in any check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from toolbus_server.calls.call_state import Connection, Delegation, InFlightCall, RoutedRoom
from toolbus_server.calls.gradual_ends import GradualEnds
from toolbus_server.calls.principal import authorities
from toolbus_server.registry.models import Participant

__all__ = ["DelegatedCalls"]

_PARENT_ENDED = "the call that this one was nested in has ended"
_PRINCIPAL_LOST = "the participant that the call was made for has left, or lost the grant for it"
_AGENT_LOST = "the caller lost the grant to act for the participant (agents.act_for)"


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


def _unauthorized(room: RoutedRoom, calls: Iterable[InFlightCall]) -> list[InFlightCall]:
    """Choose the calls without authority; each tool is checked once for each principal."""
    known: dict[tuple[int, int, int], bool] = {}
    lost = []
    for call in calls:
        key = (call.is_named or id(call.principal), id(call.definition), id(call.tool))
        is_authorized = known.get(key)
        if is_authorized is None:
            is_authorized = known[key] = _is_authorized(room, call)
        if not is_authorized:
            lost.append(call)
    return lost


def _is_authorized(room: RoutedRoom, call: InFlightCall) -> bool:
    assert call.principal is not None, "a listed call has a principal"
    present = authorities(room, call.principal, is_named=call.is_named)
    toolkit, tool = call.definition.name, call.tool.name
    return bool(present) and all(participant.may_call(toolkit, tool) for participant in present)
