"""Starts the processes of a leg, reads their ready lines over pipes, and ends them by their own ids."""

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

from bench.measure import Load, Sample

TESTS = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 300.0
END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to get a call from a caller to a host and back."""

    name: str
    module: str
    """What `python -m` runs with the role as its argument."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


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
async def started(leg: Leg, role: str, loop: str, where: dict[str, Any]) -> AsyncIterator[Process]:
    """One process of a leg, told where the router is; ended on leaving."""
    raw = await asyncio.create_subprocess_exec(
        leg.python,
        *("-m", leg.module, role, "--loop", loop),
        cwd=TESTS,
        env={**os.environ, **leg.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    process = Process(raw, f"{leg.name} {role}")
    try:
        await process.tell(where)
        yield process
    finally:
        await process.end()


async def run_round(leg: Leg, loop: str, loads: Sequence[Load]) -> list[Sample]:
    """Start router, host and caller afresh, measure each load, and end all three."""
    async with started(leg, "router", loop, {}) as router:
        where = await router.hear(START_TIMEOUT_S)
        async with started(leg, "host", loop, where) as host:
            await host.hear(START_TIMEOUT_S)
            async with started(leg, "caller", loop, where) as caller:
                await caller.hear(START_TIMEOUT_S)
                pids = [router.pid, host.pid, caller.pid]
                return [await _measured(caller, load, pids) for load in loads]


async def _measured(caller: Process, load: Load, pids: Sequence[int]) -> Sample:
    # Of one call at a time only one process is ever awake. On one core its time is what the three do;
    # spread over idle cores it is mostly how long a virtual machine takes to wake one.
    with _on_one_core(pids) if load.in_flight == 1 else contextlib.nullcontext():
        await caller.tell(load.as_json())
        return Sample(**await caller.hear(LOAD_TIMEOUT_S))


@contextlib.contextmanager
def _on_one_core(pids: Sequence[int]) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    _confine(pids, {min(cores)})
    try:
        yield
    finally:
        _confine(pids, cores)


def _confine(pids: Sequence[int], cores: set[int]) -> None:
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                os.sched_setaffinity(int(thread.name), cores)
                _confine([int(child) for child in (thread / "children").read_text().split()], cores)
