"""Hundreds of nodes on one Redis, without connections: what participants, toolkits and rooms cost.

A small bus is measured first, and from what each thing cost there it is said what a large one will
cost; then the large one is measured. Where the two are more than 25 % apart, something does not
grow as the number of things does, and the run fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import psutil

from bench.legs import Leg
from bench.redis_watch import CountedRedis, counted_redis
from bench.rounds import Process, started
from bench.simulation_leg import places_of

PHASES = ("join", "register", "change", "death", "leave")
WORDS = {
    "join": "a participant joins",
    "register": "a toolkit is registered",
    "change": "a participant changes",
    "death": "a participant's node is killed",
    "leave": "a participant leaves",
}
IDLE_S = 12.0
"""Four renewals of a lease."""
PATIENCE_S = 900.0
LIMIT_S = 1_500.0
"""How long one bus may take, whatever happens."""
MOST_KILLED = 10
"""Nodes that are killed at the same time."""
NAME_BYTES = 37
"""Of a node, in the list of those that live."""
KEYS_LEFT = 2
"""Keys that do not belong to a room: the nodes, and their version."""
WITHIN = 0.25
LEG = Leg("simulation", "bench.simulation_leg", "many nodes without connections")


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a bus is."""

    nodes: int
    rooms: int
    processes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What something cost: all of it, or for each time it happened."""

    scripts: float
    """That nodes had Redis run; each is one command that was sent."""
    commands: float
    """All that Redis ran, within scripts too."""
    publishes: float
    bytes_in: float
    """To Redis."""
    bytes_out: float
    redis_cpu_us: float
    node_cpu_us: float
    """Of all nodes."""
    redis_bytes: float
    """Memory."""
    node_bytes: float
    """Memory of all nodes."""

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """Add another cost so many times."""
        sums = (mine + times * its for mine, its in zip(_values(self), _values(other), strict=True))
        return Cost(*sums)

    def times(self, factor: float) -> Cost:
        """Give the cost of so many."""
        return Cost(*(value * factor for value in _values(self)))


def _values(cost: Cost) -> list[float]:
    return [getattr(cost, name) for name in MEASURES]


MEASURES = tuple(each.name for each in fields(Cost))
GROWS = ("join", "register")
"""What memory is asked of: what is kept when it is done."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that was done many times."""

    events: int
    took_s: float
    cost: Cost

    def unit(self, idle: Cost, nodes: int) -> Cost:
        """What one of them cost, without what all nodes cost anyway."""
        return self.cost.plus(idle, -nodes * self.took_s).times(1 / self.events)


@dataclass(frozen=True, slots=True)
class Run:
    """What one bus came to."""

    shape: Shape
    idle: Cost
    """Of one node, each second."""
    phases: Mapping[str, Phase]
    delays_ms: Sequence[float]
    """From a change to a participant at whatever node who is told of it."""
    dead_nodes: int
    forgotten_s: float
    """From the moment that nodes were killed until no room anywhere had their participants."""

    @property
    def living(self) -> int:
        """Nodes that nobody killed."""
        return self.shape.nodes - self.dead_nodes

    def predict(self, other: Run, what: str) -> Cost:
        """Say from what things cost here what a phase of another run comes to."""
        phase = other.phases[what]
        unit = self.phases[what].unit(self.idle, self.shape.nodes)
        cost = unit.times(phase.events).plus(self.idle, other.shape.nodes * phase.took_s)
        if what != "death":
            return cost
        # All who are left read once who is left, which grows with the square of their number.
        lists = other.living**2 - self.living**2 * phase.events / self.phases[what].events
        return dataclasses.replace(cost, bytes_out=cost.bytes_out + NAME_BYTES * lists)


@dataclass(frozen=True, slots=True)
class Deviation:
    """One measure of one phase: what was said, and what came."""

    what: str
    measure: str
    predicted: float
    measured: float

    @property
    def share(self) -> float:
        """How far off it was; 0.1 where a tenth more came than was said."""
        return self.measured / self.predicted - 1.0

    @property
    def is_near(self) -> bool:
        """Whether it was near enough."""
        return abs(self.share) <= WITHIN

    @property
    def is_judged(self) -> bool:
        """Whether it has to be near: when nodes die the others' time goes into being there."""
        return self.what != "death" or not self.measure.endswith("_cpu_us")


def deviations(small: Run, large: Run) -> list[Deviation]:
    """Compare a large run with what a small one says of it."""
    return [
        Deviation(what, measure, getattr(predicted, measure), getattr(phase.cost, measure))
        for what, phase in large.phases.items()
        for predicted in (small.predict(large, what),)
        for measure in MEASURES
        if what in GROWS or not measure.endswith("_bytes")
    ]


# Running


