"""The scenes of the demo in which calls exceed their deadline, are cancelled, or lose their host.

They rely on two facts of the bus. Of two hosts, a call goes to the one with fewer calls in flight,
so that two parallel calls run on both, and of three calls at least one runs on a host that is one
call ahead of the other. And a connection is read in order, so that a short call made after a long
one is answered after the long one has started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from toolbus import HostLost, RoomException
from toolbus.telemetry.attributes import ERROR_TYPE, EXECUTED, SERVICE_INSTANCE_ID
from toolbus.telemetry.viewer.trace_tree import SpanRecord, build_tree
from toolbus_toolkits.demo.processes import DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene
from toolbus_toolkits.demo.scenes import (
    COUNT,
    calibrated_count,
    describe_error,
    expect,
    expect_refusal,
)

__all__ = ["fault_scenes"]

_ENDLESS = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)
    SELECT count(*) FROM numbers
"""
_DEADLINE_S = 0.5
_FREE_S = 5.0
"""Well below the 10 s after which a query would have ended by itself."""
_LONG_S = 1.0
"""How long a long query takes where a core is free."""
_LONG_CALL_S = 60.0


def fault_scenes(processes: DemoProcesses) -> list[Scene]:
    """Make the scenes; the last two each kill a host of sql."""
    return [
        Scene(
            "Calls that exceed their deadline",
            f"send as many endless queries as both hosts can run, each with {_DEADLINE_S} s",
            "deadline_exceeded, executed: maybe, for each; then the hosts are free again",
            partial(_run_into_deadline, processes),
        ),
        Scene(
            "A cancelled call",
            "send an endless query and cancel it",
            "the caller goes on at once, and the host stops the query",
            partial(_cancel, processes),
        ),
        Scene(
            "A host is killed",
            "send two long queries, one to each host, with retry=False, and SIGKILL sql-1",
            "one call: host_lost, executed: maybe, retryable; the other returns its result",
            partial(_lose_host, processes),
        ),
        Scene(
            "A host is killed, and its call is retried",
            "start sql-3, send the same two queries with retries enabled, and SIGKILL sql-2",
            "both return their results: the lost call was retried on sql-3",
            partial(_lose_host_and_retry, processes),
        ),
    ]


async def _query(
    processes: DemoProcesses, sql: str, *values: int, timeout_s: float, retry: bool = True
) -> Any:
    arguments = {"sql": sql, "parameters": list(values)}
    chunk = await processes.room.invoke("sql.query", arguments, timeout_s=timeout_s, retry=retry)
    return chunk.value["rows"][0][0]


async def _short_queries(processes: DemoProcesses, count: int) -> None:
    short = [_query(processes, "SELECT 1", timeout_s=_FREE_S) for _ in range(count)]
    await asyncio.gather(*short)


async def _run_into_deadline(processes: DemoProcesses) -> str:
    sql = await processes.room.toolkit("sql")
    slots = (sql.tool("query").max_concurrency or 1) * sql.info.hosts
    began = time.monotonic()
    endless = [
        expect_refusal(
            _query(processes, _ENDLESS, timeout_s=_DEADLINE_S), "deadline_exceeded", "maybe"
        )
        for _ in range(slots)
    ]
    errors = await asyncio.gather(*endless)
    ended = time.monotonic()
    await _short_queries(processes, slots)
    free_s = time.monotonic() - ended
    return (
        f"{len(errors)} calls after {ended - began:.2f} s: {describe_error(errors[0])}; "
        f"{slots} short queries ran in the same slots within {free_s:.2f} s"
    )


