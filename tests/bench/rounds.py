"""Runs rounds: starts a leg's processes, measures them, and ends them by their own ids."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.legs import ALONE, IN_FLIGHT, ROLES, SPANS_PER_CALL, Leg
from bench.measure import Load, Sample

TESTS = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 300.0
END_TIMEOUT_S = 5.0
SETTLE_S = 1.5
"""In that time a process sends the spans that it holds, and sends them every 0.5 s."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one leg did under one load in one round."""

    sample: Sample
    cpu_us: tuple[float, ...]
    """Processor time per call of router, host and caller, as far as the leg has them, in
    microseconds."""


def rate_by_cpu(cpu_us: Sequence[float]) -> float:
    """Calls per second that the processor time would allow: the busiest process, or all cores."""
    return 1e6 / max(*cpu_us, sum(cpu_us) / (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Round:
    """What one leg did in one round; None under a load that is not its own."""

    alone: Figures | None
    in_flight: Figures | None = None
    spans_per_call: float = 0.0
    """Spans that arrived at the receiver, where the leg has one."""
    took_s: float = 0.0
    bout: int = 0
    """In which bout it was, side by side with other legs; 0 where it was by itself."""


class Process:
    """A process that speaks lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process, what: str) -> None:
        self._process = process
        self._what = what
        self.pid = process.pid

    async def tell(self, facts: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(facts).encode() + b"\n")
        await self._process.stdin.drain()

    async def hear(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._what} ended without its word; its stderr says why")
        facts: dict[str, Any] = json.loads(line)
        return facts

    async def end(self) -> None:
        """Close its stdin, which is its sign to leave; kill it by its id if it stays."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def started(
    leg: Leg, role: str, where: Mapping[str, Any], *flags: str
) -> AsyncIterator[Process]:
    """One process of a leg, told where the router is; ended on leaving."""
    raw = await asyncio.create_subprocess_exec(
        *(leg.python, "-m", leg.module, role, *flags),
        cwd=TESTS,
        env={**_clean_environment(), **leg.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    process = Process(raw, f"{leg.name} {role}")
    try:
        await process.tell(where)
        yield process
    finally:
        await process.end()


def _clean_environment() -> dict[str, str]:
    ours = ("TOOLBUS_", "OTEL_", "PYTHONASYNCIO", "PYTHONDEVMODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@contextlib.asynccontextmanager
async def running(
    leg: Leg, loop: str, flags: Mapping[str, Sequence[str]] | None = None
) -> AsyncIterator[dict[str, Process]]:
    """All processes of a leg, started afresh and ready; `flags` are added by role."""
    added = flags or {}
    where: dict[str, Any] = {}
    processes: dict[str, Process] = {}
    async with contextlib.AsyncExitStack() as stack:
        for role in leg.roles:
            starting = started(leg, role, where, "--loop", loop, *added.get(role, ()))
            processes[role] = await stack.enter_async_context(starting)
            said = await processes[role].hear(START_TIMEOUT_S)
            where = {**said, **where}  # what was said first counts
        yield processes


async def run_round(leg: Leg, loop: str) -> Round:
    """Measure each of the leg's loads once, on processes that live for this round alone.

    Raises:
        RuntimeError: A process ended early, or the spans that were to be recorded were not.
    """
    began_s = time.monotonic()
    figures: dict[Load, Figures] = {}
    async with receiver_of(leg) as (leg, receiver):
        async with running(leg, loop) as processes:
            for load in leg.loads:
                figures[load] = await figures_of(
                    processes, load.scaled(leg.share), SETTLE_S if leg.traced_share else 0.0
                )
        # Only now have the processes sent the last of their spans.
        spans = 0.0 if receiver is None else await _spans_per_call(leg, receiver)
    took_s = time.monotonic() - began_s
    return Round(figures.get(ALONE), figures.get(IN_FLIGHT), spans, took_s)


@contextlib.asynccontextmanager
async def receiver_of(leg: Leg) -> AsyncIterator[tuple[Leg, Process | None]]:
    """The receiver of spans that a leg needs, if it does, and the leg that sends to it."""
    if not leg.traced_share:
        yield leg, None
        return
    receiving = Leg("receiver", "bench.span_intake", "receives spans", roles=("receiver",))
    async with started(receiving, "receiver", {}) as receiver:
        endpoint = (await receiver.hear(START_TIMEOUT_S))["url"]
        environment = {**leg.environment, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        yield dataclasses.replace(leg, environment=environment), receiver


async def _spans_per_call(leg: Leg, receiver: Process) -> float:
    loads = [load.scaled(leg.share) for load in leg.loads]
    return await spans_per_call_of(
        leg, receiver, sum(load.calls + load.warm_up_calls for load in loads)
    )


async def spans_per_call_of(leg: Leg, receiver: Process, calls: int) -> float:
    """Ask the receiver how many spans came of so many calls.

    Raises:
        RuntimeError: Not as many as the leg says.
    """
    await receiver.tell({"count": True})
    spans_per_call: float = (await receiver.hear(START_TIMEOUT_S))["spans"] / calls
    expected = SPANS_PER_CALL * leg.traced_share
    if not expected / 2 <= spans_per_call <= expected * 2:
        raise RuntimeError(f"{leg.name}: {spans_per_call:.3f} spans per call, not {expected}")
    return spans_per_call


async def figures_of(
    processes: Mapping[str, Process], load: Load, settle_s: float = 0.0
) -> Figures:
    """Let the caller put a load on, and see what it took, the work of `settle_s` after it too."""
    trees = [process_tree(processes[role].pid) for role in ROLES if role in processes]
    everybody = [process for tree in trees for process in tree]
    # Of one call at a time only one process is ever awake. On one core its time is what the three
    # do; over idle cores it is mostly how long a virtual machine takes to wake another core.
    with on_one_core(everybody) if load.in_flight == 1 else contextlib.nullcontext():
        before_s = [cpu_s(tree) for tree in trees]
        await processes["caller"].tell(load.as_json())
        sample = Sample(**await processes["caller"].hear(LOAD_TIMEOUT_S))
        await asyncio.sleep(settle_s)
        after_s = [cpu_s(tree) for tree in trees]
    calls = load.calls + load.warm_up_calls
    spent_s = zip(before_s, after_s, strict=True)
    return Figures(sample, tuple((after - before) / calls * 1e6 for before, after in spent_s))


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and those that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s(tree: Sequence[psutil.Process]) -> float:
    """Processor time that these have had so far."""
    return sum(times.user + times.system for times in (each.cpu_times() for each in tree))


@contextlib.contextmanager
def on_one_core(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Keep processes on one core for as long as the block runs; where the system can."""
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    _confine(processes, {max(cores)})
    try:
        yield
    finally:
        _confine(processes, cores)


def _confine(processes: Sequence[psutil.Process], cores: set[int]) -> None:
    for process in processes:
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                os.sched_setaffinity(thread.id, cores)
