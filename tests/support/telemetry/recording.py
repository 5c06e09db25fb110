"""A process that records spans, as light spans or as the SDK's."""

from __future__ import annotations

from random import Random
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    Span,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from toolbus.telemetry.light_spans import LightSpan, PipelineProvider, readable
from toolbus.telemetry.otlp_encoder import SpanEncoder
from toolbus.telemetry.tracing import TraceContext, Tracing

METHOD = "weather.forecast"
CALL_ID = "c" * 32
SPAN_ID = "00f067aa0ba902b7"
SAMPLED = TraceContext(f"00-{'4b' * 16}-{SPAN_ID}-01")


class RepeatableIds(RandomIdGenerator):
    """The same ids in each run."""

    def __init__(self) -> None:
        self._of_spans, self._of_traces = Random(7), Random(8)

    def generate_span_id(self) -> int:
        return self._of_spans.getrandbits(64)

    def generate_trace_id(self) -> int:
        return self._of_traces.getrandbits(128)


class RecordingProcessor(SpanProcessor):
    """Keeps the kinds of the SDK's spans that started, and all spans that ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.taken: list[ReadableSpan | LightSpan] = []

    @property
    def ended(self) -> list[ReadableSpan]:
        """All spans that ended, as the SDK's."""
        return [readable(span) for span in self.taken]

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun.append(span.kind.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.taken.append(span)


class Process:
    """One process that records.

    Args:
        light: With light spans, or with the SDK's only.
        sampler: The sampler.
    """

    def __init__(self, *, light: bool = True, sampler: Sampler | None = None) -> None:
        self.watcher = RecordingProcessor()
        limits, resource = SpanLimits(), Resource({"service.name": "x"})
        provider: TracerProvider
        if light:
            provider = PipelineProvider(
                self.watcher, resource, limits, sampler=sampler, id_generator=RepeatableIds()
            )
        else:
            provider = TracerProvider(
                sampler, resource, False, span_limits=limits, id_generator=RepeatableIds()
            )
            provider.add_span_processor(self.watcher)
        self.provider = provider
        self.tracing = Tracing(self.provider)

    def sent(self) -> list[Any]:
        """What is sent to a collector, except the times, in order of ids."""
        return fields_of(SpanEncoder().encode(self.watcher.taken))

    def sent_by_sdk(self) -> list[Any]:
        """The same, encoded by the SDK's encoder."""
        return fields_of(encode_spans(self.watcher.ended).SerializeToString())


def fields_of(request: bytes) -> list[Any]:
    """Read the spans of a request, except the times, in order of ids."""
    sent = []
    for group in ExportTraceServiceRequest.FromString(request).resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
                span.ClearField("start_time_unix_nano")
                span.ClearField("end_time_unix_nano")
                sent.append((span.span_id, span, scope.scope, group.resource))
    return sorted(sent, key=lambda fields: fields[0])
