"""Light spans compared with the SDK's: for the same calls the exported spans are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from support.telemetry.recording import (
    CALL_ID,
    METHOD,
    SAMPLED,
    SPAN_ID,
    Process,
    RecordingProcessor,
)
from toolbus import errors
from toolbus.telemetry.light_spans import LightSpan, PipelineProvider
from toolbus.telemetry.otlp_encoder import SpanEncoder
from toolbus.telemetry.recorder import recorder_of
from toolbus.telemetry.tracing import TraceContext, Tracing, call_attributes

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
    """Run all hops of a call in one process; return what each of them sends on."""
    tracing = process.tracing
    client = tracing.start_client(METHOD, CALL_ID)
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
    return [f"{span.context}" if span is not None else None for span in spans]


def assert_same(make_call: Callable[[Process], object]) -> Process:
    """Run the call with light spans and with the SDK's; return the first process."""
    light, heavy = Process(), Process(light=False)
    assert make_call(light) == make_call(heavy)
    assert light.sent() == light.sent_by_sdk() == heavy.sent_by_sdk()
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
        call(light, **options)
        call(heavy, **options)
    assert traces_of(light) == traces_of(heavy)
    assert light.watcher.begun == []


def traces_of(process: Process) -> list[tuple[int, str]]:
    """Return the trace and the kind of each recorded span. Unsampled roots get no span id here."""
    return [(span.context.trace_id, span.kind.name) for span in process.watcher.ended]


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
def test_long_names_are_truncated_at_the_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", limit)

    def make_call(process: Process) -> None:
        span = process.tracing.start_client(f"{'t' * 150}.{'n' * 150}", CALL_ID)
        assert span is not None
        span.end()

    assert_same_clients(make_call)


def test_message_with_a_lone_surrogate_can_be_sent() -> None:
    light = assert_same(lambda process: call(process, errors.ToolFailed("no file \udcff")))
    assert {span.status.description for span in light.watcher.ended} >= {"no file ?"}


def test_light_spans_are_those_of_the_process_that_was_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, encoder = Process(), SpanEncoder()

    def names() -> set[str]:
        span = process.tracing.start_client(METHOD, CALL_ID)
        assert span is not None
        span.end()
        request = ExportTraceServiceRequest.FromString(encoder.encode([process.watcher.taken[-1]]))
        resources = [group.resource for group in request.resource_spans]
        return {each.value.string_value for one in resources for each in one.attributes}

    assert "x" in names()
    child = Resource({"service.name": "the child"})
    monkeypatch.setattr(PipelineProvider, "resource", child)  # as the SDK does in a child
    assert "the child" in names()
    assert "x" not in names()


def test_repr_of_a_light_span_has_its_trace_id() -> None:
    process = Process()
    process.tracing.start_client(METHOD, CALL_ID)
    span = process.tracing.start_client(METHOD, CALL_ID)
    assert span is not None
    span.end()
    assert f"{span.context.traceparent[3:35]}" in repr(process.watcher.taken[-1])


def test_attribute_that_is_set_twice_has_its_last_value_and_place() -> None:
    def make_call(process: Process) -> None:
        span = process.tracing.start_client(METHOD, CALL_ID)
        assert span is not None
        span.describe({"toolbus.host": "ann", "toolbus.room": "lab"})
        span.describe({"toolbus.host": "bob"})
        span.end()

    [span] = assert_same_clients(make_call).watcher.ended
    assert span.attributes is not None
    assert span.attributes["toolbus.host"] == "bob"


def assert_same_clients(make_call: Callable[[Process], None]) -> Process:
    light, heavy = Process(), Process(light=False)
    for process in (light, heavy):
        make_call(process)
    assert light.sent() == light.sent_by_sdk() == heavy.sent_by_sdk()
    assert light.watcher.begun == []
    assert heavy.watcher.begun == ["CLIENT"]
    return light


def test_light_span_that_has_ended_stays_as_it_was() -> None:
    process = Process()
    span = process.tracing.start_client(METHOD, CALL_ID)
    assert span is not None
    span.end()
    before = process.sent()
    [ended] = process.watcher.taken
    assert isinstance(ended, LightSpan)
    ended.set_attributes({"toolbus.host": "late"})
    ended.set_attribute("toolbus.room", "late")
    ended.set_status(StatusCode.ERROR, "late")
    span.end(errors.NotFound())
    assert process.sent() == before
    assert len(process.watcher.taken) == 1
    assert not span.recording


def light_span(process: Process) -> LightSpan:
    recorder = recorder_of(process.provider)
    assert recorder is not None
    span = recorder.start_span("x", SpanKind.CLIENT, ({},))
    assert isinstance(span, LightSpan)
    return span


def test_light_span_ends_once() -> None:
    process = Process()
    span = light_span(process)
    span.end(span.start_ns + 5)
    span.end(span.start_ns + 7)
    [ended] = process.watcher.ended
    assert ended.end_time == span.start_ns + 5


def test_added_processor_gets_the_sdks_spans_from_then_on() -> None:
    process = Process()
    before = process.tracing.start_client(METHOD, CALL_ID)
    added = RecordingProcessor()
    process.provider.add_span_processor(added)
    after = process.tracing.start_client(METHOD, CALL_ID)
    assert before is not None
    assert after is not None
    after.end()
    before.end()
    assert added.begun == process.watcher.begun == ["CLIENT"]
    assert len(added.taken) == len(process.watcher.taken) == 2


class Renaming(Sampler):
    """Drops one tool, and replaces the attributes of others."""

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        decision = Decision.DROP if args[2] == METHOD else Decision.RECORD_AND_SAMPLE
        return SamplingResult(decision, {"by": "name"}, trace.TraceState([("a", "b")]))

    def get_description(self) -> str:
        return "by name"


def test_any_sampler_decides_and_sets_attributes_and_trace_state() -> None:
    process = Process(sampler=Renaming())
    dropped = process.tracing.start_client(METHOD, CALL_ID)
    assert dropped is not None
    assert not dropped.recording
    kept = process.tracing.start_client("clock.now", CALL_ID)
    assert kept is not None
    assert kept.context.tracestate == "a=b"
    kept.end()
    [span] = process.watcher.ended
    assert span.attributes == {
        "by": "name",
        "gen_ai.tool.call.id": CALL_ID,
        "toolbus.executed": "yes",
    }


def test_span_that_is_changed_often_stays_small() -> None:
    process = Process()
    span = light_span(process)
    for number in range(1_000):
        span.set_attribute("progress", number)
        span.add_event("step", {"number": number})
    assert len(span.written) <= 33
    span.end()
    [ended] = process.watcher.ended
    assert ended.attributes == {"progress": 999}
    assert len(ended.events) == 128
    assert ended.dropped_events == 872


def test_many_participants_of_a_process_share_one_source_of_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    process = Process()
    sent = []
    for _ in range(2_000):  # deeper than Python's stack if they were nested
        span = Tracing(process.provider).start_client(METHOD, CALL_ID)
        assert span is not None
        if span.recording:
            sent.append(span.context.traceparent)
    assert 800 < len(sent) < 1_200
    assert len(set(sent)) == len(sent)
