"""Light spans beside the SDK's own: the same calls, the same ids, compared as they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from support.recording import CALL_ID, METHOD, SAMPLED, SPAN_ID, Process, Watcher
from toolbus import errors
from toolbus.light_spans import LightSpan, LightTracer
from toolbus.semantics import SCOPE
from toolbus.span_encoder import SpanEncoder
from toolbus.telemetry import TraceContext, Tracing, call_attributes, is_sampled
from toolbus.trace_context import current_context

FACTS = call_attributes(room="lab", caller="alice")
ENDS: list[errors.RoomException | None] = [
    None,
    *(error() for error in errors.ERRORS.values()),
    errors.ToolFailed("the sky is falling"),
    errors.ToolFailed("x", details={"cause": "KeyError"}),
    errors.Cancelled(executed="yes"),
]
SAMPLERS = [
    ("always_on", ""),
    ("always_off", ""),
    ("traceidratio", "0.5"),
    ("parentbased_always_on", ""),
    ("parentbased_always_off", ""),
    ("parentbased_traceidratio", "0.5"),
]


def call(
    process: Process,
    error: errors.RoomException | None = None,
    *,
    received: TraceContext | None = SAMPLED,
    trusted: bool = True,
    executed: errors.Executed | None = None,
    host: str = "bob",
) -> list[str | None]:
    """Play all hops of a call in one process; return what each of them sends on."""
    tracing = process.tracing
    roots = tracing.roots
    drawn = int(CALL_ID[16:], 16)
    unsampled = None if roots is None or current_context() else roots.unsampled(CALL_ID, drawn)
    client = None if unsampled is not None else tracing.start_client(METHOD, CALL_ID)
    node = tracing.start_server(
        METHOD, CALL_ID, received=received or SAMPLED, trusted=trusted, attributes=FACTS
    )
    if node is not None:
        node.describe({"toolbus.host": host})
    hosted = tracing.start_host(METHOD, CALL_ID, received=received)
    hosted.describe(call_attributes(room="lab", caller="alice", host=host))
    with hosted.executing():
        nested = tracing.start_client("clock.now", CALL_ID)
    hosted.end(error, executed=executed)
    spans = [client, node, nested]
    for span in spans:
        if span is not None:
            span.end(error, executed=executed)
    return [unsampled, *(f"{span.context}" if span is not None else None for span in spans)]


def assert_same(play: Callable[[Process], object]) -> Process:
    """Play with light spans, which leave as they are or do not, and with the SDK's.

    Give the first process.
    """
    light, sinks, heavy = Process(), Process(sinks=True), Process(light=False)
    assert play(light) == play(sinks) == play(heavy)
    assert light.sent() == sinks.sent() == heavy.sent()
    assert sinks.watcher.ended == []
    assert "CLIENT" in heavy.watcher.begun
    assert "SERVER" not in light.watcher.begun
    assert "CLIENT" not in light.watcher.begun
    return light


@pytest.mark.parametrize("error", ENDS, ids=lambda error: getattr(error, "code", "success"))
def test_light_span_is_sent_as_the_sdks_whatever_the_call_came_to(
    error: errors.RoomException | None,
) -> None:
    light = assert_same(lambda process: call(process, error))
    assert len(light.watcher.ended) == 5


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    "received",
    [
        SAMPLED,
        None,
        SAMPLED._replace(tracestate="vendor=1,other=2"),
        SAMPLED._replace(traceparent=SAMPLED.traceparent[:-2] + "03"),
        SAMPLED._replace(traceparent=SAMPLED.traceparent[:-2] + "00"),
        TraceContext(f"00-{'0' * 32}-{SPAN_ID}-01"),
    ],
)
def test_light_span_is_sent_as_the_sdks_whatever_came_in(
    received: TraceContext | None, trusted: bool
) -> None:
    assert_same(lambda process: call(process, received=received, trusted=trusted, executed="maybe"))


@pytest.mark.parametrize(("name", "argument"), SAMPLERS)
def test_light_span_is_recorded_where_the_sampler_would_have_the_sdks(
    name: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    light, heavy = Process(), Process(light=False)
    received = [SAMPLED, None, SAMPLED._replace(traceparent=f"00-{'e' * 32}-{SPAN_ID}-01")]
    for i in range(60):
        options: dict[str, Any] = {"received": received[i % 3], "trusted": bool(i % 2)}
        assert call(light, **options) == call(heavy, **options)
    assert light.sent() == heavy.sent()
    assert light.watcher.begun.count("SERVER") == 0


@pytest.mark.parametrize(
    ("variable", "limit"),
    [
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "0"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
    ],
)
def test_limits_hold_for_light_spans(
    variable: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = assert_same(lambda process: call(process, trusted=False))
    monkeypatch.setenv(variable, limit)
    limited = assert_same(lambda process: call(process, trusted=False))
    assert limited.sent() != unlimited.sent()


@pytest.mark.parametrize("limit", ["128", "150", "255", "256"])
def test_long_names_are_cut_where_the_limit_says_so(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", limit)

    def play(process: Process) -> None:
        span = process.tracing.start_client(f"{'t' * 150}.{'n' * 150}", CALL_ID)
        assert span is not None
        span.end()

    assert_same_clients(play)


def test_words_of_a_tool_with_half_a_character_can_be_sent() -> None:
    light = assert_same(lambda process: call(process, errors.ToolFailed("no file \udcff")))
    assert {span.status.description for span in light.watcher.ended} >= {"no file ?"}


def test_light_spans_are_those_of_the_process_that_was_forked() -> None:
    process, encoder = Process(sinks=True), SpanEncoder()

    def names() -> set[str]:
        span = process.tracing.start_client(METHOD, CALL_ID)
        assert span is not None
        span.end()
        request = ExportTraceServiceRequest.FromString(encoder.encode([process.taken[-1]]))
        resources = [group.resource for group in request.resource_spans]
        return {each.value.string_value for one in resources for each in one.attributes}

    assert "x" in names()
    light = process.taken[-1].tracer
    light._tracer.resource = Resource({"service.name": "the child"})  # as the SDK does it
    assert "the child" in names()
    assert "x" not in names()


def test_light_span_says_what_it_is() -> None:
    process = Process(sinks=True)
    process.tracing.start_client(METHOD, CALL_ID)
    span = process.tracing.start_client(METHOD, CALL_ID)
    assert span is not None
    span.end()
    assert f"{span.context.traceparent[3:35]}" in repr(process.taken[-1])


def test_attribute_that_is_set_twice_has_its_last_value_and_place() -> None:
    def play(process: Process) -> None:
        span = process.tracing.start_client(METHOD, CALL_ID)
        assert span is not None
        span.describe({"toolbus.host": "ann", "toolbus.room": "lab"})
        span.describe({"toolbus.host": "bob"})
        span.end()

    [span] = assert_same_clients(play).watcher.ended
    assert span.attributes is not None
    assert span.attributes["toolbus.host"] == "bob"


def assert_same_clients(play: Callable[[Process], None]) -> Process:
    light, sinks, heavy = Process(), Process(sinks=True), Process(light=False)
    for process in (light, sinks, heavy):
        play(process)
    assert light.sent() == sinks.sent() == heavy.sent()
    assert light.watcher.begun == []
    assert heavy.watcher.begun == ["CLIENT"]
    return light


def test_light_span_that_has_ended_stays_as_it_was() -> None:
    process = Process(sinks=True)
    span = process.tracing.start_client(METHOD, CALL_ID)
    assert span is not None
    span.end()
    before = process.sent()
    [ended] = process.taken
    ended.set_attributes({"toolbus.host": "late"})
    ended.set_attribute("toolbus.room", "late")
    ended.set_status(StatusCode.ERROR, "late")
    span.end(errors.NotFound())
    assert process.sent() == before
    assert len(process.taken) == 1
    assert not span.recording


def test_light_span_ends_once() -> None:
    process = Process()
    tracer = process.provider.get_tracer(SCOPE)
    light = LightTracer.of(tracer, process.provider)
    assert light is not None
    span = light.start_span("x", None, SpanKind.CLIENT, ())
    assert isinstance(span, LightSpan)
    span.end(span.start_ns + 5)
    span.end(span.start_ns + 7)
    [ended] = process.watcher.ended
    assert ended.end_time == span.start_ns + 5


def test_processor_that_somebody_adds_sees_the_sdks_spans_from_then_on() -> None:
    process = Process()
    before = process.tracing.start_client(METHOD, CALL_ID)
    added = Watcher()
    process.provider.add_span_processor(added)
    after = process.tracing.start_client(METHOD, CALL_ID)
    assert before is not None
    assert after is not None
    after.end()
    before.end()
    assert added.begun == process.watcher.begun == ["CLIENT"]
    assert len(added.ended) == len(process.watcher.ended) == 2


def test_sampler_that_must_see_the_span_gets_the_sdks() -> None:
    class ByName(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            return ALWAYS_ON.should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "by name"

    process = Process(sampler=ByName())
    call(process)
    assert process.watcher.begun == ["CLIENT", "SERVER", "SERVER", "INTERNAL", "CLIENT"]


def test_spans_are_the_sdks_where_it_is_to_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    process = Process()
    call(process)
    assert "SERVER" in process.watcher.begun


def test_many_participants_of_a_process_share_one_source_of_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    process = Process()
    sent = set()
    for _ in range(2_000):  # deeper than Python's stack, were they one within the other
        span = Tracing(process.provider).start_client(METHOD, CALL_ID)
        assert span is not None
        sent.add(span.context.traceparent)
    assert len(sent) == 2_000
    assert 800 < sum(map(is_sampled, sent)) < 1_200
