"""The SDK's tracer, asked as `Tracing` asks: what records where spans of our own may not be.

Needs no more than OpenTelemetry's API: which SDK made the tracer is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind

__all__ = ["FullTracer", "below", "joined"]


def joined(written: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join what was written one after the other; later ones win."""
    attributes: dict[str, Any] = {}
    for each in written:
        attributes.update(each)
    return attributes


def below(span: trace.Span) -> Context:
    """Give a context in which there is this span, and nothing else."""
    return trace.set_span_in_context(span, Context())


class FullTracer:
    """Begins the SDK's spans, and is asked as a `LightTracer` is.

    Args:
        tracer: The SDK's.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(
        self,
        name: str,
        context: Context | None,
        kind: SpanKind,
        written: Sequence[Mapping[str, Any]],
        links: Sequence[trace.Link] = (),
        parent: SpanContext | None = None,
    ) -> trace.Span:
        """Begin a span; see `LightTracer.start_span`."""
        if parent is not None:
            context = below(trace.NonRecordingSpan(parent))
        return self._tracer.start_span(name, context, kind, joined(written), links)

    def start_within(
        self,
        span: trace.Span,
        name: str,
        kind: SpanKind,
        written: Sequence[Mapping[str, Any]],
    ) -> trace.Span:
        """Begin a span below a recorded one."""
        return self.start_span(name, below(span), kind, written)
