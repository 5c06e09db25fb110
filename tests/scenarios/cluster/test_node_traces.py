"""A call over two nodes is one tree of four processes: caller, its node, the host's node, host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import call_of, failure_of, next_of
from support.nodes.cluster import hosted, until_listed
from support.nodes.relayed import node_of
from support.nodes.tools import numbers
from support.redis.server import RedisServer, redis_server
from support.telemetry.otlp_collector import draw
from support.telemetry.traced_processes import NODES
from support.telemetry.traced_room import (
    FORECAST,
    HOPS,
    HOST,
    PARENT,
    SERVER,
    TRACE,
    TracedRoom,
    trace_id_of,
    traced_room,
)
from toolbus import AgentsGrant, ApiScope, Key, KeyRing
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import Credit, Result, StreamChunk, pack_body
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

FAR_HOPS = [*HOPS[:2], *HOPS[1:]]
FAR_FORECAST = [
    *FORECAST[:2],
    f"    SERVER weather.forecast @{SERVER}",
    *("  " + line for line in FORECAST[2:]),
]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedRoom]:
    with asyncio.Runner() as runner:
        context = redis_server()
        redis = runner.run(context.__aenter__())
        try:
            with traced_room(tmp_path_factory.mktemp("stage"), redis.url) as running:
                while "error" in running.processes.ask("weather.look"):
                    pass  # until this node knows of the host
                yield running
        finally:
            runner.run(context.__aexit__(None, None, None))


def test_call_over_two_nodes_is_one_tree_of_four_processes(traced: TracedRoom) -> None:
    """TRACE-2."""
    answer = traced.processes.ask("weather.forecast", city="Oslo")
    spans = traced.collector.wait_for(trace_id_of(answer["value"]["seen"]), len(FAR_FORECAST))
    assert draw(spans) == FAR_FORECAST
    assert len({span.instance for span in spans}) == 4
    first, second = spans[1].attributes, spans[2].attributes
    assert (first["toolbus.node"], second["toolbus.node"]) == NODES
    assert (first["toolbus.host_node"], second["toolbus.caller_node"]) == NODES[::-1]
    assert "toolbus.caller_node" not in first
    assert "toolbus.host_node" not in second
    for name in ("rpc.method", "gen_ai.tool.call.id", "toolbus.caller", "toolbus.host"):
        assert first[name] == second[name]
    assert [span.attributes.get("toolbus.executed") for span in spans[:5]] == ["yes"] * 5


def test_failure_is_an_error_on_every_hop(traced: TracedRoom) -> None:
    answer = traced.processes.ask("weather.fail", {"within": "question"}, words="no clouds today")
    outcome = ("ERROR", "no clouds today", "tool_failed", "yes")
    assert traced.outcomes(answer, *FAR_HOPS) == [outcome] * 5


def test_call_past_its_deadline_may_have_run_on_every_node(traced: TracedRoom) -> None:
    answer = traced.processes.ask("weather.linger", {"within": "question", "timeout_s": 0.5})
    assert answer["error"] == {"code": "deadline_exceeded", "executed": "maybe"}
    client, first, second, *_ = traced.outcomes(answer, *FAR_HOPS)
    assert client == first == ("ERROR", "", "deadline_exceeded", "maybe")
    # The time to get there counts too, or the first node's error arrives first.
    assert second[2:] in {("deadline_exceeded", "maybe"), ("cancelled", "maybe")}


def test_unsampled_parent_is_propagated_over_both_nodes_unchanged(traced: TracedRoom) -> None:
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-00", "tracestate": "acme=1"}
    answer = traced.processes.ask("weather.look", {"parent": parent})
    assert answer["value"] == parent
    answer = traced.processes.ask("weather.forecast", {"within": "last"}, city="Bergen")
    traced.spans_of(answer, len(FAR_FORECAST) + 1)
    assert traced.collector.trace(TRACE) == []


def test_the_grant_is_checked_once_at_the_callers_node(traced: TracedRoom) -> None:
    """TRACE-3: the second node continues the trace that the first one began."""
    token = traced.processes.token("bob", ApiScope(agents=AgentsGrant(call=True)))
    answer = traced.processes.ask(
        "weather.forecast", {"within": "question", "token": token}, city="Oslo"
    )
    _, client = traced.spans_of(answer, 2)
    spans = traced.collector.wait_for(trace_id_of(answer["value"]["seen"]), 5)
    assert draw(spans) == [line[2:] for line in FAR_FORECAST[1:]]
    link = (client.trace_id, client.span_id)
    assert [span.links for span in spans] == [(link,), (), (), (), ()]


def test_call_refused_at_the_first_node_has_no_span_at_the_second(traced: TracedRoom) -> None:
    answer = traced.processes.ask("weather.invented", {"within": "question"})
    assert answer["error"] == {"code": "not_found", "executed": "no"}
    spans = traced.spans_of(answer, 3)
    assert (spans[2].service, spans[2].attributes["toolbus.node"]) == (SERVER, NODES[0])
    traced.processes.ask("weather.look", {"within": "next"})
    assert HOST not in {span.service for span in traced.spans_of(answer, 3)}


# Streams


class Recorded(NamedTuple):
    """Two nodes, and the spans that each has ended."""

    redis: RedisServer
    servers: list[TestServer]
    exporters: list[InMemorySpanExporter]


@pytest.fixture
async def recorded() -> AsyncIterator[Recorded]:
    """Run two nodes whose spans are kept here."""
    key = Key.generate(kid="test", iss="toolbus-test")
    async with redis_server() as redis, AsyncExitStack() as stack:
        settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=redis.url)
        servers: list[TestServer] = []
        exporters = []
        for _ in range(2):
            provider, exporter = TracerProvider(), InMemorySpanExporter()
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            tracing = Tracing(provider)
            running = running_server(key=key, settings=settings, tracing=tracing)
            servers.append(await stack.enter_async_context(running))
            exporters.append(exporter)
            await node_of(servers[-1]).is_joined.wait()
        yield Recorded(redis, servers, exporters)


async def read_stream(caller: RawClient, count: int) -> list[StreamChunk]:
    return [await next_of(caller, StreamChunk) for _ in range(count)]


async def test_the_spans_of_a_stream_end_with_it_on_both_nodes(recorded: Recorded) -> None:
    _, (here, there), exporters = recorded
    async with asyncio.timeout(60), hosted(there, numbers), here.room("me") as me:
        await until_listed(me, "kit")
        async with raw_participant(here, "ann") as ann:
            call = call_of(
                "kit.numbers",
                arguments=pack_body({"count": 5}),
                credit_chunks=3,
                credit_bytes=10_000,
            )
            ann.send_frame(replace(call, traceparent=f"00-{TRACE}-{PARENT}-01"))
            await read_stream(ann, 3)
            assert [each.get_finished_spans() for each in exporters] == [(), ()]
            ann.send_frame(Credit(call.id, False, 100, 100_000))
            await read_stream(ann, 2)
            assert isinstance(await ann.reply_to(call.id), Result)
        spans: list[ReadableSpan] = [
            span for each in exporters for span in each.get_finished_spans()
        ]
        first, second = spans
        assert (first.parent and f"{first.parent.span_id:016x}") == PARENT
        assert second.parent is not None
        assert first.context is not None
        assert second.parent.span_id == first.context.span_id
        for span in spans:
            assert span.attributes is not None
            assert span.attributes["toolbus.executed"] == "yes"


async def test_a_call_that_cannot_be_sent_to_its_node_is_recorded_once(recorded: Recorded) -> None:
    redis, (here, there), exporters = recorded
    async with asyncio.timeout(60), hosted(there, numbers), here.room("me") as me:
        await until_listed(me, "kit")
        async with raw_participant(here, "ann") as ann:
            await redis.kill()
            while node_of(here).is_joined.is_set():  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            call = call_of("kit.numbers", arguments=pack_body({"count": 5}))
            ann.send_frame(replace(call, traceparent=f"00-{TRACE}-{PARENT}-01"))
            failed = await failure_of(ann, call.id)
            assert (failed.code, failed.executed) == ("unavailable", "no")
        [span] = exporters[0].get_finished_spans()
        assert span.attributes is not None
        assert span.attributes["toolbus.executed"] == "no"
        assert exporters[1].get_finished_spans() == ()
