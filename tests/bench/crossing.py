"""A crossing: one caller, with a host at its own node, at another one, and at a node without Redis.

One round of the row `nodes`, on processes and a Redis that live for this round alone. What is
compared was measured in turns: the same caller and host, from one moment to the next, so that what
one start of the processes has from chance falls out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.legs import IN_FLIGHT, ROLES, Leg
from bench.redis_watch import LEASE, WITHIN, CountedRedis, RedisCounts, counted_redis, sent
from bench.rounds import (
    LOAD_TIMEOUT_S,
    SETTLE_S,
    Process,
    cpu_s,
    on_one_core,
    process_tree,
    rate_by_cpu,
    running,
)
from bench.turns import by_neighbours

SINGLE, NEAR, FAR = "single", "near", "far"
"""Where the host is: at a node that is all there is; at the caller's; at another one."""
TURN_S = 1.0
TURNS = 6
"""Of what is compared, in one round; one more of what it is compared with."""
CALLS = 500
"""Of a turn of one call at a time."""
COUNTED_CALLS = 200
SPELLS = 3
"""How often calls between nodes are counted; the least counts.

A beat that comes meanwhile asks for what is under way, whatever calls are made.
"""
QUIET_S = 4.0
"""How long after calls between nodes nothing more comes of them.

With its next beat, 3 s later at most, a node asks for what nothing has followed.
"""
IDLE_S = 6.5
"""How long nothing is called while commands are counted: two renewals of a lease."""
ROOMS = 200
"""That both nodes hold meanwhile."""
TOOLKITS = 5_000
JOINS = 100
FIRST_JOINS = 3
NODES = 2
CREW = (*ROLES, "far")
"""The processes of a call between nodes; Redis comes last."""


@dataclass(frozen=True, slots=True)
class Leap:
    """One turn."""

    calls: int
    took_s: float
    p50_us: float
    cpu_us: tuple[float, ...]
    """Processor time per call of router, host, caller, the other node and Redis."""
    redis: RedisCounts
    """What Redis did meanwhile."""

    @property
    def per_s(self) -> float:
        """Calls per second."""
        return self.calls / self.took_s

    @property
    def local_cpu_us(self) -> float:
        """Processor time per call of router, host and caller."""
        return sum(self.cpu_us[: len(ROLES)])


@dataclass(frozen=True, slots=True)
class Idle:
    """What Redis has of each node in a second, leases too."""

    sent: float
    """Commands that come from it."""
    published: float
    """Messages that scripts publish for it."""
    run: float
    """All that Redis runs, within scripts too."""

    @property
    def commands(self) -> float:
        """What is promised: what is sent, either way."""
        return self.sent + self.published


@dataclass(frozen=True, slots=True)
class Counts:
    """What was sent to Redis, command by command."""

    far_publishes: float
    """For each call between nodes."""
    far_others: float
    """Other commands for each of them; leases are in none of these figures."""
    local: float
    """Commands for each call within a node."""
    idle: Idle
    """While nothing happens."""
    idle_in_rooms: Idle
    """The same while each node holds `ROOMS` rooms more."""


@dataclass(frozen=True, slots=True)
class Joins:
    """How long a join takes while another node's hosts have `TOOLKITS` toolkits in the room."""

    empty_ms: Sequence[float]
    """To a room without a toolkit, which the node holds."""
    full_ms: Sequence[float]
    first_empty_ms: Sequence[float]
    """Of the first participant of a node in a room: the node reads the room before."""
    first_full_ms: Sequence[float]

    @property
    def ratio(self) -> float:
        """What the toolkits make of a join."""
        return median(self.full_ms) / median(self.empty_ms)

    @property
    def first_ratio(self) -> float:
        """The same for the first one of a node."""
        return median(self.first_full_ms) / median(self.first_empty_ms)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One round. Of each pair the first has one turn more: its turns stand around the other's."""

    single: Sequence[Leap]
    """64 in flight, at a node without Redis."""
    shared: Sequence[Leap]
    """64 in flight within a node that shares a Redis with another one."""
    near: Sequence[Leap]
    """As `shared`, beside `far`."""
    far: Sequence[Leap]
    """64 in flight, between nodes."""
    near_alone: Sequence[Leap]
    far_alone: Sequence[Leap]
    counts: Counts | None = None
    """None in rounds that count nothing."""
    joins: Joins | None = None
    took_s: float = 0.0

    def rate_cpu_ratios(self) -> list[float]:
        """The same, if there were nothing but processor time."""
        return by_neighbours(self.near, self.far, lambda leap: rate_by_cpu(leap.cpu_us))

    def p50_cpu_ratios(self) -> list[float]:
        """Processor time of one call at a time, of all processes, between nodes by within one."""
        return by_neighbours(self.near_alone, self.far_alone, lambda leap: sum(leap.cpu_us))

    def cpu_ratios(self) -> list[float]:
        """Processor time of a local call, with a Redis by without one."""
        return by_neighbours(self.single, self.shared, lambda leap: leap.local_cpu_us)

    def rate_ratios(self) -> list[float]:
        """Calls per second, between nodes by within one."""
        return by_neighbours(self.near, self.far, lambda leap: leap.per_s)

    def p50_ratios(self) -> list[float]:
        """Time of one call, between nodes by within one."""
        return by_neighbours(self.near_alone, self.far_alone, lambda leap: leap.p50_us)


