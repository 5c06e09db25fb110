"""The exporter that encodes by itself, beside the library's: what arrives, when it stands back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolbus import span_export
from toolbus.otlp_receiver import SpanReceiver
from toolbus.span_export import LightExporter
from toolbus.trace_tree import SpanRecord


@pytest.fixture
def spans() -> Sequence[ReadableSpan]:
    """Spans of the SDK's own, one of which has a number."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("somebody")
    for number in range(50):
        tracer.start_span("text", attributes={"number": f"{number}"}).end()
    tracer.start_span("number", attributes={"number": 1}).end()
    return kept.get_finished_spans()


async def arrived(
    make: Callable[..., OTLPSpanExporter], spans: Sequence[ReadableSpan], **options: Any
) -> dict[str, SpanRecord]:
    """Send spans to a receiver of their own; return what it has, by id."""
    async with SpanReceiver(port=0) as receiver:
        exporter: SpanExporter = make(f"{receiver.endpoint}/v1/traces", timeout=5, **options)
        sent = await asyncio.to_thread(exporter.export, spans)
        assert sent is SpanExportResult.SUCCESS
        exporter.shutdown()
        return {span.span_id: span for span in receiver.spans()}


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_same_spans_arrive_as_from_the_librarys_exporter(
    spans: Sequence[ReadableSpan], compression: Compression
) -> None:
    ours = await arrived(LightExporter, spans, compression=compression)
    assert ours == await arrived(OTLPSpanExporter, spans, compression=compression)
    assert len(ours) == 51


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many spans of each batch were left to the library."""
    counts: list[int] = []

    def export(_: OTLPSpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        counts.append(len(spans))
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(OTLPSpanExporter, "export", export)
    return counts


async def test_library_encodes_nothing_where_it_need_not(
    spans: Sequence[ReadableSpan], left: list[int]
) -> None:
    assert len(await arrived(LightExporter, spans)) == 51
    assert left == []


async def test_library_encodes_where_it_is_to_count(
    spans: Sequence[ReadableSpan], left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "True")
    await arrived(LightExporter, spans)
    assert left == [51]


async def test_library_encodes_what_it_may_refuse(
    spans: Sequence[ReadableSpan], left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "_MAX_REQUEST_BYTES", 1_000)
    await arrived(LightExporter, spans)
    assert left == [51]


def test_library_encodes_where_it_has_no_place_for_bytes(
    spans: Sequence[ReadableSpan], left: list[int]
) -> None:
    exporter = LightExporter("http://127.0.0.1:9/v1/traces")
    del exporter._client
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert left == [51]


def test_batch_that_nobody_takes_has_failed(spans: Sequence[ReadableSpan]) -> None:
    exporter = LightExporter("http://127.0.0.1:9/v1/traces", timeout=0.2)
    assert exporter.export(spans) is SpanExportResult.FAILURE
