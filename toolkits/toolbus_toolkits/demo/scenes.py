"""The scenes of the demo without faults: toolkits, queries, refusals, a trace.

Those with an agent are in `agent_scenes`, those in which calls or processes are stopped or killed
in `fault_scenes`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from toolbus import Executed, RoomException
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.telemetry.attributes import SERVICE_INSTANCE_ID
from toolbus.telemetry.viewer.trace_tree import SpanRecord, build_tree, render_lines
from toolbus.wire import ToolManifest
from toolbus_toolkits.demo.processes import DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneFailed, SceneOutput, table
from toolbus_toolkits.inventory import build_inventory

__all__ = [
    "COUNT",
    "basic_scenes",
    "calibrated_count",
    "describe_error",
    "expect",
    "expect_refusal",
    "inventory_scene",
    "trace_scene",
]

_INVENTORY_S = 3.0
_HOP_KINDS = ["CLIENT", "SERVER", "SERVER", "INTERNAL"]

COUNT = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    SELECT count(*) FROM numbers
"""
"""Counts to its parameter."""
_SAMPLE_COUNT = 200_000
_SAMPLES = 3
_LARGEST = """
    SELECT name, version, source, round(size_bytes / 1e6, 1) AS mb FROM packages
    WHERE size_bytes IS NOT NULL ORDER BY size_bytes DESC LIMIT 5
"""
_LICENCES = """
    SELECT coalesce(licence, 'none stated') AS licence, count(*) AS packages FROM packages
    WHERE source = 'python' GROUP BY licence ORDER BY packages DESC, licence LIMIT 5
"""
_MOST_NEEDED = """
    SELECT requires AS package, count(DISTINCT package) AS required_by FROM dependencies
    WHERE extra IS NULL AND source = ? GROUP BY requires ORDER BY required_by DESC, requires LIMIT 5
"""
_NEEDED_BY_TOOLBUS = """
    WITH RECURSIVE needed(name, steps) AS (
        SELECT 'toolbus', 0
        UNION
        SELECT d.requires, steps + 1 FROM needed JOIN dependencies AS d ON d.package = needed.name
        WHERE d.extra IS NULL AND d.source = 'python' AND steps < 9
    )
    SELECT depth, count(*) AS packages, round(sum(size_bytes) / 1e6, 1) AS mb
    FROM (SELECT name, min(steps) AS depth FROM needed GROUP BY name)
    JOIN packages USING (name) WHERE source = 'python' GROUP BY depth ORDER BY depth
"""
_QUERIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("largest packages", _LARGEST, ()),
    ("Python licences", _LICENCES, ()),
    ("most required in Python", _MOST_NEEDED, ("python",)),
    ("dependencies of toolbus", _NEEDED_BY_TOOLBUS, ()),
)


def expect(truth: bool, otherwise: str) -> None:
    """Check a fact. Raises SceneFailed with `otherwise` as its text."""
    if not truth:
        raise SceneFailed(otherwise)


async def expect_refusal(call: Awaitable[Any], code: str, executed: Executed) -> RoomException:
    """Make a call that must fail in this way, and return its error.

    Raises:
        SceneFailed: It succeeded, or failed in another way.
    """
    try:
        value = await call
    except RoomException as error:
        expect((error.code, error.executed) == (code, executed), describe_error(error))
        return error
    raise SceneFailed(f"the call succeeded: {value!r:.200}")


def describe_error(error: RoomException) -> str:
    """Format an error: code, whether the tool ran, whether to retry, and its message."""
    retryable = "yes" if error.retryable else "no"
    facts = f"{error.code}, executed: {error.executed}, retryable: {retryable}"
    return f"{facts}: {error.message}"


def inventory_scene(processes: DemoProcesses) -> Scene:
    """Make the scene that writes the database."""
    return Scene(
        "Real data",
        "write the packages installed on this machine into a SQLite file",
        "a file that lists this machine's packages",
        partial(_write_inventory, processes),
    )


