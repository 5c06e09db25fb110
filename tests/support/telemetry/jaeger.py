"""A real Jaeger for tests: the program, with storage in memory, read through its query API.

Spans have the form of `otlp_collector.Sent`, made from what the pages of Jaeger read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import requests

from support.patience import PATIENCE_S
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import free_port
from support.telemetry.otlp_collector import Sent, in_tree

__all__ = ["Jaeger", "jaeger_program", "running_jaeger"]

PROGRAM_VARIABLE = "TOOLBUS_TEST_JAEGER"
# Read before tests remove the variables that a person has set.
_GIVEN = os.environ.get(PROGRAM_VARIABLE, "")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_BUILT = _CACHE / "toolbus" / "jaeger" / "jaeger"
_POLL_S = 0.05


def jaeger_program() -> str:
    """Find the program: the one that was chosen, the one that was built, or one on the path."""
    if _GIVEN:
        return _GIVEN
    found = str(_BUILT) if _BUILT.exists() else shutil.which("jaeger")
    if found is None:
        why = f"no {_BUILT} and no jaeger on the path: `make jaeger` builds it"
        not_verified("Jaeger", why, ci_has_it=False)
    return found


class Jaeger(NamedTuple):
    """The addresses for spans and for queries."""

    otlp_url: str
    query_url: str

    def wait_for(self, trace_id: str, count: int) -> list[Sent]:
        """Wait until a trace has this many spans; return each below its parent, siblings by start.

        Fails if Jaeger has a warning about one of them.
        """
        path = f"/api/traces/{trace_id}"
        found: list[dict[str, Any]] = []
        until = time.monotonic() + PATIENCE_S
        while sum(len(trace["spans"]) for trace in found) < count:
            assert time.monotonic() < until, f"fewer than {count} spans: {found}"
            found = self.ask(path) or []
            Event().wait(_POLL_S)
        (trace,) = found
        spans = sorted(_spans_of(trace), key=lambda span: span.start_ns)
        return [span for _, span in in_tree(spans)]

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the query API; None if there is no such trace."""
        reply = requests.get(f"{self.query_url}{path}", parameters, timeout=10)
        if reply.status_code == requests.codes.not_found:
            return None
        reply.raise_for_status()
        return reply.json()["data"]


def _values(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: pair["value"] for pair in pairs}


def _spans_of(trace: dict[str, Any]) -> Iterator[Sent]:
    assert not trace["warnings"], trace["warnings"]
    for span in trace["spans"]:
        assert not span["warnings"], span
        process = trace["processes"][span["processID"]]
        yield _sent(span, process["serviceName"], _values(process["tags"]))


def _sent(span: dict[str, Any], service: str, resource: dict[str, Any]) -> Sent:
    references = {
        kind: tuple(
            (each["traceID"], each["spanID"])
            for each in span["references"]
            if each["refType"] == kind
        )
        for kind in ("CHILD_OF", "FOLLOWS_FROM")
    }
    parents = [span_id for _, span_id in references["CHILD_OF"]]
    tags = _values(span["tags"])
    logs = [_values(log["fields"]) for log in span["logs"]]
    return Sent(
        name=span["operationName"],
        kind=tags.pop("span.kind", "internal").upper(),
        trace_id=span["traceID"],
        span_id=span["spanID"],
        parent_id="".join(parents),
        service=service,
        instance=str(resource.get("service.instance.id")),
        status=tags.pop("otel.status_code", "UNSET"),
        message=tags.pop("otel.status_description", ""),
        links=references["FOLLOWS_FROM"],
        trace_state=tags.pop("w3c.tracestate", ""),
        events=tuple((fields.pop("event"), fields) for fields in logs),
        start_ns=span["startTime"] * 1_000,
        end_ns=(span["startTime"] + span["duration"]) * 1_000,
        attributes=tags,
    )


def _settings(otlp_port: int, query_port: int) -> dict[str, Any]:
    """Return settings with two open ports: the settings that Jaeger has inside open a dozen."""
    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "pipelines": {
                "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}
            },
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
        },
        "extensions": {
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 10_000}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                "http": {"endpoint": f"127.0.0.1:{query_port}"},
                "grpc": {"endpoint": f"127.0.0.1:{free_port()}"},
            },
        },
        "receivers": {
            "otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{otlp_port}"}}},
        },
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }


@contextmanager
def running_jaeger(folder: Path) -> Iterator[Jaeger]:
    """Run Jaeger until the block ends."""
    program = jaeger_program()
    otlp_port, query_port = free_port(), free_port()
    settings = folder / "jaeger.json"
    settings.write_text(json.dumps(_settings(otlp_port, query_port)), encoding="utf-8")
    log = folder / "jaeger.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "--config", str(settings)], cwd=folder, stdout=output, stderr=output
        )
    with process:
        try:
            jaeger = Jaeger(f"http://127.0.0.1:{otlp_port}", f"http://127.0.0.1:{query_port}")
            _wait_until_ready(jaeger, process, log)
            yield jaeger
        finally:
            process.kill()


def _wait_until_ready(jaeger: Jaeger, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    empty = {"Content-Type": "application/x-protobuf"}
    while True:
        try:
            requests.post(f"{jaeger.otlp_url}/v1/traces", headers=empty, timeout=10)
            requests.get(f"{jaeger.query_url}/api/services", timeout=10)
        except requests.ConnectionError:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < until, log.read_text(encoding="utf-8")
            Event().wait(_POLL_S)
        else:
            return
