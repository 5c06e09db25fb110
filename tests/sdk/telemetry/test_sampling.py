"""How many calls a sampler records, and what an unsampled call sends on."""

from __future__ import annotations

import secrets

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolbus.telemetry.light_spans import PipelineProvider
from toolbus.telemetry.otlp_exporter import ReportingExporter
from toolbus.telemetry.propagation import CALL_AS_TRACE
from toolbus.telemetry.tracing import Tracing, is_sampled

CALLS = 4_000


class Recorded:
    """A tracer provider with the sampler of the variables, and its recorded spans."""

    def __init__(self, *, light: bool) -> None:
        self.exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(ReportingExporter(self.exporter, "memory"))
        provider: TracerProvider
        if light:
            provider = PipelineProvider(processor, Resource.get_empty(), SpanLimits())
        else:
            provider = TracerProvider()
            provider.add_span_processor(processor)
        self.tracing = Tracing(provider)

    def call(self) -> str:
        """Make a call; return the `traceparent` that is sent."""
        span = self.tracing.start_client("demo.add", secrets.token_hex(16))
        assert span is not None
        span.end()
        return span.context.traceparent


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off"])
def test_unsampled_root_is_propagated_as_unsampled(
    sampler: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    recorded = Recorded(light=light)
    assert [recorded.call() for _ in range(10)] == [CALL_AS_TRACE] * 10
    assert recorded.exporter.get_finished_spans() == ()


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_ratio_of_roots_is_the_samplers_and_each_sampled_one_is_recorded(
    sampler: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    recorded = Recorded(light=light)
    sent = [recorded.call() for _ in range(CALLS)]
    sampled = [traceparent for traceparent in sent if is_sampled(traceparent)]
    assert {traceparent for traceparent in sent if not is_sampled(traceparent)} == {CALL_AS_TRACE}
    # 137 is five standard deviations of 4,000 draws at a quarter.
    assert CALLS / 4 - 137 < len(sampled) < CALLS / 4 + 137
    spans = recorded.exporter.get_finished_spans()
    ids = [f"{span.context.trace_id:032x}" for span in spans if span.context]
    assert ids == [traceparent[3:35] for traceparent in sampled]


@pytest.mark.parametrize("argument", ["", "many", "7", "-1"])
def test_ratio_that_is_none_samples_every_call(
    argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    recorded = Recorded(light=True)
    assert all(is_sampled(recorded.call()) for _ in range(10))
