"""A gathering: thousands join one room and do nothing. What joining and being there cost.

Memory is what the server's process holds for itself (USS), before and after, per participant: while
all are there, each with a connection of its own and each after answering pings. First some come and
go, so that what is loaded and filled once is no participant's.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from bench.legs import Leg
from bench.rounds import START_TIMEOUT_S, Process, started

JOINERS = 4
PINGS = 2
WARM_UP_GUESTS = 40
GATHERING_TIMEOUT_S = 120.0
SPARE_FILES = 64
"""Open files of a process beside its connections."""
LEG = Leg("gathering", "bench.gathering_leg", "thousands who only stay")


class GatheringRefused(Exception):
    """This system does not allow so many connections; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """What one gathering cost the server."""

    participants: int
    memory_kib: float
    """Per participant, of the server's own memory."""
    resident_kib: float
    """Per participant, of all that the system counts for the server's process."""
    joins_per_s: float
    """By the clock, joiners on the same cores."""
    join_cpu_us: float
    """Of the server alone, for one join: handshake, EdDSA token, welcome."""
    took_s: float = 0.0


async def gather(participants: int, loop: str) -> Gathering:
    """Let so many join a new server from several processes, and stay for some pings.

    Raises:
        GatheringRefused: One process may not have so many open files here.
        RuntimeError: A process ended early.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < participants + SPARE_FILES:
        raise GatheringRefused(f"{participants:,} connections, {hard:,} open files allowed")
    began_s = time.monotonic()
    facts = {"participants": participants}
    async with started(LEG, "server", facts, "--loop", loop) as server:
        where = await server.hear(START_TIMEOUT_S)
        async with _joiners(where, participants, loop) as joiners:
            await _warm_up(server, joiners)
            return await _measure(server, joiners, participants, began_s)


@contextlib.asynccontextmanager
async def _joiners(
    where: dict[str, Any], participants: int, loop: str
) -> AsyncIterator[list[Process]]:
    async with contextlib.AsyncExitStack() as stack:
        share = participants // JOINERS
        wheres = [{**where, "first": n * share, "guests": share} for n in range(JOINERS)]
        starting = [started(LEG, "joiner", each, "--loop", loop) for each in wheres]
        joiners = [await stack.enter_async_context(each) for each in starting]
        await asyncio.gather(*(each.hear(START_TIMEOUT_S) for each in joiners))
        yield joiners


async def _warm_up(server: Process, joiners: Sequence[Process]) -> None:
    await _all(joiners, join=WARM_UP_GUESTS // JOINERS)
    await _all(joiners, leave=1)
    await _until_there(server, 0)


async def _measure(
    server: Process, joiners: Sequence[Process], participants: int, began_s: float
) -> Gathering:
    share = participants // JOINERS
    process = psutil.Process(server.pid)
    memory, spent_s = process.memory_full_info(), _cpu_s(process)
    joining_s = time.perf_counter()
    await _all(joiners, join=share)
    await _until_there(server, share * JOINERS)
    joined_s = time.perf_counter() - joining_s
    join_cpu_s = _cpu_s(process) - spent_s
    await _all(joiners, pings=PINGS)
    then = process.memory_full_info()
    count = share * JOINERS
    return Gathering(
        participants=count,
        memory_kib=(then.uss - memory.uss) / count / 1024,
        resident_kib=(then.rss - memory.rss) / count / 1024,
        joins_per_s=count / joined_s,
        join_cpu_us=join_cpu_s / count * 1e6,
        took_s=time.monotonic() - began_s,
    )


async def _all(joiners: Sequence[Process], **order: int) -> None:
    for each in joiners:
        await each.tell(order)
    for said in await asyncio.gather(*(each.hear(GATHERING_TIMEOUT_S) for each in joiners)):
        if said["lost"]:
            raise RuntimeError(f"{said['lost']} guests were lost")


async def _until_there(server: Process, count: int) -> None:
    await server.tell({"there": count})
    await server.hear(GATHERING_TIMEOUT_S)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
