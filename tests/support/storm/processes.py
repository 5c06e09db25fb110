"""The processes of a storm: servers, hosts, fault proxies, and the faults that they suffer.

Usually there is one server. With a Redis there are three nodes, each with participants that know
only that node. The fault proxies connect to all nodes in turn, so that their clients move between
nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.deploy.balancer import Balancer, balancer
from support.processes import approver
from support.processes.launch import ChildProcess, clean_environment
from support.redis.server import RedisServer
from support.storm.plan import Fault
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient
from toolbus_server.testing import FaultProxy, Faults

__all__ = ["ROOM", "StormProcess", "StormProcesses", "storm_processes"]

ROOM = "lab"
HOSTS = 3
NODES = 3
_HERE = Path(__file__).parent


class StormProcess:
    """A process of a storm, which reports what it holds.

    Args:
        process: The process; its stdin and stdout are pipes.
        first: Its first line.
    """

    def __init__(self, process: asyncio.subprocess.Process, first: bytes) -> None:
        self.process = process
        self.first = first

    @classmethod
    async def start(
        cls, program: str, arguments: list[str], variables: dict[str, str], log: Path
    ) -> StormProcess:
        """Start one and wait for its first line."""
        path = os.pathsep.join(sys.path)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(_HERE / program), *arguments),
                env={**clean_environment(), "PYTHONPATH": path, **variables},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                first = await process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        assert first, f"{program} ended before it began, see {log}"
        return cls(process, first)

    async def holdings(self) -> dict[str, Any]:
        """Ask what it holds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"report\n")
        async with asyncio.timeout(60):
            report: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return report

    async def end(self, number: signal.Signals) -> int:
        """End it with a signal, and return its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()


class StormProcesses:
    """All processes and connections that a storm disturbs.

    Args:
        folder: The folder of keys, witness and error log.
        redis: The Redis that several servers share; None for one server.
        nodes: The number of servers with a Redis.
    """

    def __init__(self, folder: Path, redis: RedisServer | None = None, nodes: int = NODES) -> None:
        self.witness = folder / "witness"
        self.log = folder / "errors.log"
        self._keys = folder / "keys.toml"
        self._key = Key.generate(kid="test", iss="acme")
        KeyRing([self._key]).save(self._keys)
        self.redis = redis
        self._ports = [0] * (1 if redis is None else nodes)
        self._version = 1
        self.servers: list[StormProcess] = []
        self.hosts: list[StormProcess] = []
        self.approver: ChildProcess | None = None
        self.target = ""
        """The address of all servers."""
        self.proxies: list[FaultProxy] = []
        self.happened: list[str] = []

    def url(self, number: int) -> str:
        """The address of a server; numbers wrap around."""
        return f"ws://127.0.0.1:{self._ports[number % len(self._ports)]}"

    @property
    def urls(self) -> list[str]:
        """The addresses of all servers."""
        return [self.url(number) for number in range(len(self._ports))]

    def token(self, name: str, api: ApiScope | None = None) -> str:
        """Mint a token, by default with all grants."""
        token = ParticipantToken(name=name, room=[ROOM], api=api or ApiScope.full())
        return token.to_jwt(self._key, ttl_s=3600)

    def caller(self, number: int) -> RoomClient:
        """Make a caller; every other one connects through a fault proxy."""
        url = self.proxies[0].url if number % 2 else self.url(number)
        return RoomClient(url, room=ROOM, token=self.token(f"caller-{number}"))

    async def start_server(self, number: int) -> StormProcess:
        """Start a server, always at the same address."""
        arguments = [str(self._keys), str(self._ports[number])]
        if self.redis is not None:
            arguments.append(self.redis.url)
        server = await StormProcess.start("server.py", arguments, {}, self.log)
        self._ports[number] = urlsplit(json.loads(server.first)["url"]).port or 0
        return server

    async def start_servers(self) -> None:
        """Start all of them."""
        starting = [self.start_server(number) for number in range(len(self._ports))]
        self.servers = list(await asyncio.gather(*starting))

    async def start_host(self, number: int) -> StormProcess:
        """Start a host; the last one connects through a fault proxy."""
        url = self.proxies[1].url if number == HOSTS - 1 else self.url(number)
        variables = {
            "TOOLBUS_URL": url,
            "TOOLBUS_ROOM": ROOM,
            "TOOLBUS_TOKEN": self.token("host"),
            "TOOLBUS_DRAIN": "2",
            "STORM_VERSION": str(self._version),
        }
        return await StormProcess.start("host.py", [str(self.witness)], variables, self.log)

    async def start_approver(self) -> None:
        """Start the person who decides about calls that wait."""
        variables = {
            "TOOLBUS_URL": self.target,
            "TOOLBUS_ROOM": ROOM,
            "TOOLBUS_TOKEN": self.token(approver.NAME, approver.SCOPE),
        }
        self.approver = await ChildProcess.start([sys.executable, approver.__file__], variables)

    async def end(self) -> None:
        """End all processes."""
        if self.approver is not None:
            await self.approver.kill()
        for each in [*self.hosts, *self.servers]:
            if each.process.returncode is None:
                each.process.send_signal(signal.SIGCONT)
            await each.end(signal.SIGKILL)

    async def leave(self) -> None:
        """Let all processes leave; they must exit with 0."""
        for processes in (self.hosts, self.servers):
            codes = await asyncio.gather(*(each.end(signal.SIGTERM) for each in processes))
            assert set(codes) == {0}, f"left with {codes}: {self.log.read_text()}"

    # Faults

    async def make_faults(self, planned_faults: Iterator[Fault], is_over: asyncio.Event) -> None:
        """Cause one fault after the other, and heal each, until the storm is over."""
        for fault in planned_faults:
            if is_over.is_set():
                return
            await _FAULT_METHODS[fault.kind](self, fault)
            self.happened.append(fault.kind)
            await _pause(is_over, fault.calm_s)

    async def _kill_host(self, fault: Fault) -> None:
        await self._replace_host(fault, signal.SIGKILL, (-signal.SIGKILL,))

    async def _drain_host(self, fault: Fault) -> None:
        await self._replace_host(fault, signal.SIGTERM, (0,))

    async def _replace_host(
        self, fault: Fault, number: signal.Signals, codes: tuple[int, ...]
    ) -> None:
        place = fault.target % HOSTS
        code = await self.hosts[place].end(number)
        assert code in codes, f"a host ended with {code}: {self.log.read_text()}"
        self.hosts[place] = await self.start_host(place)

    async def _supersede_host(self, fault: Fault) -> None:
        """Replace a host by one with a newer definition; the others get no more new calls."""
        self._version += 1
        await self._drain_host(fault)

    async def _kill_approver(self, fault: Fault) -> None:
        if self.approver is not None:
            await self.approver.kill()
            await asyncio.sleep(fault.lasts_s)
            await self.start_approver()

    async def _stop_host(self, fault: Fault) -> None:
        process = self.hosts[fault.target % HOSTS].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _drain_server(self, fault: Fault) -> None:
        await self._restart(fault, signal.SIGTERM, 0)

    async def _kill_server(self, fault: Fault) -> None:
        await self._restart(fault, signal.SIGKILL, -signal.SIGKILL)

    async def _restart(self, fault: Fault, number: signal.Signals, expected: int) -> None:
        place = fault.target % len(self.servers)
        code = await self.servers[place].end(number)
        assert code == expected, f"a server ended with {code}: {self.log.read_text()}"
        self.servers[place] = await self.start_server(place)

    async def _stop_server(self, fault: Fault) -> None:
        process = self.servers[fault.target % len(self.servers)].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _kill_redis(self, fault: Fault) -> None:
        assert self.redis is not None
        await self.redis.kill()
        await asyncio.sleep(fault.lasts_s)
        await self.redis.start()

    async def _stop_redis(self, fault: Fault) -> None:
        assert self.redis is not None
        self.redis.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            self.redis.signal(signal.SIGCONT)

    async def _disturb(self, fault: Fault) -> None:
        proxy = self.proxies[fault.target % len(self.proxies)]
        faults = _FAULTS[fault.kind]
        ways = ("to_server", "to_participant", "both")
        way = ways[fault.target // len(self.proxies) % len(ways)]
        if way != "to_participant":
            proxy.to_server = faults
        if way != "to_server":
            proxy.to_participant = faults
        await asyncio.sleep(fault.lasts_s)
        if faults.lost:
            proxy.reset()  # TCP would not continue a connection that has lost data
        await proxy.heal()

    async def _reset(self, fault: Fault) -> None:
        self.proxies[fault.target % len(self.proxies)].reset()

    async def _half_open(self, fault: Fault) -> None:
        proxy = self.proxies[fault.target % len(self.proxies)]
        is_far = fault.target // len(self.proxies) % 2
        proxy.leave_half_open(closed="server" if is_far else "participant")

    async def _refuse(self, fault: Fault) -> None:
        proxy = self.proxies[fault.target % len(self.proxies)]
        await proxy.refuse()
        proxy.reset()
        await asyncio.sleep(fault.lasts_s)
        await proxy.heal()


_FAULTS = {
    "late": Faults(latency_s=0.05, jitter_s=0.05),
    "crumbs": Faults(slice_bytes=1),
    "slow": Faults(bytes_per_s=50_000),
    "stall": Faults(stalled=True),
    "lose": Faults(lost=True),
}
_FAULT_METHODS: dict[str, Callable[[StormProcesses, Fault], Awaitable[None]]] = {
    "kill host": StormProcesses._kill_host,
    "stop host": StormProcesses._stop_host,
    "drain host": StormProcesses._drain_host,
    "supersede host": StormProcesses._supersede_host,
    "drain server": StormProcesses._drain_server,
    "kill approver": StormProcesses._kill_approver,
    "kill server": StormProcesses._kill_server,
    "stop server": StormProcesses._stop_server,
    "kill redis": StormProcesses._kill_redis,
    "stop redis": StormProcesses._stop_redis,
    "reset": StormProcesses._reset,
    "half open": StormProcesses._half_open,
    "refuse": StormProcesses._refuse,
    **dict.fromkeys(_FAULTS, StormProcesses._disturb),
}


async def _pause(is_over: asyncio.Event, seconds: float) -> None:
    await asyncio.wait([over := asyncio.ensure_future(is_over.wait())], timeout=seconds)
    over.cancel()


@asynccontextmanager
async def storm_processes(
    folder: Path, redis: RedisServer | None = None, nodes: int = NODES
) -> AsyncIterator[StormProcesses]:
    """Start all processes; they end with the block."""
    made = StormProcesses(folder, redis, nodes)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.end)
        await made.start_servers()
        made.target = made.url(0)
        if redis is not None:
            address: Balancer = await stack.enter_async_context(balancer())
            address.lead_to(*made.urls)
            made.target = address.url
        await made.start_approver()
        for number in range(2):
            proxy = FaultProxy(made.target, seed=number)
            made.proxies.append(await stack.enter_async_context(proxy))
        made.hosts += await asyncio.gather(*(made.start_host(number) for number in range(HOSTS)))
        yield made
