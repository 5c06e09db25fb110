"""Runs rounds: starts the processes of a group, measures its contenders by turns, keeps figures.

Contenders live side by side and take turns of fractions of a second, in alternating order: what
the machine does meanwhile, it does to all of them. Each round starts its processes anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import psutil

from bench.idle import Idle, IdleRefused, measure_idle
from bench.legs import SPANS_PER_CALL, Contender, Group, Leg, Load
from bench.processes import LegFailed, Process, cpu_s, on_one_core, process_tree, running

IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Part:
    """What one contender did in one turn."""

    per_s: float
    p50_us: float
    cpu_us: tuple[float, ...]
    """Processor time per call or MB of each counted process, in microseconds."""
    amount: float = 0.0

    @property
    def total_cpu_us(self) -> float:
        return sum(self.cpu_us)

    @property
    def per_s_by_cpu(self) -> float:
        """The rate if processor time were the only limit: of the busiest process or all cores."""
        return 1e6 / max(*self.cpu_us, self.total_cpu_us / (os.cpu_count() or 1))


Round = Mapping[str, Sequence[Part]]
"""The parts of each contender under one load: the n-th ones were measured next to each other."""


@dataclass(slots=True)
class Results:
    """Everything that was measured."""

    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)
    """By group and load."""
    idle: list[Idle] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Legs that could not be measured, with the reason."""
    took_s: dict[str, float] = field(default_factory=dict)
    """By group."""

    def count(self, group: str) -> int:
        """Return how many rounds of a group there are."""
        if group == IDLE:
            return len(self.idle)
        return max(
            (len(rounds) for (name, _), rounds in self.rounds.items() if name == group), default=0
        )

    def miss(self, leg: str, reason: str) -> None:
        self.missing[leg] = reason
        sys.stderr.write(f"\r\033[KNOT MEASURED: {leg}: {reason}\n")


async def run_groups(
    groups: Sequence[Group], results: Results, loop: str, *, times: float, idle: int
) -> None:
    """Measure all rounds of all groups, interleaved; `idle` participants after the first ones.

    A leg that fails is left out from then on, with the reason in `results.missing`.
    """
    rounds = {group.name: max(1, round(group.rounds * times)) for group in groups}
    for number in range(max(rounds.values(), default=1)):
        for group in groups:
            if number < rounds[group.name]:
                await run_round(group, results, loop)
        if idle and number == 0:
            await run_idle(idle, results, loop)


async def run_idle(participants: int, results: Results, loop: str) -> None:
    """Measure what idle participants cost."""
    began_s = time.monotonic()
    sys.stderr.write(f"\r\033[K{IDLE}")
    try:
        results.idle.append(await measure_idle(participants, loop))
    except (LegFailed, IdleRefused, psutil.Error) as error:
        results.miss(IDLE, str(error))
    _add_time(results, IDLE, began_s)


async def run_round(group: Group, results: Results, loop: str) -> None:
    """Measure one round of a group, without the legs that are missing."""
    began_s = time.monotonic()
    number = results.count(group.name)
    while contenders := _available(group, results, number):
        sys.stderr.write(f"\r\033[K{group.name}, round {number + 1}")
        try:
            figures = await _measure(contenders, group.loads, loop)
        except LegFailed as error:
            results.miss(error.leg, str(error))
            continue
        for load, round_ in figures.items():
            results.rounds.setdefault((group.name, load), []).append(round_)
        break
    _add_time(results, group.name, began_s)


def _available(group: Group, results: Results, number: int) -> Sequence[Contender]:
    """Return the contenders whose legs are not missing, another one first in each round."""
    found = [each for each in group.contenders if each.leg.name not in results.missing]
    if len(found) < 2:
        return ()
    first = number % len(found)
    return [*found[first:], *found[:first]]


def _add_time(results: Results, group: str, began_s: float) -> None:
    results.took_s[group] = results.took_s.get(group, 0.0) + time.monotonic() - began_s
    sys.stderr.write("\r\033[K")


async def _measure(
    contenders: Sequence[Contender], loads: Sequence[Load], loop: str
) -> dict[str, Round]:
    legs = {each.leg.name: each.leg for each in contenders}
    async with contextlib.AsyncExitStack() as stack:
        processes = {
            name: await stack.enter_async_context(running(leg, loop)) for name, leg in legs.items()
        }
        figures = {load.name: await _take_turns(contenders, load, processes) for load in loads}
        for each in contenders:
            if each.leg.sampled and each.caller == "caller":
                calls = sum(part.amount for by in figures.values() for part in by[each.name])
                await _check_spans(each.leg, processes[each.leg.name], calls)
    return {load: {name: parts[1:] for name, parts in by.items()} for load, by in figures.items()}


async def _take_turns(
    contenders: Sequence[Contender], load: Load, processes: Mapping[str, Mapping[str, Process]]
) -> dict[str, list[Part]]:
    """Take one turn to warm up, which comes first, and all others."""
    parts: dict[str, list[Part]] = {each.name: [] for each in contenders}
    for number in range(load.parts + 1):
        for each in contenders if number % 2 else reversed(contenders):
            part = await _take_turn(each, load, processes[each.leg.name])
            parts[each.name].append(part)
    return parts


async def _take_turn(contender: Contender, load: Load, processes: Mapping[str, Process]) -> Part:
    counted = [processes[role] for role in contender.processes]
    try:
        trees = [process_tree(process.pid) for process in counted]
        pinned = [each for tree in trees for each in tree] if load.is_on_one_core else []
        with on_one_core(pinned):
            before_s = [cpu_s(tree) for tree in trees]
            reply = await processes[contender.caller].order(**{**load.order, **contender.order})
            took_s = reply["took_s"] + (await _flush(counted) if contender.flushes else 0.0)
            spent_s = [
                after - before for before, after in zip(before_s, map(cpu_s, trees), strict=True)
            ]
    except psutil.Error as error:
        raise LegFailed(contender.leg.name, f"a process ended early: {error}") from error
    amount = reply["amount"]
    cpu_us = tuple(seconds / amount * 1e6 for seconds in spent_s)
    return Part(amount / took_s, reply["p50_us"], cpu_us, amount)


async def _flush(processes: Sequence[Process]) -> float:
    """Have processes send the spans that wait; return how long that took."""
    began_s = time.monotonic()
    await asyncio.gather(*(process.order("flush") for process in processes))
    return time.monotonic() - began_s


async def _check_spans(leg: Leg, processes: Mapping[str, Process], calls: float) -> None:
    """Raise LegFailed if the receiver did not get the spans of so many calls."""
    spans = (await processes["receiver"].order("count"))["spans"]
    expected = calls * leg.sampled * SPANS_PER_CALL
    if not expected / 2 <= spans <= expected * 2:
        raise LegFailed(leg.name, f"{spans} spans arrived, not {expected:.0f}")


def whole(parts: Sequence[Part]) -> Part:
    """Summarize the parts of one contender in one round."""
    by_process = zip(*(part.cpu_us for part in parts), strict=True)
    return Part(
        statistics.harmonic_mean([part.per_s for part in parts]),
        statistics.median(part.p50_us for part in parts),
        tuple(map(statistics.mean, by_process)),
        sum(part.amount for part in parts),
    )


def without_reported(groups: Sequence[Group]) -> list[Group]:
    """Return what judged rows need."""
    return [
        replace(group, contenders=[each for each in group.contenders if not each.is_reported_only])
        for group in groups
        if not group.is_reported_only
    ]
