"""The span of a tool compared with the SDK's: whatever a tool does with it, the export is equal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode

from support.telemetry.recording import CALL_ID, METHOD, SAMPLED, Process
from toolbus import errors
from toolbus.telemetry.light_spans import LightSpan

OTHER = SpanContext(7, 8, is_remote=True)


def _nothing(_span: Span) -> None:
    """What most tools do."""


def _asks_for_its_ids(span: Span) -> None:
    assert span.get_span_context().is_valid
    assert span.is_recording()


def _in_a_thread(span: Span) -> None:
    thread = Thread(target=span.set_attribute, args=("from", "a thread"))
    thread.start()
    thread.join()


def _reads(span: Span) -> None:
    assert isinstance(span, LightSpan | ReadableSpan)
    attributes, name = span.attributes, span.name
    assert attributes is not None
    assert attributes["gen_ai.tool.name"] == "forecast"
    span.set_attribute("read", name)


def _everything(span: Span) -> None:
    span.set_attribute("a", 1)
    span.set_attributes({"b": [1, 2], "a": 2.5})
    span.add_event("asked", {"what": "x"}, timestamp=7)
    span.add_link(OTHER, {"why": "y"})
    span.record_exception(ValueError("no"), timestamp=8)
    span.update_name("renamed")
    span.set_status(Status(StatusCode.OK))


def _has_a_child(span: Span) -> None:
    # Through the API, as a library that a tool uses.
    assert trace.get_current_span() is span


TOUCHES: list[Callable[[Span], None]] = [
    _nothing,
    _asks_for_its_ids,
    _in_a_thread,
    _reads,
    _everything,
    _has_a_child,
]


def run_tool(
    process: Process, touch: Callable[[Span], None], error: errors.RoomException | None = None
) -> Span:
    """Act as a host: run a tool that uses its span, with a child span."""
    hosted = process.tracing.start_host(METHOD, CALL_ID, received=SAMPLED)
    with hosted.executing():
        span = trace.get_current_span()
        touch(span)
        with process.provider.get_tracer("a library").start_as_current_span("below"):
            pass
    hosted.end(error, executed="yes")
    return span


@pytest.mark.parametrize("error", [None, errors.ToolFailed("it rains")], ids=["good", "bad"])
@pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.__name__)
def test_span_of_a_tool_is_sent_as_the_sdks_whatever_the_tool_does_with_it(
    touch: Callable[[Span], None], error: errors.RoomException | None
) -> None:
    light, heavy = Process(), Process(light=False)
    run_tool(light, touch, error)
    run_tool(heavy, touch, error)
    assert light.sent() == light.sent_by_sdk() == heavy.sent_by_sdk()
    assert [span.kind.name for span in light.watcher.ended] == ["INTERNAL", "INTERNAL", "SERVER"]


def test_many_threads_of_a_tool_may_change_its_span_at_once() -> None:
    def together(span: Span) -> None:
        threads = [Thread(target=span.set_attribute, args=(f"{n}", n)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    process = Process()
    run_tool(process, together)
    [_, tool, _] = process.watcher.ended
    assert tool.attributes is not None
    assert {f"{n}" for n in range(20)} <= set(tool.attributes)


def test_span_of_a_tool_that_has_ended_stays_as_it_was() -> None:
    for touch in (_nothing, _everything):
        process = Process()
        span = run_tool(process, touch)
        sent = process.sent()
        span.set_attribute("late", True)
        span.add_event("late")
        span.update_name("late")
        span.end()
        assert process.sent() == sent
        assert not span.is_recording()


async def test_span_of_a_tool_is_current_in_its_tasks_alone() -> None:
    process = Process()
    hosted = process.tracing.start_host(METHOD, CALL_ID, received=SAMPLED)
    with hosted.executing():
        span = trace.get_current_span()
        assert await asyncio.create_task(_current()) is span
    assert await _current() is not span
    hosted.end()


async def _current() -> Span:
    return trace.get_current_span()


def test_links_of_a_tool_are_kept() -> None:
    process = Process()
    run_tool(process, _everything)
    [_, tool, _] = process.watcher.ended
    assert [link.context for link in tool.links] == [Link(OTHER).context]
