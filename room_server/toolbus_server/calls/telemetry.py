"""The server's spans: one SERVER span for each sampled call, none for others.

A call between two nodes has one span at each of them, the host's below the caller's: the time of
the hop is the difference between them. The hop has no CLIENT span, like the one between a server
and a host: such a span would begin and end with the SERVER span above it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from toolbus.errors import InvalidArguments, NotFound, RoomException
from toolbus.telemetry.attributes import CALLER_NODE, HOST_NODE, NODE, SharedAttributes
from toolbus.telemetry.tracing import (
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
from toolbus_server.calls.call_state import InFlightCall, RoutedRoom
from toolbus_server.registry.models import Participant
from toolbus_server.registry.room_state import RoomState

__all__ = ["CallSpan", "ServerTelemetry"]


class ServerTelemetry:
    """Records the calls of one server.

    Args:
        tracing: Where spans go; the process's own OpenTelemetry set-up unless given.
    """

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing or Tracing()

    def begin(
        self,
        room: RoutedRoom,
        call: InFlightCall,
        received: TraceContext,
        header: dict[str, Any],
        *,
        trusted: bool,
    ) -> str | None:
        """Begin the span of a call that is to be dispatched, if it is sampled.

        If trusted, the span continues the trace that was received; else it is a new root with a
        link, and what the sender sent is not forwarded.

        Returns:
            The `traceparent` for the host, whose `tracestate` is added to the header.
        """
        span = None
        if received.sampled:
            method = f"{call.definition.name}.{call.tool.name}"
            call.span = span = self._tracing.start_server(
                method,
                call.call_id,
                received=received,
                trusted=trusted,
                attributes=_attributes_of(room, call),
            )
        context = forwarded(span, received, trusted=trusted)
        if context is None:
            return None
        if context.sampled:
            call.traceparent = context.traceparent
        if context.tracestate is not None:
            header[TRACESTATE] = context.tracestate
        return context.traceparent

    def refuse_call(
        self, room: RoutedRoom, caller: Participant, request: Call, error: RoomException
    ) -> None:
        """Record a sampled call that ended before it was dispatched.

        The name of an unregistered tool is not recorded.
        """
        received = read_trace_context(request.traceparent, request.options)
        if received is None or not received.sampled:
            return
        registered = _is_registered(room.state, caller, request)
        attributes = call_attributes(room=room.state.name, caller=caller.full_name)
        if room.replication is not None:
            attributes |= {NODE: room.replication.node}
        span = self._tracing.start_server(
            recorded_method(f"{request.toolkit}.{request.tool}", registered=registered),
            request.call_id,
            received=received,
            trusted=caller.scope.trace,
            attributes=attributes,
        )
        if span is not None:
            span.end(error)


def _is_registered(room: RoomState, caller: Participant, request: Call) -> bool:
    """Whether the request names a tool that is visible to its caller."""
    participant = (request.options or {}).get("participant")
    if not isinstance(participant, str | None):
        return False
    try:
        toolkit = room.resolve(caller, request.toolkit, participant)
    except (NotFound, InvalidArguments):
        return False
    return toolkit.serving.definition.tool(request.tool) is not None


def _attributes_of(room: RoutedRoom, call: InFlightCall) -> SharedAttributes:
    principal, caller, host = call.principal, call.caller.participant, call.host.participant
    return _attributes(
        room.state.name,
        caller.full_name,
        None if principal is None else principal.full_name,
        host.id,
        None if room.replication is None else room.replication.node,
        caller.node,
        host.node,
    )


@lru_cache(maxsize=1_024)
def _attributes(  # noqa: PLR0913 - a parameter for each attribute
    room: str,
    caller: str,
    on_behalf_of: str | None,
    host: str,
    node: str | None,
    caller_node: str,
    host_node: str,
) -> SharedAttributes:
    """Make the attributes of a call; cached, as most calls have few callers and hosts."""
    attributes = call_attributes(room=room, caller=caller, on_behalf_of=on_behalf_of, host=host)
    nodes = {NODE: node, CALLER_NODE: caller_node, HOST_NODE: host_node}
    return SharedAttributes(attributes | {key: name for key, name in nodes.items() if name})
