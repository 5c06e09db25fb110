"""What Prometheus and probes read of a gateway."""

from __future__ import annotations

import asyncio

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from gateway.conftest import REVISIONS, Door, running_gateway
from toolbus import Toolkit, tool


async def numbers_of(door: Door) -> dict[str, float]:
    """The value of each sample, by its name and label values."""
    async with httpx2.AsyncClient(timeout=60) as http:
        response = await http.get(f"{door.service.url}/metrics", headers={"Host": "10.0.0.7:7718"})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        " ".join((sample.name.removeprefix("toolbus_gateway_"), *sample.labels.values())): (
            sample.value
        )
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_metrics_count_requests_and_calls(door: Door) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        await release.wait()

    async with door.server.room("host") as host, host.host(Toolkit("words", [wait])):
        for mode in REVISIONS:
            started.clear()
            release.clear()
            async with door.client(mode) as client, asyncio.timeout(60):
                call = asyncio.create_task(client.call_tool("words__wait", {}))
                await started.wait()
                during = await numbers_of(door)
                assert (during["calls_in_flight"], during["connections_busy"]) == (1, 1)
                release.set()
                await call
    async with httpx2.AsyncClient(timeout=60) as http:
        for token in ("no.such.token", "no.such.token"):
            headers = {"Authorization": f"Bearer {token}", "Mcp-Protocol-Version": "0000-00-00"}
            headers |= {"Mcp-Method": "toolbus/secret"}
            await http.post(door.address(), headers=headers)
    after = await numbers_of(door)
    assert after["connections"] == len(REVISIONS)  # each client had a token of its own
    assert (after["calls_in_flight"], after["connections_busy"]) == (0, 0)
    for revision in ("2026-07-28", "2025-11-25"):
        assert after[f"requests_total 200 tools/call {revision}"] == 1
    assert after["requests_total 200 initialize none"] == 1
    assert after["requests_total 401 other other"] == 2
    assert after["tokens_refused_total"] == 2
    assert after["request_duration_seconds_bucket +Inf tools/call"] == 2
    assert after["request_duration_seconds_count other"] == 2
    assert after["request_duration_seconds_sum tools/call"] > 0


async def test_metrics_may_be_off_and_probes_are_answered() -> None:
    async with running_gateway(has_metrics=False) as door, httpx2.AsyncClient() as http:
        assert (await http.get(f"{door.service.url}/metrics")).status_code == 404
        health = await http.head(f"{door.service.url}/healthz", headers={"Host": "10.0.0.7"})
        assert (health.status_code, health.headers["cache-control"]) == (200, "no-store")
