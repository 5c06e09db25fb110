"""What thousands of participants cost that join one room and do nothing.

Memory is the server process's own (USS) before and after, while all are connected and have answered
pings. First some join and leave, so that what is loaded only once does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from bench.guest import Guest
from bench.legs import Leg
from bench.processes import Process, cpu_s, started
from bench.role import Facts, run_role, serve_orders
from toolbus import ApiScope
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

LEG = Leg("idle", "bench.idle", "participants that do nothing", roles=("server", "joiner"))
ROOM = "idle"
JOINERS = 4
WARM_UP_GUESTS = 10
"""Of each joiner."""
PINGS = 2
CONCURRENT_JOINS = 16
"""Of each joiner."""
WAIT_TIMEOUT_S = 60.0
OTHER_FILES = 64
"""Open files of a process besides its connections."""


class IdleRefused(Exception):
    """This system does not allow so many connections."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What one measurement found."""

    participants: int
    memory_kib: float
    """Of the server, for each participant."""
    joins_per_s: float
    join_cpu_us: float
    """Of the server: handshake, EdDSA token, welcome."""


# The harness


async def measure_idle(participants: int, loop: str) -> Idle:
    """Let participants join a new server from several processes and stay for some pings.

    Raises:
        IdleRefused: A process may not have so many open files.
        LegFailed: A process ended early.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < participants + OTHER_FILES:
        raise IdleRefused(f"{participants:,} connections, {hard:,} open files allowed")
    async with contextlib.AsyncExitStack() as stack:
        facts = {"participants": participants}
        server = await stack.enter_async_context(started(LEG, "server", facts, loop))
        facts = {**await server.read(), "share": participants // JOINERS}
        joiners = [
            await stack.enter_async_context(
                started(LEG, "joiner", {**facts, "number": number}, loop)
            )
            for number in range(JOINERS)
        ]
        await asyncio.gather(*(joiner.read() for joiner in joiners))
        await _all(joiners, "join", count=WARM_UP_GUESTS)
        await _all(joiners, "leave")
        await server.order("connected", count=0)
        return await _measure(server, joiners, participants // JOINERS)


async def _measure(server: Process, joiners: Sequence[Process], share: int) -> Idle:
    count = share * len(joiners)
    process = psutil.Process(server.pid)
    uss, spent_s, began_s = process.memory_full_info().uss, cpu_s([process]), time.monotonic()
    await _all(joiners, "join", count=share)
    await server.order("connected", count=count)
    took_s, spent_s = time.monotonic() - began_s, cpu_s([process]) - spent_s
    await _all(joiners, "pings", count=PINGS)
    memory_kib = (process.memory_full_info().uss - uss) / count / 1024
    return Idle(count, memory_kib, count / took_s, spent_s / count * 1e6)


async def _all(joiners: Sequence[Process], order: str, **arguments: int) -> None:
    await asyncio.gather(*(joiner.order(order, **arguments) for joiner in joiners))


# The processes


async def serve(facts: Facts) -> None:
    """Run the server; `connected` returns once so many participants are connected."""
    _allow_files(facts["participants"])
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, max_per_address=0)
    key = Key.generate(kid="bench", iss="toolbus-bench", alg="EdDSA")
    async with running_server(key=key, settings=settings) as server:

        async def connected(count: int) -> Facts:
            rooms = server.server.hub.rooms
            await _until(lambda: sum(len(room.sessions) for room in rooms.values()) == count)
            return {"connected": count}

        await serve_orders({"connected": connected}, url=server.url, key=KeyRing([key]).to_toml())


async def join(facts: Facts) -> None:
    """Hold some of the participants."""
    _allow_files(facts["share"])
    tokens, guests = _tokens(facts), list[Guest]()

    async def join(count: int) -> Facts:
        waiting = iter(tokens[:count])

        async def join_repeatedly() -> None:
            for token in waiting:
                guests.append(await Guest.join(facts["url"], ROOM, token))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENT_JOINS):
                tasks.create_task(join_repeatedly())
        return {"joined": count}

    async def leave() -> Facts:
        for guest in guests:
            guest.transport.abort()
        guests.clear()
        return {"joined": 0}

    async def pings(count: int) -> Facts:
        goals = [(guest, guest.pings + count) for guest in guests]
        await _until(lambda: all(guest.pings >= goal for guest, goal in goals))
        return {"pings": count}

    await serve_orders({"join": join, "leave": leave, "pings": pings}, ready=True)


def _tokens(facts: Facts) -> list[str]:
    key = Key(**tomllib.loads(facts["key"])["key"][0])
    first = facts["number"] * facts["share"]
    names = (f"guest{number}" for number in range(first, first + facts["share"]))
    tokens = (ParticipantToken(name, [ROOM], "user", ApiScope.agent_default()) for name in names)
    return [token.to_jwt(key, ttl_s=3600) for token in tokens]


async def _until(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError("participants were lost, or the server sends no pings")
        await asyncio.sleep(0.05)


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == "__main__":
    run_role({"server": serve, "joiner": join})