def basic_scenes(processes: DemoProcesses, output: SceneOutput) -> list[Scene]:
    """Make the scenes that start the processes, query, and are refused."""
    return [
        inventory_scene(processes),
        Scene(
            "A server and three hosts",
            "start a room server, two hosts of sql and one of clock, each a process with a token",
            "the room's events report 2 hosts of sql and 1 of clock",
            partial(_start_processes, processes),
        ),
        Scene(
            "Toolkits in the room",
            "join as a visitor from this process, list the toolkits and inspect sql",
            "sql with its tools and rules; of clock only the tool that the visitor may call",
            partial(_list_toolkits, processes, output),
        ),
        Scene(
            "Queries in parallel",
            f"send {len(_QUERIES)} queries about the packages at once, through sql.query",
            "rows for each query",
            partial(_run_queries, processes, output),
        ),
        Scene(
            "A call without a grant",
            "call clock.convert with a token that allows sql and clock.now",
            "permission_denied, executed: no",
            partial(_call_without_grant, processes),
        ),
        Scene(
            "An invalid argument",
            'call sql.query with max_rows="ten"',
            "invalid_arguments with the path /max_rows, executed: no",
            partial(_send_bad_argument, processes),
        ),
        Scene(
            "A statement that writes",
            "call sql.query with DROP TABLE packages",
            "tool_failed with SQLite's message, executed: yes; and the table still exists",
            partial(_try_to_write, processes),
        ),
    ]


