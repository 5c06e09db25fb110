"""The server's spans: one SERVER span for each sampled call, and nothing for others."""

from __future__ import annotations

from typing import Any

from toolbus.errors import NotFound, RoomException
from toolbus.telemetry import (
    CallSpan,
    TraceContext,
    Tracing,
    call_attributes,
    forwarded,
    read_trace_context,
    recorded_method,
)
from toolbus.wire import Call
from toolbus_server.room_state import Member

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
        header: dict[str, Any],
        attributes: dict[str, str],
        *,
        trusted: bool,
    ) -> CallSpan | None:
        """Begin the span of a call if it is sampled, and write the context that travels on.

        Without the caller's grant `trace` what it sent travels no further, and a span is a new root
        with a link.
        """
        received = read_trace_context(call.options)
        if received is None:
            return None
        span = None
        if received.sampled:
            span = self._start(call, received, attributes, trusted=trusted, registered=True)
        context = forwarded(span, received, trusted=trusted)
        if context is not None:
            context.write_to(header)
        return span

    def _start(
        self,
        call: Call,
        received: TraceContext,
        attributes: dict[str, str],
        *,
        trusted: bool,
        registered: bool,
    ) -> CallSpan | None:
        return self._tracing.start_server(
            recorded_method(f"{call.toolkit}.{call.tool}", registered=registered),
            call.call_id,
            received=received,
            trusted=trusted,
            attributes=attributes,
        )

    def close_call(self, span: CallSpan | None, error: RoomException | None) -> None:
        """End the span of a call, once."""
        if span is not None:
            span.end(error)

    def refuse_call(self, room: str, caller: Member, call: Call, error: RoomException) -> None:
        """Record a call that ended before a host had it, under its name only if that exists."""
        received = read_trace_context(call.options)
        if received is None or not received.sampled:
            return
        span = self._start(
            call,
            received,
            call_attributes(room=room, caller=caller.identity.name),
            trusted=caller.scope.trace,
            registered=not isinstance(error, NotFound),
        )
        self.close_call(span, error)