@dataclass(frozen=True, slots=True)
class Crew:
    """What runs in one round."""

    processes: Mapping[str, Process]
    redis: CountedRedis

    @property
    def pids(self) -> list[int]:
        """Of all that a call between nodes passes."""
        return [*(self.processes[role].pid for role in CREW), self.redis.pid]

    async def order(self, role: str, **order: Any) -> dict[str, Any]:
        """Have a process do something, and hear what came of it."""
        await self.processes[role].tell(order)
        return await self.processes[role].hear(LOAD_TIMEOUT_S)


async def run_crossing(leg: Leg, loop: str, *, is_whole: bool) -> Crossing:
    """Take one round's figures.

    Args:
        leg: Whose processes.
        loop: On which event loop.
        is_whole: Whether to count commands and to join, too.

    Raises:
        RedisMissing: There is no Redis on this machine.
        RuntimeError: A process ended early, or calls did not go where they should.
    """
    began_s = time.monotonic()
    async with _crew_of(leg, loop) as crew:
        for where in (SINGLE, NEAR, FAR):
            await _leap(crew, where, IN_FLIGHT.in_flight)
        single, shared = await _in_turn(crew, SINGLE, NEAR, IN_FLIGHT.in_flight)
        near, far = await _in_turn(crew, NEAR, FAR, IN_FLIGHT.in_flight)
        with on_one_core([each for pid in crew.pids for each in process_tree(pid)]):
            near_alone, far_alone = await _in_turn(crew, NEAR, FAR, 1)
        crossing = Crossing(single, shared, near, far, near_alone, far_alone)
        if is_whole:
            counts, joins = await _count(crew), await _join(crew)
            crossing = dataclasses.replace(crossing, counts=counts, joins=joins)
    return dataclasses.replace(crossing, took_s=time.monotonic() - began_s)


@contextlib.asynccontextmanager
async def _crew_of(leg: Leg, loop: str) -> AsyncIterator[Crew]:
    async with counted_redis() as redis:
        environment = {**leg.environment, "BENCH_REDIS": redis.url}
        async with running(dataclasses.replace(leg, environment=environment), loop) as processes:
            yield Crew(processes, redis)


# Turns


async def _in_turn(
    crew: Crew, plain: str, other: str, in_flight: int
) -> tuple[list[Leap], list[Leap]]:
    """Take turns between two places; the first of them begins and ends."""
    plains, others = [await _leap(crew, plain, in_flight)], []
    for _ in range(TURNS):
        others.append(await _leap(crew, other, in_flight))
        plains.append(await _leap(crew, plain, in_flight))
    return plains, others


async def _leap(crew: Crew, where: str, in_flight: int) -> Leap:
    trees = [process_tree(pid) for pid in crew.pids]
    redis, before_s = await crew.redis.counts(), [cpu_s(tree) for tree in trees]
    began_s = time.perf_counter()
    load: dict[str, float] = {"calls": CALLS} if in_flight == 1 else {"seconds": TURN_S}
    said = await crew.order("caller", to=where, in_flight=in_flight, **load)
    took_s, calls = time.perf_counter() - began_s, said["calls"]
    spent_s = zip(before_s, map(cpu_s, trees), strict=True)
    cpu_us = tuple((after - before) / calls * 1e6 for before, after in spent_s)
    did = (await crew.redis.counts()).since(redis)
    if where == FAR and not did.publishes:
        raise RuntimeError(f"{calls} calls between nodes, and none of them by Redis")
    return Leap(calls, took_s, said["p50_us"], cpu_us, did)


# Counts


async def _count(crew: Crew) -> Counts:
    """Count what is sent for calls, one at a time, and while nothing happens."""
    await asyncio.sleep(QUIET_S)
    local = await _count_calls(crew, NEAR)
    idle = await _count_idle(crew)
    await crew.order("host", rooms=ROOMS)
    await asyncio.sleep(SETTLE_S)
    idle_in_rooms = await _count_idle(crew)
    far = min([await _count_calls(crew, FAR) for _ in range(SPELLS)], key=Counter.total)
    publishes = far.pop("PUBLISH", 0)
    return Counts(
        far_publishes=publishes / COUNTED_CALLS,
        far_others=sent(far) / COUNTED_CALLS,
        local=sent(local) / COUNTED_CALLS,
        idle=idle,
        idle_in_rooms=idle_in_rooms,
    )


async def _count_calls(crew: Crew, where: str) -> Counter[str]:
    async with crew.redis.monitored() as seen:
        said = await crew.order("caller", to=where, in_flight=1, calls=COUNTED_CALLS)
    if said["calls"] != COUNTED_CALLS:
        raise RuntimeError(f"{said['calls']} calls were made, not {COUNTED_CALLS}")
    del seen[LEASE]
    return seen


async def _count_idle(crew: Crew) -> Idle:
    began_s = time.monotonic()
    async with crew.redis.monitored() as seen:
        await asyncio.sleep(IDLE_S)
    took_s = time.monotonic() - began_s
    counts = sent(seen), seen[f"{WITHIN} PUBLISH"], seen.total()
    return Idle(*(count / NODES / took_s for count in counts))


# Joins


async def _join(crew: Crew) -> Joins:
    """Fill a room from the other node, then join it and empty ones, one after the other."""
    await crew.order("host", toolkits=TOOLKITS)
    first: dict[str, list[float]] = {"first_empty": [], "first_full": []}
    for number in range(FIRST_JOINS):
        for name, room in (("first_empty", f"empty{number}"), ("first_full", "full")):
            first[name].append((await crew.order("caller", first=room))["took_ms"])
            await crew.order("router", closed=room)
    later = await crew.order("caller", joins=JOINS)
    return Joins(later["bare"], later["full"], first["first_empty"], first["first_full"])
