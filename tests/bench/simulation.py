"""Hundreds of nodes on one Redis, without connections: what participants, toolkits and rooms cost.

A small bus says what a large one will cost (`forecast.py`). Both are there at the same time, each
with a Redis of its own, and take turns: the same machine is faster or slower from one minute to the
next, and so what is compared was measured in the same ones. What processor time comes to, several
rounds tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import psutil

from bench.forecast import ROUND, Cost, Phase, Run, Shape
from bench.legs import Leg
from bench.redis_watch import CountedRedis, counted_redis
from bench.rounds import Process, started
from bench.simulation_leg import places_of

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
"""How long all may take, whatever happens."""
ROUNDS = 3
"""How often a large bus lives through everything, an odd number: the median of them counts, and one
that fell into a bad moment does not."""
MOST_KILLED = 10
"""Nodes that are killed at the same time."""
KEYS_LEFT = 2
"""Keys that do not belong to a room: the nodes, and their version."""
SMALL = Shape(nodes=20, rooms=2_000, processes=4)
FULL = Shape(nodes=200, rooms=20_000, processes=4)
"""As many rooms for each node as the small one has."""
LEG = Leg("simulation", "bench.simulation_leg", "many nodes without connections")


async def _nothing() -> None:
    """Do nothing between phases."""


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
        self._idle: Cost | None = None
        self._rounds: list[Mapping[str, Phase]] = []
        self._delays_ms: list[float] = []
        self._death: Phase | None = None
        self._dead = 0
        self._forgotten_s = 0.0

    async def rest(self) -> None:
        """Measure what it costs while nothing happens."""
        _, idle = await self._measured(asyncio.sleep(IDLE_S))
        # Of memory nothing grows with time: what changes there was left from the start.
        idle = dataclasses.replace(idle, redis_bytes=0.0, node_bytes=0.0)
        self._idle = idle.times(1 / IDLE_S)

    async def live(
        self,
        *,
        is_last: bool = True,
        is_killed: bool = False,
        between: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """Let it live through everything once, and let others do something before and after each.

        The last time it is also looked at how long a change is on its way, and nodes may be killed.

        Raises:
            RuntimeError: A process ended early.
            TimeoutError: Something is not known everywhere, or was left behind in Redis.
        """
        done: dict[str, Phase] = {}
        for what in ROUND:
            await between()
            if what == "leave" and is_last:
                await self._pulse()
                if is_killed:
                    await self._die()
            done[what] = await self._phase(what)
        await between()
        self._rounds.append(done)

    async def go_round(self) -> None:
        """Let everybody come, change and go; may be done again and again.

        Raises:
            RuntimeError: A process ended early.
            TimeoutError: Something is not known everywhere, or was left behind in Redis.
        """
        self._rounds.append({what: await self._phase(what) for what in ROUND})

    async def come_and_die(self) -> None:
        """Let everybody come once more, and kill some nodes.

        Raises:
            RuntimeError: A process ended early.
            TimeoutError: Something is not known everywhere.
        """
        for what in ROUND[:-1]:
            await self._phase(what)
        await self._die()

    def came_to(self) -> Run:
        """Tell what all that cost."""
        assert self._idle is not None, "what it costs to be there was not measured"
        return Run(
            self._shape,
            self._idle,
            self._rounds,
            self._death,
            self._delays_ms,
            self._dead,
            self._forgotten_s,
        )

    async def _pulse(self) -> None:
        await self._all(do="pulse")
        self._delays_ms = [
            ms for said in await self._all(settle="pulse") for ms in said["delays_ms"]
        ]

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

    async def _die(self) -> None:
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
        self._forgotten_s, cost = await self._measured(self._bury(died, first, count))
        self._dead = count
        self._death = Phase(lost, time.monotonic() - began_s, cost)

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
async def bus_of(shape: Shape) -> AsyncIterator[Bus]:
    """Start a Redis and all nodes, and end them when the block ends.

    Raises:
        RedisMissing: There is none on this machine.
        RuntimeError: A process ended early.
    """
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(counted_redis())
        about = {"redis": redis.url, "rooms": shape.rooms, "all_nodes": shape.nodes}
        processes = [
            await stack.enter_async_context(
                started(LEG, "nodes", {**about, "first": first, "nodes": count})
            )
            for first, count in shares(shape)
        ]
        await asyncio.gather(*(each.hear(PATIENCE_S) for each in processes))
        yield Bus(shape, processes, redis)


async def run(shape: Shape, *, is_killed: bool = True) -> Run:
    """Run one bus by itself.

    Raises:
        RedisMissing: There is none on this machine.
        RuntimeError: A process ended early.
        TimeoutError: It took longer than `LIMIT_S`, or something is not known everywhere.
    """
    async with asyncio.timeout(LIMIT_S), bus_of(shape) as bus:
        await bus.rest()
        await bus.live(is_killed=is_killed)
        return bus.came_to()


async def run_beside(
    small: Shape, large: Shape, *, is_killed: bool = True, rounds: int = ROUNDS
) -> tuple[Run, Run]:
    """Run two buses in turns, the large one for some rounds.

    Raises:
        RedisMissing: There is none on this machine.
        RuntimeError: A process ended early.
        TimeoutError: It took longer than `LIMIT_S`, or something is not known everywhere.
    """
    async with asyncio.timeout(LIMIT_S), bus_of(small) as first, bus_of(large) as second:
        await asyncio.gather(first.rest(), second.rest())
        await first.go_round()
        for _ in range(rounds - 1):
            await second.live(is_last=False, between=first.go_round)
        await second.live(is_killed=is_killed, between=first.go_round)
        if is_killed:
            await first.come_and_die()
        return first.came_to(), second.came_to()
