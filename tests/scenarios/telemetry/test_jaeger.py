"""The tree of a call as Jaeger shows it: a real Jaeger in a container, through its query API."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.redis.docker_engine import container_of, require_image
from support.telemetry.traced_processes import traced_processes

IMAGE = "jaegertracing/jaeger:2.15.0"
OTLP_PORT, QUERY_PORT = 4318, 16686
PATIENCE_S = 60.0


class Jaeger(NamedTuple):
    """The addresses for spans and for queries."""

    otlp_url: str
    query_url: str

    def trace(self, trace_id: str, count: int) -> dict[str, Any]:
        """Ask until a trace has this many spans, which are stored after a delay."""
        until = time.monotonic() + PATIENCE_S
        found: dict[str, Any] = {"spans": []}
        while len(found["spans"]) < count:
            assert time.monotonic() < until, found
            found = self._ask(trace_id) or found
            threading.Event().wait(0.1)
        return found

    def _ask(self, trace_id: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(
                f"{self.query_url}/api/traces/{trace_id}", timeout=10
            ) as reply:
                data = json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise
            return None
        return data[0] if data else None


def draw(trace: dict[str, Any]) -> list[str]:
    """Draw a trace as Jaeger shows it: kind, operation and service, indented below its parent."""

    def parent_of(span: dict[str, Any]) -> str:
        parents = [each["spanID"] for each in span["references"] if each["refType"] == "CHILD_OF"]
        return parents[0] if parents else ""

    def below(parent_id: str, depth: int) -> Iterator[str]:
        for span in sorted(trace["spans"], key=lambda span: int(span["startTime"])):
            if parent_of(span) == parent_id:
                tags = {tag["key"]: tag["value"] for tag in span["tags"]}
                kind = tags.get("span.kind", "internal")
                service = trace["processes"][span["processID"]]["serviceName"]
                yield f"{'  ' * depth}{kind} {span['operationName']} @{service}"
                yield from below(span["spanID"], depth + 1)

    return list(below("", 0))


@contextmanager
def running_jaeger() -> Iterator[Jaeger]:
    """Run Jaeger until the block ends."""
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    container = container_of(IMAGE).with_exposed_ports(OTLP_PORT, QUERY_PORT)
    container.waiting_for(HttpWaitStrategy(QUERY_PORT, "/").for_status_code(200))
    with container:
        host = container.get_container_host_ip()
        otlp, query = (container.get_exposed_port(port) for port in (OTLP_PORT, QUERY_PORT))
        yield Jaeger(f"http://{host}:{otlp}", f"http://{host}:{query}")


@pytest.mark.timeout(300)
def test_jaeger_returns_the_same_tree(tmp_path: Path) -> None:
    require_image("Jaeger finds the tree of a call", IMAGE)
    with running_jaeger() as jaeger, traced_processes(tmp_path, jaeger.otlp_url) as running:
        answer = running.ask("weather.forecast", {"within": "question"}, city="Oslo")
        trace = jaeger.trace(answer["trace_id"], 6)
    assert draw(trace) == [
        "internal question @caller",
        "  client weather.forecast @caller",
        "    server weather.forecast @toolbus-server",
        "      server weather.forecast @weather",
        "        internal execute_tool forecast @weather",
        "          internal read model @weather",
    ]
    instances = {
        tag["value"]
        for process in trace["processes"].values()
        for tag in process["tags"]
        if tag["key"] == "service.instance.id"
    }
    assert len(instances) == 3
