"""Runs rounds: starts a leg's three processes, measures them, and ends them by their own ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Load, Sample

TESTS = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 300.0
END_TIMEOUT_S = 5.0
ROLES = ("router", "host", "caller")


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to get a call from a caller to a host and back."""

    name: str
    module: str
    """What `python -m` runs with the role as its argument."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one leg did under one load in one round."""

    sample: Sample
    cpu_us: tuple[float, ...]
    """Processor time per call of router, host and caller, in microseconds."""


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
    """All three processes of a leg, started afresh and ready; `flags` are added by role."""
    added = flags or {}
    where: dict[str, Any] = {}
    processes: dict[str, Process] = {}
    async with contextlib.AsyncExitStack() as stack:
        for role in ROLES:
            starting = started(leg, role, where, "--loop", loop, *added.get(role, ()))
            processes[role] = await stack.enter_async_context(starting)
            said = await processes[role].hear(START_TIMEOUT_S)
            where = where or said
        yield processes


async def run_round(leg: Leg, loop: str, loads: Sequence[Load]) -> list[Figures]:
    """Measure each load once, on processes that live for this round alone."""
    async with running(leg, loop) as processes:
        return [await figures_of(processes, load) for load in loads]


async def figures_of(processes: Mapping[str, Process], load: Load) -> Figures:
    """Let the caller put a load on, and see what it took."""
    trees = [_tree(processes[role].pid) for role in ROLES]
    everybody = [process for tree in trees for process in tree]
    # Of one call at a time only one process is ever awake. On one core its time is what the three
    # do; over idle cores it is mostly how long a virtual machine takes to wake another core.
    with _on_one_core(everybody) if load.in_flight == 1 else contextlib.nullcontext():
        before_s = [_cpu_s(tree) for tree in trees]
        await processes["caller"].tell(load.as_json())
        sample = Sample(**await processes["caller"].hear(LOAD_TIMEOUT_S))
        after_s = [_cpu_s(tree) for tree in trees]
    calls = load.calls + load.warm_up_calls
    spent_s = zip(before_s, after_s, strict=True)
    return Figures(sample, tuple((after - before) / calls * 1e6 for before, after in spent_s))


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_s(tree: Sequence[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (each.cpu_times() for each in tree))


@contextlib.contextmanager
def _on_one_core(processes: Sequence[psutil.Process]) -> Iterator[None]:
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
