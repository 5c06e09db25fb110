from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from toolbus.root_sampling import RootSampling
from toolbus.telemetry import Tracing, is_sampled

CALLS = 4_000


class Recorded:
    """A tracer provider with a sampler, and what it recorded."""

    def __init__(self, sampler: Sampler) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)

    def call(self) -> str:
        unsampled = self.tracing.unsampled_root()
        if unsampled is not None:
            return unsampled
        span = self.tracing.start_client("demo.add", "0" * 32)
        assert span is not None
        span.end()
        return span.context.traceparent


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
def test_root_that_is_never_sampled_still_tells_the_next_hop_so(sampler: Sampler) -> None:
    recorded = Recorded(sampler)
    sent = [recorded.call() for _ in range(10)]
    assert not any(is_sampled(traceparent) for traceparent in sent)
    assert len({traceparent[3:35] for traceparent in sent}) == 10
    assert recorded.exporter.get_finished_spans() == ()


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(0.25), ParentBasedTraceIdRatio(0.25)])
def test_ratio_of_roots_is_the_samplers_and_each_sampled_one_is_recorded(sampler: Sampler) -> None:
    recorded = Recorded(sampler)
    sampled = [sent for sent in (recorded.call() for _ in range(CALLS)) if is_sampled(sent)]
    # Five standard deviations of 4,000 draws at a quarter are 137.
    assert CALLS / 4 - 137 < len(sampled) < CALLS / 4 + 137
    spans = recorded.exporter.get_finished_spans()
    ids = [f"{span.context.trace_id:032x}" for span in spans if span.context]
    assert ids == [traceparent[3:35] for traceparent in sampled]


def test_sampler_that_must_see_the_span_is_left_alone() -> None:
    class ByName(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            return ALWAYS_ON.should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "by name"

    for sampler in (ByName(), ALWAYS_ON):
        assert RootSampling.of(TracerProvider(sampler=sampler).get_tracer("x")) is None
