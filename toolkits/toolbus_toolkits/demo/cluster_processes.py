"""The processes of the demo with several servers: servers, hosts of `sql`, and callers.

The servers share a Redis. Servers and hosts are processes; the callers run in this process, each
with its own connection, and call continuously. All connect through a balancer, which records the
server of each participant.
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
from toolbus_toolkits.demo.balancer import Balancer
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses
from toolbus_toolkits.demo.redis_process import RedisProcess

__all__ = ["Caller", "ClusterProcesses"]

_CALLERS_EACH = 2
_SCOPE = ApiScope(agents=AgentsGrant(use_tools=True, call=True, allow=("sql",)), presence=True)
_QUERY = """
    SELECT source, count(*), sum(size_bytes) FROM packages WHERE name LIKE ? GROUP BY source
"""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CALL_S = 60.0
_PAUSE_S = 0.01
_BETWEEN_CALLS_S = 0.03
_START_S = 120.0


@dataclass(slots=True)
class Caller:
    """A caller that calls continuously; the SDK may retry each of its calls."""

    name: str
    room: RoomClient
    calls: list[tuple[float, float]] = field(default_factory=list)
    """When each answered call started and ended."""
    failures: list[RoomException] = field(default_factory=list)
    """The errors of the others."""

    async def keep_calling(self) -> None:
        """Make one call after the other, until cancelled."""
        while True:
            began_s = time.monotonic()
            letter = _LETTERS[len(self.calls) % len(_LETTERS)]
            arguments = {"sql": _QUERY, "parameters": [f"{letter}%"]}
            try:
                await self.room.invoke("sql.query", arguments, timeout_s=_CALL_S)
            except RoomException as error:
                self.failures.append(error)
            else:
                self.calls.append((began_s, time.monotonic()))
            await asyncio.sleep(_BETWEEN_CALLS_S)

    async def wait_answered_since(self, moment_s: float) -> float:
        """Wait until a call that started after a moment is answered; return when that was."""
        while True:
            for began_s, ended_s in reversed(self.calls):
                if began_s >= moment_s:
                    return ended_s
            await asyncio.sleep(_PAUSE_S)

    def longest_call_s(self, since_s: float) -> float:
        """Return how long the longest call took of those that ended after a moment."""
        return max(ended - began for began, ended in self.calls if ended >= since_s)

    async def lists(self) -> tuple[dict[str, str], int]:
        """Request the lists: each participant's name by its id, and how many hosts `sql` has."""
        listed = await self.room.participants()
        participants = {participant.id: participant.name for participant in listed}
        hosts = [info.hosts async for info in self.room.toolkits() if info.name == "sql"]
        return participants, sum(hosts)


class ClusterProcesses(DemoProcesses):
    """All processes of the demo with several servers; an async context manager.

    Args:
        nodes: How many servers to start; each but one gets a host of `sql`.
        redis: The URL of the Redis that they share; None to start one.
        program: The program of the Redis to start.
    """

    def __init__(self, nodes: int, redis: str | None = None, program: str = "") -> None:
        # A shared Redis may contain the room of another run of the demo.
        super().__init__(f"{ROOM}-{token_hex(4)}", traced=False)
        self._redis = redis
        self._program = program
        self.nodes = [f"node-{number}" for number in range(1, nodes + 1)]
        """The servers' names."""
        self.hosts = [f"sql-{number}" for number in range(1, nodes)]
        """The hosts' names."""
        self.callers: list[Caller] = []
        """The callers, once connected."""
        self.balancer: Balancer
        """All connect through it; set by `start_cluster`."""

    async def start_cluster(self) -> None:
        """Start servers, hosts and callers, so that each connects to the intended server."""
        url = self._redis or await self._start_redis()
        started = (self._serve(node, "--redis", url) for node in self.nodes)
        self.balancer = Balancer(dict(zip(self.nodes, await asyncio.gather(*started), strict=True)))
        self._stack.push_async_callback(self.balancer.close)
        self._stack.push_async_callback(self._end_hosts)
        endpoints = [await self.balancer.listen_for(host) for host in self.hosts]
        await asyncio.gather(
            *(
                self.host(name, "sql", listener)
                for name, listener in zip(self.hosts, endpoints, strict=True)
            )
        )
        await self._wait_for_connections(self.hosts)
        for number in range(1, _CALLERS_EACH * len(self.nodes) + 1):
            await self._connect_caller(f"caller-{number}")

    async def _start_redis(self) -> str:
        redis = RedisProcess(self._program, self.folder)
        self._stack.push_async_callback(redis.end)
        await redis.start()
        return redis.url

    async def _connect_caller(self, name: str) -> None:
        url = await self.balancer.listen_for(name)
        room = RoomClient(url, room=self._room_name, token=self.token(name, _SCOPE))
        async with asyncio.timeout(_START_S):
            await self._stack.enter_async_context(room)
        self.callers.append(Caller(name, room))

    async def _wait_for_connections(self, names: Sequence[str]) -> None:
        async with asyncio.timeout(_START_S):
            for name in names:
                await self.balancer.wait_connected(name)

    async def wait_until_listed(self, participants: int, hosts: int) -> None:
        """Wait until every caller's lists contain so many of both."""
        for caller in self.callers:
            while True:
                listed, serving = await caller.lists()
                if (len(listed), serving) == (participants, hosts):
                    break
                await asyncio.sleep(_PAUSE_S)

    async def keep_calling(self) -> None:
        """Let all callers call from now on, until the context is left."""
        for caller in self.callers:
            asking = asyncio.create_task(caller.keep_calling())
            self._stack.push_async_callback(_cancel_task, asking)

    def answers(self, node: str) -> list[tuple[float, float]]:
        """Return the answered calls of the callers at a server."""
        at = self.balancer.at
        return [call for caller in self.callers if at[caller.name] == node for call in caller.calls]

    def median_ms(self, node: str) -> float:
        """Return the median duration of the calls of the callers at a server."""
        return median(ended - began for began, ended in self.answers(node)) * 1000


async def _cancel_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
