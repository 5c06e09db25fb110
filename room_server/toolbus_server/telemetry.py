"""The server's spans: one SERVER span for each sampled call, and nothing for others.

Where nodes are one bus each of the two that a call passes has one, the host's below the caller's:
what the hop takes is what lies between them. There is no CLIENT span for it, as there is none
between a server and a host: it would begin and end with the SERVER span above it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from toolbus.errors import NotFound, RoomException
from toolbus.semantics import CALLER_NODE, HOST_NODE, NODE, SharedAttributes
from toolbus.telemetry import (
    TRACESTATE,
    CallSpan,
    TraceContext,
    Tracing,
    call_attributes,
    forwarded,
    read_trace_context,
    recorded_method,
)
from toolbus.wire import Call
from toolbus_server.flights import Flight, Room
from toolbus_server.room_state import RoomState
from toolbus_server.room_view import Member

__all__ = ["CallSpan", "ServerTelemetry"]


_FACTS_KEPT = 1_024


class ServerTelemetry:
    """Records the calls of one server.

    Args:
        tracing: Where spans go; the process's own OpenTelemetry set-up unless given.
    """

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing or Tracing()

    def begin(
        self,
        room: Room,
        flight: Flight,
        received: TraceContext,
        header: dict[str, Any],
        *,
        trusted: bool,
    ) -> str | None:
        """Begin the span of a call that is to be handed over, if it is sampled.

        Args:
            room: Where it is made.
            flight: The call, which then has the span.
            received: What its sender sent.
            header: Gets the `tracestate` that travels on.
            trusted: Whether the span continues the sender's trace; else it is a new root with a
                link, and what was sent goes no further.

        Returns:
            The `traceparent` that travels on.
        """
        span = None
        if received.sampled:
            method = f"{flight.definition.manifest.name}.{flight.tool.name}"
            flight.span = span = self._tracing.start_server(
                method,
                flight.call_id,
                received=received,
                trusted=trusted,
                attributes=_facts_of(room, flight),
            )
        context = forwarded(span, received, trusted=trusted)
        if context is None:
            return None
        flight.traceparent = context.traceparent if context.sampled else None
        if context.tracestate is not None:
            header[TRACESTATE] = context.tracestate
        return context.traceparent

    def refuse_call(self, room: Room, caller: Member, call: Call, error: RoomException) -> None:
        """Record a sampled call that ended before a host had it.

        A name that nobody registered is not recorded.
        """
        received = read_trace_context(call.traceparent, call.options)
        if received is None or not received.sampled:
            return
        registered = _is_registered(room.state, caller, call)
        attributes = call_attributes(room=room.state.name, caller=caller.identity.name)
        span = self._tracing.start_server(
            recorded_method(f"{call.toolkit}.{call.tool}", registered=registered),
            call.call_id,
            received=received,
            trusted=caller.scope.trace,
            attributes=attributes | _own_node(room),
        )
        if span is not None:
            span.end(error)


def _is_registered(room: RoomState, caller: Member, call: Call) -> bool:
    """Whether the call names a tool that its caller may know of, whatever it was refused for."""
    participant = call.options.get("participant") if call.options else None
    if not isinstance(participant, str | None):
        return False
    try:
        toolkit = room.resolve(caller, call.toolkit, participant)
    except NotFound:
        return False
    return call.tool in toolkit.serving.definition.tools


def _facts_of(room: Room, flight: Flight) -> SharedAttributes:
    principal, caller, host = flight.principal, flight.caller.member, flight.host.member
    return _facts(
        room.state.name,
        caller.identity.name,
        None if principal is None else principal.identity.name,
        host.id,
        None if room.share is None else room.share.node,
        caller.node if caller.is_far else None,
        host.node if host.is_far else None,
    )


@lru_cache(maxsize=_FACTS_KEPT)
def _facts(  # noqa: PLR0913 - a parameter for each fact
    room: str,
    caller: str,
    behalf: str | None,
    host: str,
    node: str | None,
    caller_node: str | None,
    host_node: str | None,
) -> SharedAttributes:
    """Collect who is in a call: most calls are of few callers and hosts."""
    facts = call_attributes(room=room, caller=caller, on_behalf_of=behalf, host=host)
    nodes = {NODE: node, CALLER_NODE: caller_node, HOST_NODE: host_node}
    return SharedAttributes(facts | {key: name for key, name in nodes.items() if name is not None})


def _own_node(room: Room) -> dict[str, str]:
    return {} if room.share is None else {NODE: room.share.node}
