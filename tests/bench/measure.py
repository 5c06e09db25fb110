"""What a caller measures: one call at a time, or many in flight.

The same code on every leg, and nothing but the standard library, because rivals live in an
environment of their own. Says nothing about what a call is: it is handed one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

Call: TypeAlias = Callable[[int, int], Awaitable[dict[str, Any]]]
"""One call of `demo.add` with its two arguments; gives `{"sum": ...}`."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much to call in one measurement; the same for every leg."""

    calls: int
    in_flight: int = 1
    warm_up_calls: int = 2_000

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    def scaled(self, share: float) -> Load:
        """The same with fewer calls, and at least one each that is in flight."""
        calls, warm_up = int(self.calls * share), int(self.warm_up_calls * share)
        return Load(max(calls, self.in_flight), self.in_flight, max(warm_up, self.in_flight))


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one leg under one load."""

    per_s: float
    """Calls per second."""
    p50_us: float
    """Median time of one call, in microseconds."""

    def as_json(self) -> dict[str, float]:
        return asdict(self)


async def measure(call: Call, load: Load) -> Sample:
    """Warm up, then measure `load`."""
    await _warm_up(call, load)
    durations_ns: list[int] = []
    started_ns = time.perf_counter_ns()
    await _keep_calling(call, load.calls, load.in_flight, durations_ns)
    elapsed_s = (time.perf_counter_ns() - started_ns) / 1e9
    return Sample(
        per_s=load.calls / elapsed_s,
        p50_us=statistics.median(durations_ns) / 1e3,
    )


async def _warm_up(call: Call, load: Load) -> None:
    answer = await call(35, 7)
    if answer != {"sum": 42}:
        raise AssertionError(f"a leg that answers {answer!r} measures nothing")
    await _keep_calling(call, load.warm_up_calls, load.in_flight, [])


async def _keep_calling(call: Call, calls: int, in_flight: int, durations_ns: list[int]) -> None:
    clock = time.perf_counter_ns
    numbers = iter(range(calls))

    async def one_after_the_other() -> None:
        for number in numbers:
            started_ns = clock()
            await call(number, 7)
            durations_ns.append(clock() - started_ns)

    async with asyncio.TaskGroup() as callers:
        for _ in range(in_flight):
            callers.create_task(one_after_the_other())


async def call_for(call: Call, seconds: float, in_flight: int) -> int:
    """Keep so many calls in flight for a time, then let them end; return how many there were."""
    clock = time.perf_counter
    ends_s = clock() + seconds
    calls = 0

    async def one_after_the_other() -> None:
        nonlocal calls
        while clock() < ends_s:
            await call(calls, 7)
            calls += 1

    async with asyncio.TaskGroup() as callers:
        for _ in range(in_flight):
            callers.create_task(one_after_the_other())
    return calls
