"""Nodes as people run them: each a `toolbus serve` in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from support.processes.server_process import ServerProcess, server_process
from support.redis.server import RedisServer
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient

__all__ = ["IMPATIENT", "SHORT_LEASES", "node_processes"]

_AS_TOOLBUS = ("-m", "toolbus")
SHORT_LEASES = (
    "-c",
    """
from toolbus_server.cluster import node
node.LEASE_S, node.HEARTBEAT_S = 3.0, 0.5
from toolbus.__main__ import main
main()
""",
)
"""As `toolbus`, with shorter leases, so that tests need not wait for a whole one."""
IMPATIENT = (
    "-c",
    """
from dataclasses import replace
from toolbus_server.websocket import server as module
plain = module.RoomServer
module.RoomServer = lambda settings: plain(
    replace(settings, ping_interval_s=0.4, ping_timeout_s=1.2)
)
from toolbus.__main__ import main
main()
""",
)
"""As `toolbus`, with shorter timeouts for silent participants."""


@asynccontextmanager
async def node_processes(
    folder: Path, *urls: str, program: tuple[str, str] = _AS_TOOLBUS
) -> AsyncIterator[list[ServerProcess]]:
    """Run one server for each URL of their Redis."""
    async with AsyncExitStack() as stack:
        running = (server_process(folder, "--redis", url, program=program) for url in urls)
        yield [await stack.enter_async_context(each) for each in running]


class NamedServer:
    """`toolbus serve` as the node "one", whose log is read."""

    def __init__(self, process: asyncio.subprocess.Process, key: Key) -> None:
        self.process = process
        self._key = key
        self.log: list[str] = []

    async def url(self) -> str:
        """Wait until it listens, and return its address."""
        assert self.process.stdout is not None
        url: str = json.loads(await self.process.stdout.readline())["url"]
        return url

    async def until_logged(self, words: str) -> None:
        """Read its log until it contains this."""
        assert self.process.stderr is not None
        while not self.log or words not in self.log[-1]:
            line = await self.process.stderr.readline()
            assert line, self.log
            self.log.append(line.decode())

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Terminate it, and return its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    async def room(self, name: str) -> RoomClient:
        """Make a participant in "lab"."""
        token = ParticipantToken(name=name, room=["lab"], api=ApiScope.full())
        return RoomClient(await self.url(), room="lab", token=token.to_jwt(self._key))


@asynccontextmanager
async def named_server(folder: Path, redis: RedisServer, *more: str) -> AsyncIterator[NamedServer]:
    """Start a node called "one"."""
    path = folder / "keys.toml"
    if not path.exists():
        KeyRing([Key.generate(kid="test", iss="acme")]).save(path)
    flags = ("--keys", str(path), "--port", "0", "--redis", redis.url, "--node", "one")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolbus", "serve", "--json", "--drain", "1", *flags, *more),
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    server = NamedServer(process, next(iter(KeyRing.load(path))))
    try:
        yield server
    finally:
        await server.end(signal.SIGKILL)
