"""A client's trace goes on to the tool, through gateway, server and host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.conftest import REVISIONS
from support.processes.command_line import CommandLine
from support.telemetry.otlp_collector import draw
from support.telemetry.traced_room import HOST, PARENT, SERVER, TracedRoom, traced_room
from toolbus import ApiScope

GATEWAY = "toolbus-gateway"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedRoom]:
    with traced_room(tmp_path_factory.mktemp("traced")) as room:
        yield room


@pytest.fixture(scope="module")
def address(traced: TracedRoom) -> Iterator[str]:
    """The address of the room at a gateway that sends its spans to the same collector."""
    line = CommandLine(
        traced.processes.folder,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": traced.collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "TOOLBUS_URL": traced.processes.url,
        },
    )
    with line.start("gateway", "--port", "0", "--json") as gateway:
        yield f"{json.loads(gateway.line())['url']}/rooms/main/mcp"


@pytest.mark.parametrize("mode", REVISIONS)
async def test_spans_of_a_call_are_below_that_of_the_client(
    traced: TracedRoom, address: str, mode: str
) -> None:
    trace_id = f"{REVISIONS.index(mode) + 1:032x}"
    meta: Any = {
        "traceparent": f"00-{trace_id}-{PARENT}-01",
        "tracestate": "vendor=1",
    }
    token = traced.processes.token("carol", ApiScope.full())
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(address, http_client=http), mode=mode) as client,
    ):
        result = await client.call_tool("weather__forecast", {"city": "Bergen"}, meta=meta)
    assert result.structured_content is not None
    seen = result.structured_content["seen"]
    assert seen["traceparent"].split("-")[1] == trace_id
    assert seen["tracestate"] == "vendor=1"
    spans = traced.collector.wait_for(trace_id, 6)
    assert draw(spans) == [
        f"SERVER tools/call weather__forecast @{GATEWAY}",
        f"  CLIENT weather.forecast @{GATEWAY}",
        f"    SERVER weather.forecast @{SERVER}",
        f"      SERVER weather.forecast @{HOST}",
        f"        INTERNAL execute_tool forecast @{HOST}",
        f"          INTERNAL read model @{HOST}",
    ]
    assert spans[0].parent_id == PARENT
