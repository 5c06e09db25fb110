"""A process that records spans, with what we make in the place of the SDK's spans or without."""

from __future__ import annotations

from random import Random
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from toolbus.light_spans import LightSpan, PipelineProvider
from toolbus.span_encoder import SpanEncoder
from toolbus.telemetry import TraceContext, Tracing

METHOD = "weather.forecast"
CALL_ID = "c" * 32
SPAN_ID = "00f067aa0ba902b7"
SAMPLED = TraceContext(f"00-{'4b' * 16}-{SPAN_ID}-01")


class Ids(RandomIdGenerator):
    """The same ids in each run."""

    def __init__(self) -> None:
        self._random = Random(7)

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64)

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128)


class Watcher(SpanProcessor):
    """Keeps the kinds of spans that it saw begin, and all that ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun.append(span.kind.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class Process:
    """One process that records.

    Args:
        light: With light spans, not with the SDK's alone.
        sinks: With an exporter that reads light spans as they are.
        sampler: Decides.
    """

    def __init__(
        self, *, light: bool = True, sinks: bool = False, sampler: Sampler | None = None
    ) -> None:
        self.watcher = Watcher()
        self.taken: list[LightSpan] = []
        limits = SpanLimits()
        self.provider = PipelineProvider(self.watcher, Resource({"service.name": "x"}), limits)
        self.provider.id_generator = Ids()
        if sampler is not None:
            self.provider.sampler = sampler
        if sinks:
            self.provider.sink = self.taken.append
        if not light:
            self.provider.add_span_processor(SpanProcessor())
        self.tracing = Tracing(self.provider)

    def sent(self) -> list[Any]:
        """What goes to a collector, apart from the times, in order of ids."""
        request = encode_spans(self.watcher.ended).SerializeToString()
        request += SpanEncoder().encode(self.taken)
        sent = []
        for group in ExportTraceServiceRequest.FromString(request).resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
                    span.ClearField("start_time_unix_nano")
                    span.ClearField("end_time_unix_nano")
                    sent.append((span.span_id, span, scope.scope, group.resource))
        return sorted(sent, key=lambda fields: fields[0])
