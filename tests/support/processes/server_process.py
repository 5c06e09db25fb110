"""A server in its own process, which a test stops or kills and starts again at the same address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from toolbus import Key, KeyRing, ParticipantToken, RoomClient
from toolbus.auth.grants import ApiScope
from toolbus_toolkits.demo.child_process import COMMAND_MODULE

QUIET = """
from dataclasses import replace
from toolbus.__main__ import main
from toolbus_server.process import serve

server = serve.RoomServer
serve.RoomServer = lambda settings: server(replace(settings, ping_interval_s=None))
main()
"""
"""`toolbus`, whose server sends no pings: raw participants answer none."""


class ServerProcess:
    """`toolbus serve`, always at the address of its first start.

    Args:
        folder: The folder of its keys; existing keys are used.
        flags: Further options.
        program: The program that Python runs.
    """

    def __init__(
        self, folder: Path, *flags: str, program: tuple[str, str] = ("-m", COMMAND_MODULE)
    ) -> None:
        self._keys = folder / "keys.toml"
        self._flags = flags
        self._program = program
        if not self._keys.exists():
            KeyRing([Key.generate(kid="test", iss="acme")]).save(self._keys)
        self._key = next(iter(KeyRing.load(self._keys)))
        self._process: asyncio.subprocess.Process | None = None
        self.url = "ws://127.0.0.1:0"

    async def start(self) -> None:
        """Start it and wait until it listens."""
        port = urlsplit(self.url).port
        clean = {name: text for name, text in os.environ.items() if not name.startswith("TOOLBUS_")}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, *self._program, "serve", "--json"),
            *("--keys", str(self._keys), "--port", str(port)),
            *self._flags,
            env=clean,
            stdin=asyncio.subprocess.PIPE,  # so that it ends with a test process that is killed
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            self.url = json.loads(await self._process.stdout.readline())["url"]

    async def end(self, number: signal.Signals) -> int:
        """End it with a signal, and return its exit code; 0 if it was never started."""
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def ended(self) -> int:
        """Wait until it ends without a signal, and return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(60):
            return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def token(self, name: str, *, room: str = "lab", api: ApiScope | None = None) -> str:
        """Mint a token for a room, or for all rooms if it is "*", by default with all grants."""
        token = ParticipantToken(name=name, room=[room], api=api or ApiScope.full())
        return token.to_jwt(self._key, ttl_s=3600)

    def room(self, name: str, *, instance: str | None = None) -> RoomClient:
        """Make a participant in "lab"."""
        return RoomClient(self.url, room="lab", token=self.token(name), instance=instance)


@asynccontextmanager
async def server_process(
    folder: Path, *flags: str, program: tuple[str, str] = ("-m", COMMAND_MODULE)
) -> AsyncIterator[ServerProcess]:
    """Run one on loopback until the block ends."""
    server = ServerProcess(folder, *flags, program=program)
    try:
        await server.start()
        yield server
    finally:
        await server.end(signal.SIGKILL)


def resident_bytes(process_id: int) -> int:
    """Return how much memory of a process is in use."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024
