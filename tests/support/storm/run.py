"""One run of a storm: its callers, what is left after each stretch, the verdict at the end."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import approver
from support.redis.server import RedisServer
from support.rooms.leftovers import entries_of, settled_holdings
from support.rooms.unharmed_server import no_logged_errors
from support.storm.callers import Ledger, make_calls, own_failures_unlogged
from support.storm.plan import (
    CALLERS,
    Fault,
    PlannedCall,
    connection_faults,
    node_faults,
    planned_calls,
    planned_faults,
    redis_faults,
)
from support.storm.processes import HOSTS, NODES, StormProcesses, storm_processes
from support.storm.verdict import BETWEEN_NODES, NEVER, problems
from support.storm.witness import witness_of
from toolbus import RoomClient

# Read here: each test removes such variables.
SEED = os.environ.get("TOOLBUS_LEDGER_SEED")
SECONDS = os.environ.get("TOOLBUS_STORM_S")
TASKS = 6
STRETCHES = (1 / 3, 1 / 3, 1 / 3)
"""Of all the time; servers fail only in the first of them."""
MOST_MEMORY = 1.1
"""The server's memory at the end, as a multiple of its memory after the second of three stretches.
"""
SETTLE_S = 60


class Storm:
    """One run: its callers, and what all processes held before.

    Args:
        seed: The seed of all that is drawn.
        made: The processes.
        callers: The callers.
        tasks: The number of calls that each of them has in flight.
    """

    def __init__(
        self, seed: str, made: StormProcesses, callers: list[RoomClient], tasks: int = TASKS
    ) -> None:
        self.seed = seed
        self.processes = made
        self.callers = callers
        self.ledger = Ledger()
        self._planned_calls: list[Iterator[PlannedCall]] = [
            planned_calls(seed, number + 1) for number in range(CALLERS * tasks)
        ]
        self._before: list[dict[str, Any]] = []
        self._sums: list[dict[str, Any]] = []
        """What was held when all was looked at last."""

    async def begin(self) -> None:
        """Wait until all are connected, and count what they hold."""
        await self.settled()
        self._before = self._sums

    async def stretch(self, seconds: float, *, server: bool, part: int) -> None:
        """Call while faults happen, then let all calls end."""
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, is_over.set)
        await self._stretch(is_over, server=server, part=part)

    async def stretch_until(self, calls: int, faults: int, *, server: bool, part: int) -> None:
        """Do so until so many calls have ended, and so many faults have happened, in all."""
        is_over = asyncio.Event()
        stretch = asyncio.create_task(self._stretch(is_over, server=server, part=part))
        while not stretch.done() and (
            len(self.ledger.reports) < calls or len(self.processes.happened) < faults
        ):
            self.ledger.reported.clear()
            reported = asyncio.create_task(self.ledger.reported.wait())
            await asyncio.wait((reported, stretch), return_when=asyncio.FIRST_COMPLETED)
            reported.cancel()
        is_over.set()
        await stretch

    async def _stretch(self, is_over: asyncio.Event, *, server: bool, part: int) -> None:
        made = self.processes
        pulse = asyncio.create_task(self.ledger.pulse.run())
        async with asyncio.TaskGroup() as group:
            for drawn in self._faults(server=server, part=part):
                group.create_task(made.make_faults(drawn, is_over))
            for number, calls in enumerate(self._planned_calls):
                room = self.callers[number % CALLERS]
                group.create_task(make_calls(room, calls, self.ledger, is_over))
        pulse.cancel()
        for proxy in made.proxies:
            await proxy.heal()

    def _faults(self, *, server: bool, part: int) -> list[Iterator[Fault]]:
        """Draw the faults that happen side by side; with nodes there are more."""
        has_nodes = self.processes.redis is not None
        drawn = [
            planned_faults(self.seed, server=server and not has_nodes),
            connection_faults(self.seed, part),
        ]
        if has_nodes:
            drawn.append(redis_faults(self.seed, part))
        if has_nodes and server:
            drawn.append(node_faults(self.seed))
        return drawn

    async def settled(self) -> None:
        """Wait until all are connected again and nothing of a call is left anywhere."""
        left: list[str] = ["not counted yet"]
        try:
            async with asyncio.timeout(SETTLE_S):
                while left:
                    left = self._left_in(await self._holdings())
                    await asyncio.sleep(0.2 if left else 0)
        except TimeoutError:
            pytest.fail(f"left behind: {left}")

    async def _holdings(self) -> list[dict[str, Any]]:
        """Ask all processes for what they hold: callers, each server, each host."""
        mine = {**await settled_holdings(), "entries": sum(map(entries_of, self.callers))}
        return [
            mine,
            *[await each.holdings() for each in (*self.processes.servers, *self.processes.hosts)],
        ]

    def _left_in(self, counts: list[dict[str, Any]]) -> list[str]:
        servers = counts[1:-HOSTS]
        people = [*(f"caller-{number}" for number in range(CALLERS)), *["host"] * HOSTS]
        if self.processes.approver is not None:
            people.insert(0, approver.NAME)
        left = [
            f"server {number}: {each['connections']} are there, {each['hosts']} host"
            for number, each in enumerate(servers)
            if (each["connections"], each["hosts"]) != (len(people), HOSTS)
        ]
        left += _unexpected_participants(people, [each["people"] for each in servers])
        # A client that moves takes its tasks along: servers are compared in sum.
        sums = [counts[0], _added_up(servers), *counts[-HOSTS:]]
        names = ["callers", "servers", *(f"host {number}" for number in range(HOSTS))]
        self._sums = sums
        for number, (name, counted) in enumerate(zip(names, sums, strict=True)):
            before = self._before[number] if self._before else None
            left += [f"{name}: {words}" for words in _more(counted, before)]
        return left

    def check(self) -> None:
        """Compare the callers' reports with the witness."""
        ledger, seen = self.ledger, witness_of(self.processes.witness)
        never = NEVER if self.processes.redis is None else NEVER - BETWEEN_NODES
        found = problems(ledger.asked, ledger.reports, seen, never)
        assert not found, f"{len(found)} problems, the first: " + "\n".join(found[:10])
        errors = self.processes.log.read_text()
        assert not errors, errors[:8_000]

    @property
    def servers_memory(self) -> int:
        """Return the bytes of memory of all servers at the last count."""
        return int(self._sums[1]["memory"])

    def summary(self) -> str:
        """Describe the calls and faults of this run."""
        codes = collections.Counter(report.code for report in self.ledger.reports)
        executed = collections.Counter(report.executed for report in self.ledger.reports)
        happened = collections.Counter(self.processes.happened)
        late_s, calls = self.ledger.pulse.late_s, len(self.ledger.reports)
        return f"{calls} calls: {codes}, {executed}; {happened}; {late_s:.1f} s late"


