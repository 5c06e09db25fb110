"""Who plays in the demo of many servers: servers of one Redis, hosts of `sql`, and callers.

Servers and hosts are processes; the callers are in this one, each with a connection of its own, and
ask without end. All connect through a balancer, which knows who is at which server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from statistics import median
from typing import Any

from toolbus import AgentsGrant, ApiScope, RoomClient, RoomException
from toolbus_toolkits.demo_balancer import Balancer
from toolbus_toolkits.demo_cast import ROOM, Cast
from toolbus_toolkits.demo_redis import RedisProcess

__all__ = ["Caller", "Crowd"]

_CALLERS_EACH = 2
_SCOPE = ApiScope(agents=AgentsGrant(use_tools=True, call=True, allow=("sql",)), presence=True)
_QUESTION = """
    SELECT source, count(*), sum(size_bytes) FROM packages WHERE name LIKE ? GROUP BY source
"""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CALL_S = 20.0
_PAUSE_S = 0.01
_BETWEEN_CALLS_S = 0.03
_START_S = 20.0


@dataclass(slots=True)
class Caller:
    """One that asks without end; each question may be asked again by the SDK."""

    name: str
    room: RoomClient
    calls: list[tuple[float, float]] = field(default_factory=list)
    """When each call began and ended, of those that were answered."""
    failures: list[RoomException] = field(default_factory=list)
    """What became of those that were not."""

    async def ask_on(self) -> None:
        """Ask one question after the other, until cancelled."""
        while True:
            began_s = time.monotonic()
            letter = _LETTERS[len(self.calls) % len(_LETTERS)]
            arguments = {"sql": _QUESTION, "parameters": [f"{letter}%"]}
            try:
                await self.room.invoke("sql", "query", arguments, timeout_s=_CALL_S)
            except RoomException as error:
                self.failures.append(error)
            else:
                self.calls.append((began_s, time.monotonic()))
            await asyncio.sleep(_BETWEEN_CALLS_S)

    async def answered_since(self, moment_s: float) -> float:
        """Wait until a call that was made after a moment is answered; return when that was."""
        while True:
            for began_s, ended_s in reversed(self.calls):
                if began_s >= moment_s:
                    return ended_s
            await asyncio.sleep(_PAUSE_S)

    def longest_s(self, since_s: float) -> float:
        """Tell how long the longest call took of those that ended after a moment."""
        return max(ended - began for began, ended in self.calls if ended >= since_s)

    async def sees(self) -> tuple[dict[str, str], int]:
        """Read its lists: the name of whose each connection is, and how many hosts sql has."""
        people = {each.id: each.name for each in await self.room.participants()}
        hosts = [each.hosts async for each in self.room.toolkits() if each.name == "sql"]
        return people, sum(hosts)


class Crowd(Cast):
    """Everybody in the demo of many servers; an async context manager.

    Args:
        nodes: How many servers there are; there is a host of `sql` at each but one.
        redis: Where the Redis is that they share; None for one of the demo's own.
        program: What runs that one.
    """

    def __init__(self, nodes: int, redis: str | None = None, program: str = "") -> None:
        # A Redis that others use too may know the demo of somebody else.
        super().__init__(f"{ROOM}-{token_hex(4)}", traced=False)
        self._redis = redis
        self._program = program
        self.nodes = [f"node-{number}" for number in range(1, nodes + 1)]
        """The servers' names."""
        self.hosts = [f"sql-{number}" for number in range(1, nodes)]
        """The hosts' names."""
        self.callers: list[Caller] = []
        """Those who ask."""
        self.balancer: Balancer
        """Through which all connect; there once `assemble` was awaited."""

    async def assemble(self) -> None:
        """Start servers, hosts and callers, so that each is at the server that it is meant for."""
        url = self._redis or await self._own_redis()
        started = (self._serve(node, "--redis", url) for node in self.nodes)
        self.balancer = Balancer(dict(zip(self.nodes, await asyncio.gather(*started), strict=True)))
        self._stack.push_async_callback(self.balancer.close)
        self._stack.push_async_callback(self._end_hosts)
        doors = [await self.balancer.open_door(host) for host in self.hosts]
        await asyncio.gather(
            *(self.host(name, "sql", door) for name, door in zip(self.hosts, doors, strict=True))
        )
        await self._until_at(self.hosts)
        for number in range(1, _CALLERS_EACH * len(self.nodes) + 1):
            await self._bring(f"caller-{number}")

    async def _own_redis(self) -> str:
        redis = RedisProcess(self._program, self.folder)
        self._stack.push_async_callback(redis.end)
        await redis.start()
        return redis.url

    async def _bring(self, name: str) -> None:
        url = await self.balancer.open_door(name)
        room = RoomClient(url, room=self._room_name, token=self.token(name, _SCOPE))
        async with asyncio.timeout(_START_S):
            await self._stack.enter_async_context(room)
        self.callers.append(Caller(name, room))

    async def _until_at(self, names: Sequence[str]) -> None:
        async with asyncio.timeout(_START_S):
            for name in names:
                await self.balancer.arrival(name)

    async def until_seen(self, people: int, hosts: int) -> None:
        """Wait until every caller's lists show so many of both."""
        for caller in self.callers:
            while True:
                there, serving = await caller.sees()
                if (len(there), serving) == (people, hosts):
                    break
                await asyncio.sleep(_PAUSE_S)

    async def ask_on(self) -> None:
        """Have all callers ask from now on, until everything ends."""
        for caller in self.callers:
            asking = asyncio.create_task(caller.ask_on())
            self._stack.push_async_callback(_ended, asking)

    def answers(self, node: str) -> list[tuple[float, float]]:
        """Give the answered calls of those who are at a server."""
        at = self.balancer.at
        return [each for caller in self.callers if at[caller.name] == node for each in caller.calls]

    def typical_ms(self, node: str) -> float:
        """Tell how long half of the calls took at most of those who are at a server."""
        return median(ended - began for began, ended in self.answers(node)) * 1000


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
