"""Imports OpenTelemetry's context, which reads `OTEL_PYTHON_CONTEXT` at that moment.

The API logs a traceback for a context that is not installed. Here that is one warning, in every
process that imports toolbus, because the context is also used where no spans are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points

from toolbus.bounded_logging import bounded_logger

__all__ = ["ignoring_unknown_context"]

_VARIABLE = "OTEL_PYTHON_CONTEXT"
_logger = bounded_logger("toolbus.telemetry.tracing")


@contextmanager
def ignoring_unknown_context() -> Iterator[None]:
    """Hide the variable for the block if it names nothing that is installed."""
    name = os.environ.get(_VARIABLE)
    if not name or list(entry_points(group="opentelemetry_context", name=name)):
        yield
        return
    _logger.warning("%s is not the name of an installed context: contextvars is used", _VARIABLE)
    del os.environ[_VARIABLE]
    try:
        yield
    finally:
        os.environ[_VARIABLE] = name  # for child processes


with ignoring_unknown_context():
    import opentelemetry.context  # noqa: F401
