"""Log and Metrics: what they tell of each outcome, and what they never tell."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from support.parts.wrapped_calls import REMOTE, Scripted, execute, person, run_chain
from toolbus import ExternalTool, ToolUse, Turn
from toolbus.chunks.chunk_types import TextChunk
from toolbus.errors import HostLost, NoHost, RoomException
from toolbus.middlewares import Log, Metrics, OutputLimit
from toolbus.tools.toolkit import Toolkit


async def work(secret: str) -> AsyncIterator[str]:
    yield "a"
    if secret == "bad":
        raise RuntimeError
    if secret == "stop":
        raise asyncio.CancelledError
    yield "b"


async def refuse(call: Any, next: Any) -> AsyncIterator[Any]:
    raise NoHost
    yield


CASES = [
    ("good", [], "ok", "yes", 2),
    ("bad", [], "tool_failed", "yes", 1),
    ("stop", [], "cancelled", "yes", 1),
    ("good", [refuse], "no_host", "no", 0),
]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toolbus.calls")


async def run(middlewares: list[Any], secret: str, **facts: Any) -> None:
    try:
        await execute(Toolkit("t", [work], middlewares=middlewares), {"secret": secret}, **facts)
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize(("secret", "inner", "code", "executed", "chunks"), CASES)
async def test_log_has_a_line_for_the_start_and_one_for_the_end(
    caplog: pytest.LogCaptureFixture,
    secret: str,
    inner: Any,
    code: str,
    executed: str,
    chunks: int,
) -> None:
    await run([Log(), *inner], secret, caller=person("ada"), on_behalf_of=person("bo"))
    label = 'tool=t.work caller="ada" principal="bo"'
    first, last = caplog.messages
    assert first == f"call began: {label}"
    wanted = f"call ended: {label} outcome={code} executed={executed} chunks={chunks} duration_ms="
    assert re.fullmatch(re.escape(wanted) + r"\d+\.\d", last)


async def test_log_has_arguments_only_on_request_and_shortens_and_escapes_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = 'eve" outcome=ok\n\x1b[2J' + "x" * 5_000
    for log in (Log(), Log(arguments=True)):
        await run([log], "password\n" + "y" * 100_000, caller=person(name))
    assert [("password" in line) for line in caplog.messages] == [False, False, True, False]
    for line in caplog.messages:
        assert line.isprintable()
        assert len(line) < 500
        assert 'caller="eve\\" outcome=ok\\n' in line


async def test_a_logger_that_is_off_gets_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "toolbus.calls")
    await run([Log()], "good")
    assert caplog.messages == []


async def test_a_remote_call_has_the_outcome_that_its_caller_gets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await run_chain([Log()], Scripted(HostLost(executed="maybe")))
    assert "outcome=host_lost executed=maybe" in caplog.messages[-1]


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    [metrics] = [
        scope.metrics for resource in data.resource_metrics for scope in resource.scope_metrics
    ]
    return {metric.name: list(metric.data.data_points) for metric in metrics}


@pytest.mark.parametrize(
    ("secret", "middlewares", "code", "executed"),
    [
        *((secret, [None, *inner], code, executed) for secret, inner, code, executed, _ in CASES),
        ("good", [OutputLimit(max_chunks=1), None], "closed", "yes"),
    ],
)
async def test_metrics_count_and_time_calls_by_tool_and_outcome(
    secret: str, middlewares: Any, code: str, executed: str
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    await run(
        [middleware or Metrics(provider) for middleware in middlewares],
        secret,
        caller=person("ada"),
    )
    found = points(reader)
    [calls], [duration], [active] = (
        found[name]
        for name in (
            "toolbus.tool.calls",
            "gen_ai.execute_tool.duration",
            "toolbus.tool.calls.active",
        )
    )
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "rpc.system.name": "toolbus",
        "rpc.method": "t.work",
    }
    error = {} if code in ("ok", "closed") else {"error.type": code}
    outcome = {**tool, **error, "toolbus.outcome": code, "toolbus.executed": executed}
    assert (calls.value, calls.attributes) == (1, outcome)
    assert (duration.count, duration.attributes) == (1, outcome)
    assert (active.value, active.attributes) == (0, tool)
    provider.shutdown()


async def test_parked_call_is_counted_as_no_error() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    kit = Toolkit("kit", [ExternalTool("ask", {})], middlewares=[Metrics(provider)])
    async with Turn(None, always=[kit]) as turn:
        await turn.run([ToolUse("1", "kit.ask")])
    [calls] = points(reader)["toolbus.tool.calls"]
    assert calls.attributes["toolbus.outcome"] == "parked"
    assert "error.type" not in calls.attributes
    provider.shutdown()


async def test_codes_of_remote_hosts_add_no_series() -> None:
    class Odd(RoomException):
        code = "x" * 99

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    await run_chain([Metrics(provider)], Scripted(Odd()))
    assert points(reader)["toolbus.tool.calls"][0].attributes["error.type"] == "_OTHER"
    provider.shutdown()


async def test_without_a_provider_nothing_changes() -> None:
    found = await run_chain([Metrics()], Scripted([TextChunk("a")]), REMOTE)
    assert found.values == ["a"]
