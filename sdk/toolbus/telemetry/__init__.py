"""OpenTelemetry traces of calls: spans, their context, how they are sent, and a viewer for them."""

import toolbus.telemetry.variables  # noqa: F401 - before anything of OpenTelemetry
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
