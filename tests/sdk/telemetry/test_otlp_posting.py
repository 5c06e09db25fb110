"""Our exporter compared with the library's: what arrives, and what is retried."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.telemetry.recording_server import recording_server
from toolbus.telemetry.otlp_exporter import OtlpExporter
from toolbus.telemetry.viewer.receiver import SpanReceiver
from toolbus.telemetry.viewer.trace_tree import SpanRecord


@pytest.fixture
def spans() -> Sequence[ReadableSpan]:
    """Spans of the SDK, one of which has a number."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("somebody")
    for number in range(50):
        tracer.start_span("text", attributes={"number": f"{number}"}).end()
    tracer.start_span("number", attributes={"number": 1}).end()
    return kept.get_finished_spans()


async def arrived(
    exporter: SpanExporter, receiver: SpanReceiver, spans: Sequence[ReadableSpan]
) -> dict[str, SpanRecord]:
    """Send spans to a receiver; return the received ones by id."""
    sent = await asyncio.to_thread(exporter.export, spans)
    assert sent is SpanExportResult.SUCCESS
    exporter.shutdown()
    return {span.span_id: span for span in receiver.spans()}


@pytest.mark.parametrize("compression", Compression)
async def test_same_spans_arrive_as_from_the_librarys_exporter(
    spans: Sequence[ReadableSpan], compression: Compression
) -> None:
    async with SpanReceiver(port=0) as receiver, SpanReceiver(port=0) as other:
        endpoint = f"{receiver.endpoint}/v1/traces"
        ours = await arrived(OtlpExporter(endpoint, compression=compression.value), receiver, spans)
        library = OTLPSpanExporter(f"{other.endpoint}/v1/traces", compression=compression)
        assert ours == await arrived(library, other, spans)
    assert len(ours) == 51


def test_batch_without_a_collector_fails(spans: Sequence[ReadableSpan]) -> None:
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces", timeout_s=0.2)
    assert exporter.export(spans) is SpanExportResult.FAILURE


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ((503, 429, 200), SpanExportResult.SUCCESS),
        ((400,), SpanExportResult.FAILURE),
        ((503,) * 6, SpanExportResult.FAILURE),
    ],
)
def test_batch_is_retried_after_a_temporary_error(
    answers: tuple[int, ...], result: SpanExportResult, spans: Sequence[ReadableSpan]
) -> None:
    with recording_server(*answers) as (url, asked):
        assert OtlpExporter(f"{url}/v1/traces").export(spans) is result
    assert len(asked) == len(answers)


def test_shutdown_interrupts_the_backoff(spans: Sequence[ReadableSpan]) -> None:
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces", timeout_s=60)
    began_s = time.monotonic()
    threading.Timer(0.1, exporter.shutdown).start()
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert time.monotonic() - began_s < 30  # not the timeout of 60 s


def test_variables_set_the_request(
    spans: Sequence[ReadableSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording_server() as (url, asked):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=weather,authorization=Basic%20a")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        assert OtlpExporter.from_environment().export(spans) is SpanExportResult.SUCCESS
    [(_, headers)] = asked
    assert headers["x-team"] == "weather"
    assert headers["authorization"] == "Basic a"
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"] == "application/x-protobuf"
