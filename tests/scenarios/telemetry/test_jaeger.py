"""Calls as a real Jaeger shows them: processes send their spans, its query API returns them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.redis.server import RedisServer
from support.telemetry.jaeger import Jaeger, running_jaeger
from support.telemetry.otlp_collector import Sent, draw
from support.telemetry.traced_processes import NODES, TracedProcesses, traced_processes
from support.telemetry.traced_room import CALLER, FORECAST, HOST, SERVER, outcome, trace_id_of

RAN = ("UNSET", "", None, "yes")


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path_factory.mktemp("jaeger")) as running:
        yield running


@pytest.fixture(scope="module")
def processes(
    jaeger: Jaeger, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TracedProcesses]:
    with traced_processes(tmp_path_factory.mktemp("stage"), jaeger.otlp_url) as running:
        yield running


def tags(span: Sent) -> dict[str, Any]:
    """Return the tags that are ours, without those that Jaeger adds."""
    ours = ("rpc.", "gen_ai.", "toolbus.", "error")
    return {name: value for name, value in span.attributes.items() if name.startswith(ours)}


def test_call_over_three_processes_is_one_tree(jaeger: Jaeger, processes: TracedProcesses) -> None:
    answer = processes.ask("weather.forecast", city="Oslo")
    spans = jaeger.wait_for(trace_id_of(answer["value"]["seen"]), len(FORECAST))
    assert draw(spans) == FORECAST
    assert len({span.instance for span in spans}) == 3
    client, server, host, inner, users_own = map(tags, spans)
    call_id = client["gen_ai.tool.call.id"]
    ran = {
        "gen_ai.tool.name": "forecast",
        "gen_ai.tool.call.id": call_id,
        "toolbus.executed": "yes",
    }
    rpc = {"rpc.system.name": "toolbus", "rpc.method": "weather.forecast"}
    operation = {"gen_ai.operation.name": "execute_tool"}
    who = {"toolbus.room": "main", "toolbus.caller": "alice"}
    assert server.pop("toolbus.host")
    assert client == {**ran, **rpc, **operation}
    assert server == host == {**ran, **rpc, **who}
    assert inner == {**ran, **operation}
    assert users_own == {}


async def test_call_over_two_nodes_is_one_tree(
    jaeger: Jaeger, redis: RedisServer, tmp_path: Path
) -> None:
    with traced_processes(tmp_path, jaeger.otlp_url, redis.url) as running:
        while "error" in running.ask("weather.look"):
            pass  # until this node knows of the host
        answer = running.ask("weather.forecast", {"within": "question"}, city="Oslo")
        spans = jaeger.wait_for(answer["trace_id"], len(FORECAST) + 2)
    assert draw(spans) == [
        f"INTERNAL question @{CALLER}",
        *("  " + line for line in FORECAST[:2]),
        f"      SERVER weather.forecast @{SERVER}",
        *("    " + line for line in FORECAST[2:]),
    ]
    assert len({span.instance for span in spans}) == 4
    assert [tags(span).get("toolbus.node") for span in spans[2:4]] == list(NODES)
    assert [outcome(span) for span in spans[1:6]] == [RAN] * 5


def test_stream_is_one_tree_with_the_events_of_its_tool(
    jaeger: Jaeger, processes: TracedProcesses
) -> None:
    order = {"within": "question", "stream": True}
    answer = processes.ask("weather.tides", order, days=3)
    assert answer["value"] == [0, 1, 2]
    spans = jaeger.wait_for(answer["trace_id"], 5)
    assert draw(spans) == [
        f"INTERNAL question @{CALLER}",
        f"  CLIENT weather.tides @{CALLER}",
        f"    SERVER weather.tides @{SERVER}",
        f"      SERVER weather.tides @{HOST}",
        f"        INTERNAL execute_tool tides @{HOST}",
    ]
    assert [outcome(span) for span in spans[1:]] == [RAN] * 4
    assert spans[4].events == tuple(("tide", {"day": day}) for day in range(3))


def test_failed_call_is_an_error_on_every_hop(jaeger: Jaeger, processes: TracedProcesses) -> None:
    answer = processes.ask("weather.gauge", {"within": "question"}, words="the gauge is frozen")
    spans = jaeger.wait_for(answer["trace_id"], 6)
    assert [(span.kind, span.name, span.service) for span in spans[3:]] == [
        ("SERVER", "weather.gauge", HOST),
        ("INTERNAL", "execute_tool gauge", HOST),
        ("INTERNAL", "read gauge", HOST),
    ]
    assert [span.parent_id for span in spans[1:]] == [span.span_id for span in spans[:-1]]
    failed = ("ERROR", "the gauge is frozen", "tool_failed", "yes")
    assert [outcome(span) for span in spans[1:5]] == [failed] * 4
    assert [tags(span).get("error") for span in spans] == [None, *[True] * 5]
    ((name, fields),) = spans[5].events
    assert (name, fields["exception.message"]) == ("exception", "the gauge is frozen")


def test_retried_call_has_one_server_span_for_each_attempt(jaeger: Jaeger, tmp_path: Path) -> None:
    """The host that is killed cannot send its spans."""
    with traced_processes(tmp_path, jaeger.otlp_url) as running, running.hosting():
        struck = str(tmp_path / "struck")
        answer = running.ask("weather.lightning", {"within": "question"}, struck=struck)
        assert "error" not in answer
        spans = jaeger.wait_for(answer["trace_id"], 6)
    assert draw(spans) == [
        f"INTERNAL question @{CALLER}",
        f"  CLIENT weather.lightning @{CALLER}",
        f"    SERVER weather.lightning @{SERVER}",
        f"    SERVER weather.lightning @{SERVER}",
        f"      SERVER weather.lightning @{HOST}",
        f"        INTERNAL execute_tool lightning @{HOST}",
    ]
    lost = ("ERROR", "", "host_lost", "maybe")
    assert [outcome(span) for span in spans[1:]] == [RAN, lost, RAN, RAN, RAN]


@pytest.mark.parametrize(
    ("service", "operation", "wanted"),
    [
        (CALLER, "weather.crash", {"error.type": "tool_failed", "toolbus.cause": "ValueError"}),
        (SERVER, "weather.crash", {"toolbus.caller": "alice", "toolbus.room": "main"}),
        (HOST, "weather.crash", {"toolbus.caller": "alice", "toolbus.executed": "yes"}),
        (HOST, "execute_tool crash", {"error.type": "tool_failed"}),
    ],
)
def test_search_by_service_operation_and_tags_finds_the_call(
    jaeger: Jaeger,
    processes: TracedProcesses,
    service: str,
    operation: str,
    wanted: dict[str, str],
) -> None:
    answer = processes.ask("weather.crash", {"within": "question"}, words="not for others")
    call_id = jaeger.wait_for(answer["trace_id"], 5)[1].attributes["gen_ai.tool.call.id"]
    search = {"service": service, "operation": operation}
    found = jaeger.ask("/api/traces", **search, tags=json.dumps(wanted))
    assert answer["trace_id"] in {trace["traceID"] for trace in found}
    (only,) = jaeger.ask("/api/traces", **search, tags=json.dumps({"gen_ai.tool.call.id": call_id}))
    assert only["traceID"] == answer["trace_id"]