def trace_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene that prints one call as a trace."""
    return Scene(
        "One call, one trace",
        "call sql.query once more, and receive its spans over OTLP",
        "CLIENT > SERVER > SERVER > INTERNAL, from three processes: caller, server, host",
        partial(_show_trace, processes, output),
    )


async def _write_inventory(processes: DemoProcesses) -> str:
    build = partial(build_inventory, processes.database, time_s=_INVENTORY_S)
    count = await WorkerThreads("inventory", 1, may_take_long=True).run(build)
    expect(count > 0, "no package was found")
    size_kb = processes.database.stat().st_size / 1e3
    return f"{count} packages, {size_kb:,.0f} kB in {processes.database}"


async def _start_processes(processes: DemoProcesses) -> str:
    await processes.start_server()
    for label, toolkit in (("sql-1", "sql"), ("sql-2", "sql"), ("clock-1", "clock")):
        await processes.host(label, toolkit)
    await processes.wait_for_hosts(sql=2, clock=1)
    pids = ", ".join(
        f"{label} is pid {started.pid}" for label, started in processes.by_label.items()
    )
    return f"{pids}; the server listens on {processes.url}"


async def _list_toolkits(processes: DemoProcesses, output: SceneOutput) -> str:
    listed = {info.name: info async for info in processes.room.toolkits()}
    rows = [
        (info.name, info.owner, info.hosts, ", ".join(info.tools), info.description)
        for info in listed.values()
    ]
    columns = ("toolkit", "owner", "hosts", "visible tools", "description")
    output.print_tables(table("toolkits", columns, rows, max_chars=60))
    sql = await processes.room.toolkit("sql")
    tools = [_row_of(tool) for tool in sql.manifest.tools]
    output.print_tables(
        table("tools of sql", ("tool", "arguments", "description"), tools, max_chars=60)
    )
    output.print_list("rules of sql", sql.manifest.rules)
    expect(sorted(listed) == ["clock", "sql"], f"the toolkits are {sorted(listed)}")
    expect(listed["clock"].tools == ("now",), f"clock is listed with {listed['clock'].tools}")
    expect(listed["sql"].hosts == 2, f"sql has {listed['sql'].hosts} hosts")
    expect(bool(sql.manifest.rules), "sql has no rules")
    return f"sql has {len(tools)} tools on 2 hosts; of clock the visitor sees only clock.now"


def _row_of(tool: ToolManifest) -> tuple[str, str, str]:
    required = tool.input_schema.get("required", [])
    names = tool.input_schema.get("properties", {})
    arguments = ", ".join(name if name in required else f"[{name}]" for name in names)
    return tool.name, arguments, tool.description.partition("\n")[0]


async def _run_queries(processes: DemoProcesses, output: SceneOutput) -> str:
    sql = await processes.room.toolkit("sql")
    began = time.monotonic()
    answers = await asyncio.gather(
        *(sql.query(sql=text, parameters=list(values)) for _, text, values in _QUERIES)
    )
    took_ms = (time.monotonic() - began) * 1000
    shown = [
        table(title, answer["columns"], answer["rows"], max_chars=22)
        for (title, _, _), answer in zip(_QUERIES, answers, strict=True)
    ]
    output.print_tables(*shown[:2])
    output.print_tables(*shown[2:])
    for (title, _, _), answer in zip(_QUERIES, answers, strict=True):
        expect(bool(answer["rows"]), f"no rows for: {title}")
    return f"{len(answers)} results within {took_ms:.0f} ms"


async def _call_without_grant(processes: DemoProcesses) -> str:
    arguments = {"time": "2026-03-01T12:00:00Z", "to": "Europe/Oslo"}
    call = processes.room.invoke("clock.convert", arguments)
    return describe_error(await expect_refusal(call, "permission_denied", "no"))


async def _send_bad_argument(processes: DemoProcesses) -> str:
    call = processes.room.invoke("sql.query", {"sql": "SELECT 1", "max_rows": "ten"})
    error = await expect_refusal(call, "invalid_arguments", "no")
    path = error.details.get("path")
    expect(path == "/max_rows", f"the path is {path!r}")
    return f"{describe_error(error)} (details: path {path})"


async def _try_to_write(processes: DemoProcesses) -> str:
    call = processes.room.invoke("sql.query", {"sql": "DROP TABLE packages"})
    error = await expect_refusal(call, "tool_failed", "yes")
    answer = await processes.room.call("sql.query", sql="SELECT count(*) FROM packages")
    return f"{describe_error(error)}; the table still has {answer['rows'][0][0]} rows"


async def _show_trace(processes: DemoProcesses, output: SceneOutput) -> str:
    began_ns = time.time_ns()

    def is_this_call(spans: Sequence[SpanRecord]) -> bool:
        tree = build_tree(spans)
        return tree.whole and tree.start_ns >= began_ns

    await processes.room.call("sql.query", sql=_LARGEST)
    tree = build_tree(await processes.trace(is_this_call))
    output.verbatim(line.removeprefix("  ") for line in render_lines(tree))
    kinds = [node.span.kind for node in tree.nodes]
    expect(kinds == _HOP_KINDS, f"the spans are {kinds}")
    depths = [node.depth for node in tree.nodes]
    expect(depths == [0, 1, 2, 3], f"their depths are {depths}")
    names = [node.span.name for node in tree.nodes]
    expected = ["sql.query"] * 3 + ["execute_tool query"]
    expect(names == expected, f"their names are {names}")
    instances = [str(node.span.resource[SERVICE_INSTANCE_ID]) for node in tree.nodes]
    distinct = list(dict.fromkeys(instances))
    expect(len(distinct) == 3, f"the spans come from {distinct}")
    pids = {label: started.pid for label, started in processes.by_label.items()}
    named = ", ".join(f"{label} (pid {pids.get(label, os.getpid())})" for label in distinct)
    return f"{len(tree.nodes)} spans from {len(distinct)} processes: {named}"


async def calibrated_count(count_to: Callable[[int], Awaitable[Any]], long_s: float) -> int:
    """Measure how fast this machine counts, and return how far to count for a given duration.

    Args:
        count_to: Runs `COUNT`.
        long_s: The duration where a core is free.
    """
    took_s = []
    for _ in range(_SAMPLES):
        began_s = time.monotonic()
        await count_to(_SAMPLE_COUNT)
        took_s.append(time.monotonic() - began_s)
    rows = int(_SAMPLE_COUNT / min(took_s) * long_s)
    return max(_SAMPLE_COUNT, rows // 100_000 * 100_000)
