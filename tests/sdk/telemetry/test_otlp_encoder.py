"""Our encoder compared with the SDK's: a collector reads the same spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from toolbus.telemetry import otlp_encoder
from toolbus.telemetry.attributes import GEN_AI_TOOL_CALL_ID
from toolbus.telemetry.otlp_encoder import SpanEncoder

RESOURCE = Resource({"service.name": "x", "processes": 3}, schema_url="https://example.test/1")
SCOPE = InstrumentationScope("toolbus", "1.0", "https://example.test/2", {"a": "b"})
OWN = SpanContext(0x4B << 120, 7, is_remote=False, trace_flags=TraceFlags(1))
ABOVE = SpanContext(0x4B << 120, 2**64 - 1, is_remote=False, trace_flags=TraceFlags(1))
STARTED_NS = 1_795_345_495_301_564_963


def span_of(name: str = "weather.forecast", **changed: Any) -> ReadableSpan:
    facts: dict[str, Any] = {
        "context": OWN,
        "parent": ABOVE,
        "resource": RESOURCE,
        "attributes": {"rpc.method": "weather.forecast"},
        "start_time": STARTED_NS,
        "end_time": STARTED_NS + 5,
        "instrumentation_scope": SCOPE,
    }
    return ReadableSpan(name, **{**facts, **changed})


def fields_of(request: bytes) -> list[Any]:
    """Return each span of a request with its scope and resource, in order of ids."""
    read = ExportTraceServiceRequest.FromString(request)
    return sorted(
        (
            (span, scope.scope, scope.schema_url, group.resource, group.schema_url)
            for group in read.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ),
        key=lambda fields: (fields[0].span_id, fields[0].name),
    )


def assert_same(spans: Sequence[ReadableSpan]) -> bytes:
    request = SpanEncoder().encode(spans)
    assert fields_of(request) == fields_of(encode_spans(spans).SerializeToString())
    return request


def left_to_the_sdk(monkeypatch: pytest.MonkeyPatch, spans: Sequence[ReadableSpan]) -> int:
    """Count the spans that the SDK's encoder writes, without that of an envelope."""
    seen: list[int] = []

    def counted(these: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        seen.append(len(these))
        return encode_spans(these)

    encoder = SpanEncoder()
    encoder.encode([span_of()])
    monkeypatch.setattr(otlp_encoder, "encode_spans", counted)
    encoder.encode(spans)
    return sum(seen)


PLAIN: dict[str, dict[str, Any]] = {
    "root": {"parent": None},
    "parent elsewhere": {"parent": SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(1))},
    **{kind.name: {"kind": kind} for kind in SpanKind},
    "no name": {"name": ""},
    "name of many bytes": {"name": "ä" * 3_000},
    "no attributes": {"attributes": None},
    "call id": {"attributes": {GEN_AI_TOOL_CALL_ID: "c" * 32}},
    "empty texts": {"attributes": {"": ""}},
    "longest text of one byte's length": {"attributes": {"key": "v" * 127}},
    "long text": {"attributes": {"key": "☂" * 20_000}},
    "many": {"attributes": {f"key{number}": f"{number}" for number in range(200)}},
    "ok": {"status": Status(StatusCode.OK)},
    "error": {"status": Status(StatusCode.ERROR)},
    "error with words": {"status": Status(StatusCode.ERROR, "wörds" * 100)},
    "no scope": {"instrumentation_scope": None},
    "largest ids": {"context": SpanContext(2**128 - 1, 2**64 - 1, is_remote=True)},
}
OTHERS: dict[str, dict[str, Any]] = {
    "numbers": {"attributes": {"a": 1, "b": True, "c": 0.5, "d": ("e", "f"), "g": "text"}},
    "links": {"links": [Link(ABOVE, {"a": "b"})]},
    "trace state": {"context": SpanContext(1, 2, False, None, TraceState([("a", "b")]))},
    "no end": {"end_time": None},
    "no start": {"start_time": 0},
    "half a character": {"attributes": {"a": "\ud800", "b": "c"}},
}


@pytest.mark.parametrize("changed", PLAIN.values(), ids=PLAIN)
def test_plain_span_is_encoded_like_the_sdks_without_its_encoder(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    span = span_of(**changed)
    assert_same([span])
    envelopes = int(span.instrumentation_scope is not SCOPE)
    assert left_to_the_sdk(monkeypatch, [span, span]) == envelopes


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
def test_other_spans_are_left_to_the_sdk(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [span_of(**changed), span_of("beside it")]
    assert_same(spans)
    assert left_to_the_sdk(monkeypatch, spans) == 1


@pytest.mark.parametrize(
    "limits",
    [
        SpanLimits(),
        SpanLimits(max_events=1, max_links=1, max_span_attributes=1),
        SpanLimits(max_events=0, max_links=0, max_span_attributes=0),
    ],
)
def test_spans_of_the_sdks_own_are_encoded_with_events_and_what_was_dropped(
    limits: SpanLimits,
) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(span_limits=limits, resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("somebody")
    with tracer.start_as_current_span("outer") as outer:
        outer.add_event("seen", {"n": 1})
        outer.add_event("seen again")
        tracer.start_span("linked", links=[Link(ABOVE), Link(OWN)]).end()
        tracer.start_span("described", attributes={"a": "b", "c": "d"}).end()
    assert_same(kept.get_finished_spans())


def test_spans_of_many_origins_stay_with_their_own() -> None:
    others = [Resource({"service.name": f"s{number}"}) for number in range(70)]
    spans = [span_of(f"{n}", resource=other) for n, other in enumerate([*others, *others[:3]])]
    encoder = SpanEncoder()
    for _ in range(2):
        request = encoder.encode(spans)
        assert fields_of(request) == fields_of(encode_spans(spans).SerializeToString())


def test_no_spans_are_an_empty_request() -> None:
    assert SpanEncoder().encode([]) == b""


def test_span_that_cannot_be_encoded_is_left_out_alone() -> None:
    nobodys = span_of("nobody's", status=Status(StatusCode.ERROR, "\ud800"))
    others = [span_of("text"), span_of("number", attributes={"a": 1})]
    request = SpanEncoder().encode([others[0], nobodys, others[1]])
    assert fields_of(request) == fields_of(encode_spans(others).SerializeToString())