def _unexpected_participants(people: list[str], stack: list[list[list[str]]]) -> Iterator[str]:
    """Describe participants and connections at servers that are none of the storm's."""
    for number, there in enumerate(stack):
        names = [name for name, _ in there]
        if names != people:
            yield f"server {number}: those who are there are {names}"
        elif there != stack[0]:
            yield f"server {number}: there are {there}, at server 0 {stack[0]}"


def _added_up(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up what several processes hold."""
    added: dict[str, Any] = {}
    for name, first in counts[0].items():
        every = [each[name] for each in counts]
        if isinstance(first, dict):
            added[name] = dict(sum(map(collections.Counter, every), collections.Counter()))
        else:
            added[name] = sum(every, type(first)())
    return added


def _more(counted: dict[str, Any], before: dict[str, Any] | None) -> Iterator[str]:
    """Name what is left over: any object of a call, and of other things more than before."""
    for name in ("entries", "in_flight", "host_in_flight", "streams", "ahead", "held"):
        if counted.get(name):
            yield f"{name} {counted[name]}"
    if counted["objects"]:
        yield f"objects {counted['objects']}"
    if before is None:
        return
    tasks = collections.Counter(counted["tasks"]) - collections.Counter(before["tasks"])
    if tasks:
        yield f"tasks {dict(tasks)}"
    if counted["descriptors"] > before["descriptors"]:
        yield f"descriptors {counted['descriptors']}, before {before['descriptors']}"
    if counted["futures"] > before["futures"] + 2:
        yield f"futures {counted['futures']}, before {before['futures']}"


@contextmanager
def _other_objects_hidden() -> Iterator[None]:
    """Hide the objects of earlier tests from each count.

    They are no leftovers of the storm, and counting many of them would block this process, and so
    the callers and proxies in it, for longer than the servers wait for a pong.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def storm_of(
    seed: str,
    folder: Path,
    redis: RedisServer | None = None,
    nodes: int = NODES,
    tasks: int = TASKS,
) -> AsyncIterator[Storm]:
    async with AsyncExitStack() as stack:
        stack.enter_context(_other_objects_hidden())
        made = await stack.enter_async_context(storm_processes(folder, redis, nodes))
        callers = [
            await stack.enter_async_context(made.caller(number)) for number in range(CALLERS)
        ]
        storm = Storm(seed, made, callers, tasks)
        await storm.begin()
        yield storm


@contextmanager
def storm_seed() -> Iterator[str]:
    """Draw a seed, or take the given one, and print it."""
    seed = SEED or secrets.token_hex(4)
    print(f"storm seed: {seed}")  # noqa: T201 - shown when the test fails, to repeat it
    with no_logged_errors(), own_failures_unlogged():
        yield seed


async def run_storm(storm: Storm, seconds: float, shares: Sequence[float] = STRETCHES) -> None:
    """Run a storm in three stretches, and check it."""
    memory = []
    for part, share in enumerate(shares):
        # A new server has new memory: memory is compared if a server lived through the storm.
        await storm.stretch(share * float(SECONDS or seconds), server=part == 0, part=part)
        print(storm.summary())  # noqa: T201 - shown when the test fails
        await storm.settled()
        memory.append(storm.servers_memory)
    print(memory)  # noqa: T201 - shown when the test fails
    storm.check()
    assert memory[-1] <= memory[-2] * MOST_MEMORY, f"memory grew: {memory} bytes"
