"""An OTLP/HTTP endpoint: real exporters can send to it, and hostile input does no harm."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.types import AnyValue

from support.patience import PATIENCE_S
from toolbus.telemetry.viewer.otlp_app import BadRequest, MediaType, read_spans
from toolbus.telemetry.viewer.receiver import (
    MissingExtra,
    ReceiverLimits,
    SpanReceiver,
    SpanStore,
    StoreLimits,
)
from toolbus.telemetry.viewer.trace_tree import SpanRecord

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
MEDIA_TYPES: tuple[MediaType, ...] = (JSON, PROTOBUF)


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def send(
    receiver: SpanReceiver,
    body: bytes | Iterator[bytes],
    media_type: str = JSON,
    *,
    method: str = "POST",
    path: str = "/v1/traces",
    **headers: str,
) -> Reply:
    """Send one request from a thread, with the standard library alone."""

    def request() -> Reply:
        line = http.client.HTTPConnection(
            receiver.endpoint.removeprefix("http://"), timeout=PATIENCE_S
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        line.request(method, path, body, {"content-type": media_type, **named})
        response = line.getresponse()
        reply = Reply(response.status, dict(response.getheaders()), response.read())
        line.close()
        return reply

    return await asyncio.to_thread(request)


def one_span(**changes: Any) -> bytes:
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "weather.forecast",
        "kind": 3,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": "1544712661000000000",
        "attributes": [{"key": "n", "value": {"intValue": "7"}}],
        **changes,
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def limits(**changes: Any) -> ReceiverLimits:
    return ReceiverLimits(**changes)


@pytest.mark.parametrize("compression", list(Compression))
async def test_spans_of_a_real_exporter_arrive_as_plain_values(compression: Compression) -> None:
    async with SpanReceiver(port=0) as receiver:
        resource = Resource({"service.name": "sql", "service.instance.id": "i-1"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{receiver.endpoint}/v1/traces", compression=compression)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        attributes: dict[str, AnyValue] = {
            "text": "ø",
            "int": 7,
            "float": 1.5,
            "bool": True,
            "list": ["a", "b"],
        }
        with tracer.start_as_current_span("outer", kind=SpanKind.CLIENT) as outer:
            with tracer.start_as_current_span("inner", attributes=attributes) as inner:
                inner.set_status(StatusCode.ERROR, "no such table")
        await asyncio.to_thread(provider.shutdown)
        spans = await receiver.wait_for(lambda spans: len(spans) == 2, timeout_s=5)

    by_name = {span.name: span for span in spans}
    root, child = by_name["outer"], by_name["inner"]
    context = outer.get_span_context()
    assert (root.trace_id, root.span_id) == (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
    )
    assert (root.kind, root.parent_id, root.status) == ("CLIENT", None, "UNSET")
    assert (child.kind, child.parent_id, child.trace_id) == (
        "INTERNAL",
        root.span_id,
        root.trace_id,
    )
    assert (child.status, child.status_message) == ("ERROR", "no such table")
    assert child.attributes == attributes
    assert child.resource == {"service.name": "sql", "service.instance.id": "i-1"}
    assert root.start_ns <= child.start_ns <= child.end_ns <= root.end_ns
    assert root.service == "sql[i-1]"


async def test_json_request_is_read_with_ids_in_hex_and_answered_in_json() -> None:
    link = {"traceId": "ab" * 16, "spanId": "cd" * 8}
    async with SpanReceiver(port=0) as receiver:
        body = one_span(parentSpanId="00f067aa0ba902b7", links=[link], unknownField=1)
        reply = await send(receiver, body, "application/json; charset=utf-8")
        assert (reply.status, json.loads(reply.body)) == (200, {})
        assert reply.headers["content-type"] == JSON
        [span] = receiver.spans()
    assert span.trace_id == "5b8efff798038103d269b633813fc60c"
    assert (span.span_id, span.parent_id) == ("eee19b7ec3c1b174", "00f067aa0ba902b7")
    assert (span.kind, span.duration_ms, span.attributes) == ("CLIENT", 1_000, {"n": 7})
    assert span.links == (("ab" * 16, "cd" * 8),)


async def test_protobuf_request_is_answered_in_protobuf() -> None:
    async with SpanReceiver(port=0) as receiver:
        reply = await send(receiver, ExportTraceServiceRequest().SerializeToString(), PROTOBUF)
        assert (reply.status, reply.headers["content-type"]) == (200, PROTOBUF)
        ExportTraceServiceResponse.FromString(reply.body)


async def test_span_without_proper_ids_is_refused_alone() -> None:
    async with SpanReceiver(port=0) as receiver:
        reply = await send(receiver, one_span(traceId="abcd"))
        assert reply.status == 200
        assert json.loads(reply.body)["partialSuccess"]["rejectedSpans"] == "1"
        assert not receiver.spans()


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, {"path": "/"}),
        (404, {"path": "/v1/metrics"}),
        (405, {"method": "GET"}),
        (405, {"method": "OPTIONS"}),
        (415, {"media_type": "text/plain"}),
        (415, {"media_type": ""}),
        (415, {"content_encoding": "br"}),
        (400, {"body": b"{"}),
        (400, {"body": b"[]"}),
        (400, {"body": b"[" * 60_000}),
        (400, {"body": b'{"resourceSpans": 7}'}),
        (400, {"body": b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xy"}]}]}]}'}),
        (400, {"body": b"\xff\xfe", "media_type": PROTOBUF}),
        (400, {"body": b"not gzip", "content_encoding": "gzip"}),
        (400, {"body": gzip.compress(one_span())[:-9], "content_encoding": "gzip"}),
        (413, {"body": b" " * 70_000}),
        (413, {"body": gzip.compress(b" " * 50_000_000), "content_encoding": "gzip"}),
        (413, {"body": iter([b" " * 40_000] * 2)}),
    ],
)
async def test_bad_request_is_refused_with_a_reason_and_the_next_is_served(
    status: int, request_: dict[str, Any]
) -> None:
    async with SpanReceiver(port=0, limits=limits(max_body_bytes=65_536)) as receiver:
        reply = await send(receiver, **{"body": b"{}", "media_type": JSON, **request_})
        assert reply.status == status
        assert reply.body
        assert (await send(receiver, one_span())).status == 200
        assert len(receiver.spans()) == 1


def head(content_length: int) -> bytes:
    return (
        b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % content_length
    )


async def test_body_that_its_sender_left_unfinished_counts_for_nothing() -> None:
    async with SpanReceiver(port=0) as receiver:
        host, port = receiver.endpoint.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
            body = one_span(spanId="22" * 8)
            line.sendall(head(len(body) + 1) + body)
        assert (await send(receiver, one_span())).status == 200
        assert [span.span_id for span in receiver.spans()] == ["eee19b7ec3c1b174"]


@pytest.mark.parametrize(("length", "status"), [(100, b" 408 "), (99_999, b" 413 ")])
async def test_body_that_does_not_come_or_would_be_too_long_is_not_waited_for(
    length: int, status: bytes
) -> None:
    accepted = limits(body_timeout_s=0.05, max_body_bytes=1_000)
    async with SpanReceiver(port=0, limits=accepted) as receiver:
        address = receiver.endpoint.removeprefix("http://").split(":")
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head(length) + b"{")
            assert status in await reader.readline()
            writer.close()


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_bad_request(body: bytes) -> None:
    for media_type in MEDIA_TYPES:
        try:
            read_spans(body, media_type)
        except BadRequest:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "resourceSpans scopeSpans spans traceId spanId name kind attributes key value "
                "stringValue kvlistValue links status".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
@example({"kind": float("inf")})
def test_no_json_raises_anything_but_bad_request(value: object) -> None:
    for body in (value, {"resourceSpans": [{"scopeSpans": [{"spans": [value]}]}]}):
        try:
            read_spans(json.dumps(body).encode(), JSON)
        except BadRequest:
            pass


def test_long_values_are_cut_before_they_are_held() -> None:
    value: dict[str, Any] = {"stringValue": "x" * 1_000_000}
    for _ in range(20):
        value = {"arrayValue": {"values": [value]}}
    attributes = [
        {"key": f"k{n}" * 2_000, "value": {"stringValue": "y" * 9_999}} for n in range(300)
    ]
    body = one_span(name="n" * 9_999, attributes=[{"key": "deep", "value": value}, *attributes])
    [(span, size)] = read_spans(body, JSON).spans
    assert len(span.name) == 1_024
    assert len(span.attributes) <= 128
    assert all(len(key) <= 1_024 for key in span.attributes)
    assert all(len(str(held)) <= 4_096 for held in span.attributes.values())
    assert size > 1_000_000


async def test_timeout_of_a_wait_names_the_present_values() -> None:
    async with SpanReceiver(port=0) as receiver:
        await send(receiver, one_span())
        with pytest.raises(TimeoutError, match=r"have \['CLIENT weather.forecast'\]"):
            await receiver.wait_for(lambda spans: len(spans) > 1, timeout_s=0.05)


async def test_every_waiter_is_woken_by_the_spans_it_waits_for() -> None:
    async with SpanReceiver(port=0) as receiver:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(receiver.wait_for(enough, timeout_s=5))
                for enough in (bool, lambda spans: len(spans) == 2)
            ]
            await send(receiver, one_span())
            await waiting[0]
            assert not waiting[1].done()
            await send(receiver, one_span(spanId="11" * 8))
        assert len(waiting[1].result()) == 2


async def test_taken_port_raises_os_error() -> None:
    async with SpanReceiver(port=0) as receiver:
        port = int(receiver.endpoint.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await SpanReceiver(port=port).__aenter__()


async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"toolbus\[otel\]"):
        await SpanReceiver(port=0).__aenter__()


# Stored spans


def held(trace: int, number: int = 0) -> SpanRecord:
    return SpanRecord("x", "INTERNAL", f"{trace:032x}", f"{number + 1:016x}", None, 0, 1)


def test_oldest_trace_makes_room_and_is_counted() -> None:
    store = SpanStore(StoreLimits(max_traces=3))
    store.add((held(trace, number), 10) for trace in range(5) for number in range(2))
    assert list(store.traces()) == [f"{trace:032x}" for trace in (2, 3, 4)]
    assert store.dropped == 4
    assert store.take_changed() == set(store.traces())
    assert not store.has_changed


def test_spans_over_the_limit_of_a_trace_are_counted() -> None:
    store = SpanStore(StoreLimits(max_spans_per_trace=2))
    store.add((held(1, number), 10) for number in range(5))
    assert (len(store.trace(f"{1:032x}")), store.dropped) == (2, 3)


def test_bytes_are_bounded() -> None:
    store = SpanStore(StoreLimits(max_bytes=100))
    store.add((held(trace), 40) for trace in range(10))
    assert len(store.traces()) == 2
    store.add([(held(99), 1_000)])
    assert not store.traces()
    store.add([(held(100), 100)])
    assert len(store.traces()) == 1


def test_span_sent_twice_is_held_once() -> None:
    store = SpanStore(StoreLimits(max_bytes=15))
    store.add([(held(1), 10), (held(1), 10)])
    assert (len(store.trace(f"{1:032x}")), store.dropped) == (1, 0)


def test_trace_that_was_shown_makes_room_without_loss() -> None:
    store = SpanStore(StoreLimits(max_traces=1))
    store.add([(held(1), 10)])
    store.mark_shown(f"{1:032x}")
    store.add([(held(2), 10)])
    assert store.dropped == 0
    store.mark_shown(f"{2:032x}")
    store.add([(held(2, 1), 10)])
    store.add([(held(3), 10)])
    assert store.dropped == 2
