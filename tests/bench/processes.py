"""Starts the processes of a leg, sends them orders, and measures their processor time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.legs import Leg

TESTS = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0
REPLY_TIMEOUT_S = 180.0
END_TIMEOUT_S = 5.0


class LegFailed(Exception):
    """The leg of this name could not be measured, for this reason."""

    def __init__(self, leg: str, reason: str) -> None:
        super().__init__(reason)
        self.leg = leg


class Process:
    """One process of a leg."""

    def __init__(self, process: asyncio.subprocess.Process, leg: str, role: str) -> None:
        self._process = process
        self._leg = leg
        self._role = role
        self.pid = process.pid

    async def send(self, facts: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(facts).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # read() reports the end of the process
            await self._process.stdin.drain()

    async def read(self, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Read one line. Raises LegFailed if none comes."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise LegFailed(self._leg, f"{self._role}: no reply in {timeout_s:.0f} s") from None
        if not line:
            raise LegFailed(self._leg, f"{self._role} ended early; see its stderr")
        facts: dict[str, Any] = json.loads(line)
        return facts

    async def order(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Have an order carried out, and return its result."""
        await self.send({"order": order, **arguments})
        return await self.read(REPLY_TIMEOUT_S)

    async def end(self) -> None:
        """Close its stdin, so that it ends; kill it if it does not."""
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
    leg: Leg, role: str, facts: Mapping[str, Any], loop: str = "uvloop"
) -> AsyncIterator[Process]:
    """Start one process of a leg; end it when the block ends."""
    raw = await asyncio.create_subprocess_exec(
        *(leg.python, "-m", leg.module, role, "--loop", loop),
        cwd=TESTS,
        env={**_clean_environment(), **leg.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    process = Process(raw, leg.name, role)
    try:
        await process.send(facts)
        yield process
    finally:
        await process.end()


def _clean_environment() -> dict[str, str]:
    removed = ("TOOLBUS_", "OTEL_", "PYTHONASYNCIO", "PYTHONDEVMODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(removed)}


@contextlib.asynccontextmanager
async def running(leg: Leg, loop: str) -> AsyncIterator[dict[str, Process]]:
    """Start all processes of a leg, each with the facts of those before it."""
    facts: dict[str, Any] = {}
    processes: dict[str, Process] = {}
    async with contextlib.AsyncExitStack() as stack:
        for role in leg.roles:
            process = await stack.enter_async_context(started(leg, role, facts, loop))
            processes[role] = process
            facts |= await process.read()
        yield processes


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s(tree: Sequence[psutil.Process]) -> float:
    """Return the processor time that these processes, and ended children, have used so far."""
    # The four fields: user and system, and those of children that have ended.
    return sum(sum(each.cpu_times()[:4]) for each in tree)


@contextlib.contextmanager
def on_one_core(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Keep processes on one core while the block runs, on Linux."""
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    _pin(processes, {max(cores)})
    try:
        yield
    finally:
        _pin(processes, cores)


def _pin(processes: Sequence[psutil.Process], cores: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):  # the thread has just ended
                    os.sched_setaffinity(thread.id, cores)


class Contention:
    """Measures how much of the cores other programs use, from construction on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._others_s, self._stolen_s = _others_s()

    def __str__(self) -> str:
        capacity_s = (time.monotonic() - self._began_s) * (psutil.cpu_count() or 1)
        others_s, stolen_s = _others_s()
        others = max(0.0, (others_s - self._others_s) / capacity_s)
        stolen = (stolen_s - self._stolen_s) / capacity_s
        return f"other programs used {others:.0%} of the cores, other virtual machines {stolen:.0%}"


def _others_s() -> tuple[float, float]:
    # Our share is what this process and its children that have ended used.
    times = psutil.cpu_times()
    fields = ("user", "system", "nice", "irq", "softirq")
    everything_s = sum(getattr(times, name, 0.0) for name in fields)
    return everything_s - sum(os.times()[:4]), getattr(times, "steal", 0.0)
