"""Drops `OTEL_*` variables that name parts of OpenTelemetry which are not installed.

The API loads these parts by name whenever something first uses them: a context at its import,
propagators when the MCP SDK is imported, a provider at the first call. A name that is not installed
is a traceback in the log there, or an exception. So this runs before anything of OpenTelemetry is
imported, in every process that imports toolbus, and the default is used.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from toolbus.bounded_logging import bounded_logger

__all__ = ["drop_unknown_parts"]

_GROUPS = {
    "OTEL_PYTHON_CONTEXT": "opentelemetry_context",
    "OTEL_PROPAGATORS": "opentelemetry_propagator",
    "OTEL_PYTHON_TRACER_PROVIDER": "opentelemetry_tracer_provider",
    "OTEL_PYTHON_METER_PROVIDER": "opentelemetry_meter_provider",
}
_logger = bounded_logger("toolbus.telemetry.tracing")


def drop_unknown_parts() -> None:
    """Remove the variables that name something else than installed parts, with a warning each."""
    for variable, group in _GROUPS.items():
        value = os.environ.get(variable)
        if value is None:
            continue
        names = {name.strip() for name in value.split(",")}
        if variable == "OTEL_PROPAGATORS" and "none" in {name.lower() for name in names}:
            continue
        installed = {entry.name for entry in entry_points(group=group)}
        if not names <= installed:
            del os.environ[variable]
            if value.strip():
                _logger.warning("%s names what is not installed: the default is used", variable)


drop_unknown_parts()
