"""`toolbus trace` in a separate process, and when a trace is printed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from opentelemetry.sdk.resources import Resource
from typer.testing import CliRunner

from toolbus.cli.app import make_app
from toolbus.cli.commands.trace import TraceSchedule
from toolbus.telemetry.otlp_exporter import OtlpExporter, ReportingExporter, SpanPipeline
from toolbus.telemetry.tracing import Tracing

COMMAND = "import typer; from toolbus.cli.commands.trace import trace; typer.run(trace)"


@asynccontextmanager
async def watching(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command; gives the process and the address that it names."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        COMMAND,
        "--port",
        "0",
        *options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stderr.readline()).decode()
            yield process, line.partition("=")[2].split()[0]
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def call_over(endpoint: str, *, method: str = "clock.now") -> None:
    """Record one call's CLIENT and SERVER spans in two services."""

    def record() -> None:
        caller, host = (
            SpanPipeline.to_exporter(
                ReportingExporter(OtlpExporter(f"{endpoint}/v1/traces"), endpoint),
                Resource({"service.name": name}),
            )
            for name in ("caller", "host")
        )
        client = Tracing(caller.provider).start_client(method, "c1")
        assert client is not None
        call = Tracing(host.provider).start_host(method, "c1", received=client.context)
        with call.executing():
            pass
        call.end()
        client.end()
        caller.close()
        host.close()

    await asyncio.to_thread(record)


async def test_complete_call_is_printed_as_a_tree() -> None:
    async with watching("--count", "1") as (process, endpoint):
        await call_over(endpoint)
        out, _ = await process.communicate()
        assert process.returncode == 0
    lines = out.decode().split("\n")
    assert lines[1].startswith("trace ")
    assert [line.split("  ")[1] for line in lines[2:5]] == [
        "clock.now",
        "└─ clock.now",
        "",
    ]
    assert "└─ execute_tool now" in lines[4]
    assert "caller" in lines[2]
    assert "executed=yes" in lines[3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_prints_pending_traces_and_exits_with_0(number: signal.Signals) -> None:
    async with watching("--json") as (process, endpoint):
        await call_over(endpoint)
        process.send_signal(number)
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
    printed = json.loads(out)
    assert printed["whole"] is True
    assert [span["kind"] for span in printed["spans"]] == ["CLIENT", "SERVER", "INTERNAL"]


async def test_port_in_use_is_reported_in_one_line() -> None:
    async with watching() as (process, endpoint):
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            COMMAND,
            "--port",
            endpoint.rpartition(":")[2],
            stderr=subprocess.PIPE,
        )
        _, err = await second.communicate()
        assert second.returncode == 2
        assert err.decode().count("\n") == 1
        assert "--port" in err.decode()
        process.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("option", "value"), [("--host", ""), ("--host", "a\udcff"), ("--port", "99999")]
)
def test_invalid_address_exits_with_2_and_names_the_option(option: str, value: str) -> None:
    result = CliRunner().invoke(make_app(), ["trace", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr


def test_complete_trace_is_due_before_an_incomplete_one() -> None:
    schedule = TraceSchedule(quiet_s=1, incomplete_s=6)
    assert schedule.seconds_left(0) is None
    schedule.add("whole", complete=True, now=10)
    schedule.add("torn", complete=False, now=10)
    assert schedule.seconds_left(10.5) == 0.5
    assert schedule.take_due(10.9) == []
    schedule.add("whole", complete=True, now=10.9)
    assert schedule.take_due(11) == []
    assert schedule.take_due(11.9) == ["whole"]
    assert schedule.seconds_left(20) == 0
    assert schedule.take_all() == ["torn"]
    assert schedule.take_all() == []