async def _cancel(processes: DemoProcesses) -> str:
    call = asyncio.create_task(_query(processes, _ENDLESS, timeout_s=_LONG_CALL_S))
    try:
        await _short_queries(processes, 3)
        expect(not call.done(), "the endless query has ended")
        cancelled_ns = time.time_ns()
        call.cancel()
        await asyncio.wait({call})
        free_ms = (time.time_ns() - cancelled_ns) / 1e6
    finally:
        call.cancel()
    expect(call.cancelled(), "the call was not cancelled")
    spans = await processes.trace(_was_cancelled)
    work = next(span for span in spans if span.kind == "INTERNAL")
    stopped_ms = (work.end_ns - cancelled_ns) / 1e6
    expect(stopped_ms < _FREE_S * 1000, f"the host went on for {stopped_ms:.0f} ms")
    return (
        f"the caller went on after {free_ms:.1f} ms, and {_instance(work)} stopped after "
        f"{stopped_ms:.1f} ms, according to its span"
    )


def _was_cancelled(spans: Sequence[SpanRecord]) -> bool:
    return any(span.attributes.get(ERROR_TYPE) == "cancelled" for span in spans) and any(
        span.kind == "INTERNAL" for span in spans
    )


async def _lose_host(processes: DemoProcesses) -> str:
    count = await _long_count(processes)
    outcomes, took_s = await _kill_during_calls(processes, "sql-1", count, retry=False)
    lost = [outcome for outcome in outcomes if isinstance(outcome, HostLost)]
    answers = [outcome for outcome in outcomes if outcome == count]
    expect((len(lost), len(answers)) == (1, 1), f"the calls ended with {_outcome_text(outcomes)}")
    error = lost[0]
    expect(error.executed == "maybe" and error.retryable, describe_error(error))
    await processes.wait_for_hosts(sql=1)
    return (
        f"{describe_error(error)}; the other counted to {answers[0]:,} in {took_s:.1f} s; "
        "sql has 1 host"
    )


async def _lose_host_and_retry(processes: DemoProcesses) -> str:
    await processes.host("sql-3", "sql")
    await processes.wait_for_hosts(sql=2)
    count = await _long_count(processes)
    outcomes, took_s = await _kill_during_calls(processes, "sql-2", count, retry=True)
    expect(outcomes == [count, count], f"the calls ended with {_outcome_text(outcomes)}")
    tree = build_tree(await processes.trace(_was_retried))
    first, second = (node.span for node in tree.nodes if node.depth == 1)
    host = next(node.span for node in tree.nodes if node.depth == 2)
    expect(_instance(host) == "sql-3", f"the second attempt went to {_instance(host)}")
    return (
        f"both counted to {count:,} within {took_s:.1f} s; in one call's trace: "
        f"{first.attributes[ERROR_TYPE]}, executed: {first.attributes[EXECUTED]} after "
        f"{first.duration_ms / 1000:.1f} s, then executed: {second.attributes[EXECUTED]} on "
        f"{_instance(host)} after {second.duration_ms / 1000:.1f} s"
    )


def _was_retried(spans: Sequence[SpanRecord]) -> bool:
    tree = build_tree(spans)
    attempts = [node.span.attributes.get(EXECUTED) for node in tree.nodes if node.depth == 1]
    return tree.whole and attempts == ["maybe", "yes"]


async def _long_count(processes: DemoProcesses) -> int:
    """Measure how far this machine counts in the time of a long query."""
    return await calibrated_count(partial(_query, processes, COUNT, timeout_s=_FREE_S), _LONG_S)


async def _kill_during_calls(
    processes: DemoProcesses, label: str, count: int, *, retry: bool
) -> tuple[list[Any], float]:
    """Kill a host while it runs one of two long calls; return both outcomes and the time taken."""
    began = time.monotonic()
    calls = [
        asyncio.create_task(_query(processes, COUNT, count, timeout_s=_LONG_CALL_S, retry=retry))
        for _ in range(2)
    ]
    try:
        await _short_queries(processes, 2)
        expect(not any(call.done() for call in calls), "a long query ended too soon")
        await processes.by_label[label].kill()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        for call in calls:
            call.cancel()
    return outcomes, time.monotonic() - began


def _outcome_text(outcomes: Sequence[Any]) -> str:
    return " and ".join(
        describe_error(outcome) if isinstance(outcome, RoomException) else repr(outcome)
        for outcome in outcomes
    )


def _instance(span: SpanRecord) -> str:
    return str(span.resource.get(SERVICE_INSTANCE_ID, "?"))