class Bus:
    """A bus that runs.

    Args:
        shape: How large it is.
        processes: Where its nodes are, in order.
        redis: What they share.
    """

    def __init__(self, shape: Shape, processes: Sequence[Process], redis: CountedRedis) -> None:
        self._shape = shape
        self._processes = list(processes)
        self._redis = redis
        self._dead = 0

    async def run(self, *, is_killed: bool) -> Run:
        """Let it live through everything once.

        Args:
            is_killed: Whether the nodes of the last process are killed before the others leave.

        Raises:
            RuntimeError: A process ended early.
            TimeoutError: Something is not known everywhere, or was left behind in Redis.
        """
        _, idle = await self._measured(asyncio.sleep(IDLE_S))
        nodes, took_s = self._shape.nodes, IDLE_S
        phases = {what: await self._phase(what) for what in ("join", "register", "change")}
        await self._all(do="pulse")
        delays_ms = [ms for said in await self._all(settle="pulse") for ms in said["delays_ms"]]
        forgotten_s = 0.0
        if is_killed:
            phases["death"], forgotten_s = await self._die()
        phases["leave"] = await self._phase("leave")
        # Of memory nothing grows with time: what changes there was left from the start.
        idle = dataclasses.replace(idle, redis_bytes=0.0, node_bytes=0.0)
        unit = idle.times(1 / nodes / took_s)
        return Run(self._shape, unit, phases, delays_ms, self._dead, forgotten_s)

    async def _phase(self, what: str) -> Phase:
        self._say(what)
        began_s = time.monotonic()
        said, cost = await self._measured(self._do(what))
        return Phase(sum(each["events"] for each in said), time.monotonic() - began_s, cost)

    async def _do(self, what: str) -> list[dict[str, Any]]:
        said = await self._all(do=what)
        await self._all(settle=what)
        if what == "leave":
            until = time.monotonic() + PATIENCE_S
            while (keys := await self._redis.keys()) > KEYS_LEFT:
                if time.monotonic() > until:
                    raise TimeoutError(f"{keys} keys are left in Redis when all have gone")
                await asyncio.sleep(0.05)
        return said

    async def _die(self) -> tuple[Phase, float]:
        """Kill one process, and wait until nobody anywhere has those who were at its nodes."""
        self._say("death")
        first, count = shares(self._shape)[-1]
        lost = sum(
            first <= place.node < first + count
            for room in range(self._shape.rooms)
            for place in places_of(room, self._shape.nodes)
        )
        died = psutil.Process(self._processes.pop().pid)
        began_s = time.monotonic()
        forgotten_s, cost = await self._measured(self._bury(died, first, count))
        self._dead = count
        return Phase(lost, time.monotonic() - began_s, cost), forgotten_s

    async def _bury(self, died: psutil.Process, first: int, count: int) -> float:
        began_s = time.monotonic()
        died.kill()
        await self._all(mourn=[first, count])
        forgotten_s = time.monotonic() - began_s
        until = began_s + PATIENCE_S
        while await self._redis.members("toolbus:gone"):
            if time.monotonic() > until:
                raise TimeoutError("nobody tidies up after nodes that have ended")
            await asyncio.sleep(0.05)
        return forgotten_s

    def _say(self, what: str) -> None:
        sys.stderr.write(f"\r\033[K{self._shape.nodes} nodes: {WORDS[what]}")

    async def _all(self, **order: Any) -> list[dict[str, Any]]:
        for process in self._processes:
            await process.tell(order)
        return list(await asyncio.gather(*(each.hear(PATIENCE_S) for each in self._processes)))

    async def _measured(self, work: Any) -> tuple[Any, Cost]:
        """Do something, and see what it cost."""
        before = await self._spent()
        came = await work
        return came, (await self._spent()).plus(before, -1.0)

    async def _spent(self) -> Cost:
        counts = await self._redis.counts()
        processes = [psutil.Process(each.pid) for each in self._processes]
        times = [each.cpu_times() for each in processes]
        return Cost(
            counts.scripts,
            counts.commands,
            counts.publishes,
            counts.bytes_in,
            counts.bytes_out,
            counts.cpu_s * 1e6,
            sum(each.user + each.system for each in times) * 1e6,
            await self._redis.memory_bytes(),
            sum(each.memory_full_info().uss for each in processes),
        )


def shares(shape: Shape) -> list[tuple[int, int]]:
    """Split the nodes among processes: the first node of each, and how many it has.

    The last process has those that are killed. They are few: each of the others forgets them within
    a beat, and where fifty others share a loop and half a core, so many that are killed would keep
    them from the next one.
    """
    doomed = max(1, min(shape.nodes // 4, MOST_KILLED))
    living, processes = shape.nodes - doomed, shape.processes - 1
    bounds = [living * number // processes for number in range(processes + 1)]
    return [*((first, end - first) for first, end in pairwise(bounds)), (living, doomed)]


@contextlib.asynccontextmanager
async def bus_of(shape: Shape, redis: CountedRedis) -> AsyncIterator[Bus]:
    """Start all nodes, and end them when the block ends."""
    about = {"redis": redis.url, "rooms": shape.rooms, "all_nodes": shape.nodes}
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(
                started(LEG, "nodes", {**about, "first": first, "nodes": count})
            )
            for first, count in shares(shape)
        ]
        await asyncio.gather(*(each.hear(PATIENCE_S) for each in processes))
        yield Bus(shape, processes, redis)


async def run(shape: Shape, *, is_killed: bool = True) -> Run:
    """Run a bus with a Redis of its own once.

    Raises:
        RedisMissing: There is none on this machine.
        RuntimeError: A process ended early.
        TimeoutError: It took longer than `LIMIT_S`, or something is not known everywhere.
    """
    async with asyncio.timeout(LIMIT_S), counted_redis() as redis, bus_of(shape, redis) as bus:
        return await bus.run(is_killed=is_killed)
