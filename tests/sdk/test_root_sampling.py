from __future__ import annotations

import secrets
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
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
from toolbus.trace_context import OF_THE_CALL, current_context

CALLS = 4_000


class Recorded:
    """A tracer provider with a sampler, and what it recorded."""

    def __init__(self, sampler: Sampler, ids: IdGenerator | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, id_generator=ids)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)
        self.tracing.start_client("demo.add", "")  # the first call is the one that finds the SDK

    def call(self) -> tuple[str, str]:
        """Make a call; return its id and the `traceparent` that is sent."""
        call_id = secrets.token_hex(16)
        roots = self.tracing.roots
        drawn = int(call_id[16:], 16)
        unsampled = None if roots is None or current_context() else roots.unsampled(call_id, drawn)
        if unsampled is not None:
            return call_id, unsampled
        span = self.tracing.start_client("demo.add", call_id)
        assert span is not None
        span.end()
        return call_id, span.context.traceparent


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
def test_root_that_is_never_sampled_still_tells_the_next_hop_so(sampler: Sampler) -> None:
    recorded = Recorded(sampler)
    sent = [recorded.call() for _ in range(10)]
    assert [traceparent for _, traceparent in sent] == [OF_THE_CALL] * 10
    assert recorded.exporter.get_finished_spans() == ()


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(0.25), ParentBasedTraceIdRatio(0.25)])
def test_ratio_of_roots_is_the_samplers_and_each_sampled_one_is_recorded(sampler: Sampler) -> None:
    recorded = Recorded(sampler)
    sent = [recorded.call() for _ in range(CALLS)]
    sampled = [call_id for call_id, traceparent in sent if is_sampled(traceparent)]
    assert {traceparent for _, traceparent in sent if not is_sampled(traceparent)} == {OF_THE_CALL}
    # Five standard deviations of 4,000 draws at a quarter are 137.
    assert CALLS / 4 - 137 < len(sampled) < CALLS / 4 + 137
    spans = recorded.exporter.get_finished_spans()
    ids = [f"{span.context.trace_id:032x}" for span in spans if span.context]
    assert ids == sampled


def test_sampler_that_must_see_the_span_is_left_alone() -> None:
    class ByName(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            return ALWAYS_ON.should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "by name"

    for sampler in (ByName(), ALWAYS_ON):
        assert RootSampling.of(TracerProvider(sampler=sampler).get_tracer("x")) is None


def test_ids_of_another_kind_stay_those_of_their_generator() -> None:
    class Counted(IdGenerator):
        """Gives numbers that samplers see as the lowest and the highest in turn."""

        drawn = 0

        def generate_span_id(self) -> int:
            return 7

        def generate_trace_id(self) -> int:
            self.drawn += 1
            return self.drawn << 64 | (2**64 - 1) * (self.drawn % 2)

    recorded = Recorded(TraceIdRatioBased(0.5), Counted())
    (_, first), (_, second) = recorded.call(), recorded.call()
    assert first == f"00-{2:016x}{'0' * 16}-{7:016x}-01"  # the one that found the SDK took one
    assert second == f"00-{3:016x}{'f' * 16}-{7:016x}-00"
