"""The server's spans: one SERVER span for each sampled call, and nothing for others."""

from __future__ import annotations

from toolbus.errors import NotFound, RoomException
from toolbus.telemetry import (
    CallSpan,
    TraceContext,
    Tracing,
    call_attributes,
    read_trace_context,
    recorded_method,
)
from toolbus.wire import Call
from toolbus_server.room_state import RoomState
from toolbus_server.room_view import Member

__all__ = ["CallSpan", "ServerTelemetry"]


class ServerTelemetry:
    """Records the calls of one server.

    Args:
        tracing: Where spans go; the process's own OpenTelemetry set-up unless given.
    """

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing or Tracing()

    def open_call(
        self,
        call: Call,
        received: TraceContext,
        attributes: dict[str, str],
        caller: Member,
        *,
        registered: bool = True,
    ) -> CallSpan | None:
        """Begin the span of a sampled call.

        Without the caller's grant `trace` it is a new root with a link. A name that nobody
        registered is not recorded.
        """
        return self._tracing.start_server(
            recorded_method(f"{call.toolkit}.{call.tool}", registered=registered),
            call.call_id,
            received=received,
            trusted=caller.scope.trace,
            attributes=attributes,
        )

    def refuse_call(
        self, room: RoomState, caller: Member, call: Call, error: RoomException
    ) -> None:
        """Record a sampled call that ended before a host had it."""
        received = read_trace_context(call.traceparent, call.options)
        if received is None or not received.sampled:
            return
        attributes = call_attributes(room=room.name, caller=caller.identity.name)
        registered = _is_registered(room, caller, call)
        span = self.open_call(call, received, attributes, caller, registered=registered)
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
