"""The exporter that the `OTEL_*` variables configure, and collectors that fail or do not answer."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.telemetry.recording_server import recording_server
from toolbus.telemetry import configure
from toolbus.telemetry.attributes import SERVICE_INSTANCE_ID, SERVICE_NAME
from toolbus.telemetry.otlp_exporter import OtlpExporter, ReportingExporter, SpanPipeline
from toolbus.telemetry.tracing import Tracing
from toolbus.telemetry.viewer.receiver import SpanReceiver

METHOD = "weather.forecast"
CALL_ID = "c" * 32


def test_configure_does_nothing_unless_the_variables_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    assert configure("caller") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert configure("caller") is None
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert configure("caller") is None
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def test_configure_names_the_extra_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "toolbus.telemetry.otlp_exporter")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert configure("caller") is None
    [record] = caplog.records
    assert "toolbus[otel]" in record.getMessage()


CONFIGURED = """
from toolbus.telemetry import configure
from toolbus.telemetry.tracing import Tracing
close = configure("from-code", instance_id="instance-7")
assert close is not None
assert configure("again") is None
span = Tracing().start_client("weather.forecast", "c1")
span.end()
{ending}
"""


@pytest.mark.parametrize(("ending", "name"), [("close()", None), ("", "from-variables")])
async def test_configured_process_sends_its_spans_before_it_ends(
    ending: str, name: str | None
) -> None:
    async with SpanReceiver(port=0) as receiver:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        if name is not None:
            variables["OTEL_SERVICE_NAME"] = name
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CONFIGURED.format(ending=ending),
            env={**os.environ, **variables},
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            _, output = await program.communicate()
        assert (program.returncode, output) == (0, b"")
        [span] = await receiver.wait_for(bool, timeout_s=5)
    assert span.resource[SERVICE_NAME] == (name or "from-code")
    assert span.resource[SERVICE_INSTANCE_ID] == "instance-7"
    assert span.resource["service.version"]


@contextmanager
def hanging_collector() -> Iterator[str]:
    """A socket that accepts connections in its backlog and never reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


@contextmanager
def absent_collector() -> Iterator[str]:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}/v1/traces"


@pytest.mark.parametrize("collector", [hanging_collector, absent_collector])
def test_dead_or_hanging_collector_slows_neither_calls_nor_the_end(
    collector: Callable[[], AbstractContextManager[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "toolbus")
    with collector() as url:
        exporter = ReportingExporter(OtlpExporter(url, timeout_s=60), "the collector")
        pipeline = SpanPipeline.to_exporter(exporter, Resource.get_empty())
        tracing = Tracing(pipeline.provider)
        began_s = time.perf_counter()
        for _ in range(5_000):  # more than the queue holds
            span = tracing.start_client(METHOD, CALL_ID)
            assert span is not None
            span.end()
        pipeline.close(timeout_s=0.3)
        assert time.perf_counter() - began_s < 30  # one batch alone would wait for 60 s
    assert sum(record.name.startswith("toolbus") for record in caplog.records) <= 1


def test_close_does_not_wait_for_an_absent_collector_and_reports_the_loss(
    monkeypatch: pytest.MonkeyPatch, bare_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with absent_collector() as url:
        began_s = time.perf_counter()
        send_one_span(monkeypatch, url.removesuffix("/v1/traces"))  # waits for 60 s at most
        assert time.perf_counter() - began_s < 30
    [output] = [
        each.getMessage() for each in caplog.records if each.name == "toolbus.telemetry.tracing"
    ]
    place = url.removeprefix("http://").removesuffix("/v1/traces")
    assert output == f"spans do not reach http://{place} and are lost; calls are not affected"


def test_close_reports_a_collector_that_took_too_long(caplog: pytest.LogCaptureFixture) -> None:
    with hanging_collector() as url:
        exporter = ReportingExporter(OtlpExporter(url, timeout_s=60), "the collector")
        pipeline = SpanPipeline.to_exporter(exporter, Resource.get_empty())
        span = Tracing(pipeline.provider).start_client(METHOD, CALL_ID)
        assert span is not None
        span.end()
        pipeline.close(timeout_s=0.3)
    assert "spans do not reach the collector and are lost" in caplog.text


def test_process_without_spans_logs_nothing_about_an_absent_collector(
    monkeypatch: pytest.MonkeyPatch, bare_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    SpanPipeline.from_environment("caller").close()
    assert not [each for each in caplog.records if each.name == "toolbus.telemetry.tracing"]


def send_one_span(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    pipeline = SpanPipeline.from_environment("caller")
    span = Tracing(pipeline.provider).start_client(METHOD, CALL_ID)
    assert span is not None
    span.end()
    pipeline.close(timeout_s=60)


@pytest.fixture
def bare_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Use a home and an environment without proxies and passwords."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name in {
            "NETRC",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_spans_go_to_the_collector_by_default(
    monkeypatch: pytest.MonkeyPatch, bare_home: Path
) -> None:
    with recording_server() as (endpoint, asked):
        send_one_span(monkeypatch, endpoint)
    assert [(path, headers.get("authorization")) for path, headers in asked] == [
        ("/v1/traces", None)
    ]
    assert list(bare_home.iterdir()) == []


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_spans_go_through_the_proxy_that_the_environment_names(
    variable: str, monkeypatch: pytest.MonkeyPatch, bare_home: Path
) -> None:
    with recording_server() as (proxy, asked):
        monkeypatch.setenv(variable, proxy)
        send_one_span(monkeypatch, "http://collector.invalid:4318")
    assert [path for path, _ in asked] == ["http://collector.invalid:4318/v1/traces"]
    assert "authorization" not in asked[0][1]
    assert bare_home.is_dir()


@pytest.mark.parametrize("file", [".netrc", "_netrc", "elsewhere"])
def test_spans_carry_the_password_that_the_users_file_has_for_the_collector(
    file: str, monkeypatch: pytest.MonkeyPatch, bare_home: Path
) -> None:
    (bare_home / file).write_text("machine 127.0.0.1 login ann password secret\n")
    (bare_home / file).chmod(0o600)
    if file == "elsewhere":
        monkeypatch.setenv("NETRC", str(bare_home / file))
    with recording_server() as (endpoint, asked):
        send_one_span(monkeypatch, endpoint)
    [(path, headers)] = asked
    assert (path, headers["authorization"]) == ("/v1/traces", "Basic YW5uOnNlY3JldA==")


def test_recovered_collector_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(InMemorySpanExporter):
        away = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if self.away:
                raise OSError("away")
            return super().export(spans)

    caplog.set_level(logging.WARNING, "toolbus")
    flaky = Flaky()
    exporter = ReportingExporter(flaky, "flaky:4318")
    for _ in range(3):
        exporter.export(())
    flaky.away = False
    for _ in range(3):
        exporter.export(())
    output = [record.getMessage() for record in caplog.records if "flaky" in record.getMessage()]
    assert output == [
        "spans do not reach flaky:4318 and are lost; calls are not affected",
        "spans reach flaky:4318 again; 0 were lost",
    ]
