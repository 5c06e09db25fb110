"""The seam between `Tracing` and what records its spans: our own recorder, or any tracer.

`recorder_of` decides once per `Tracing`. A provider made by `toolbus.telemetry.configure` brings
its own recorder, whose spans are cheap (`light_spans.py`); for every other provider its tracer
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from toolbus.telemetry.attributes import SCOPE, toolbus_version

__all__ = ["SpanRecorder", "TracerRecorder", "merged", "recorder_of"]

_NO_CONTEXT = Context()


class SpanRecorder(Protocol):
    """Starts the spans of calls."""

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Sequence[Mapping[str, Any]],
        context: Context | None = None,
        links: Sequence[trace.Link] = (),
    ) -> trace.Span:
        """Start a span; one that is not sampled records nothing.

        Args:
            name: The span's name.
            kind: Which end of the call it is.
            attributes: Its attributes in several mappings; later ones win. They are not changed.
            context: Contains the parent; the current context unless given.
            links: Other spans that it points to.
        """

    def start_root(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any]
    ) -> trace.Span | None:
        """Start a span without a parent; None if it is not sampled."""


class TracerRecorder:
    """Records with the tracer of any OpenTelemetry provider."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Sequence[Mapping[str, Any]],
        context: Context | None = None,
        links: Sequence[trace.Link] = (),
    ) -> trace.Span:
        """Start a span; see `SpanRecorder.start_span`."""
        return self._tracer.start_span(name, context, kind, merged(attributes), links)

    def start_root(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Any]
    ) -> trace.Span | None:
        """Start a span without a parent; None if it is not sampled."""
        span = self._tracer.start_span(name, _NO_CONTEXT, kind, attributes)
        return span if span.is_recording() else None


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge mappings of attributes; later ones win."""
    attributes: dict[str, Any] = {}
    for part in parts:
        attributes.update(part)
    return attributes


def recorder_of(provider: trace.TracerProvider) -> SpanRecorder | None:
    """Choose what records the spans of calls; None where the provider records nothing."""
    own: SpanRecorder | None = getattr(provider, "span_recorder", None)
    if own is not None:
        return own
    tracer = provider.get_tracer(SCOPE, toolbus_version())
    return None if isinstance(tracer, trace.NoOpTracer) else TracerRecorder(tracer)
