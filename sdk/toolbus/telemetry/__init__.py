"""OpenTelemetry traces of calls: spans, their context, how they are sent, and a viewer for them."""

from toolbus.telemetry.tracing import (
    CallSpan,
    TraceContext,
    Tracing,
    configure,
    recorded,
    toolbus_version,
)

__all__ = [
    "CallSpan",
    "TraceContext",
    "Tracing",
    "configure",
    "recorded",
    "toolbus_version",
]
