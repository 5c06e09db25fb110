"""A Redis in a container, which tests may hurt as one that is a process of theirs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from support.redis.server import RedisServer

__all__ = ["RedisContainer"]

_INNER_PORT = 6379


class RedisContainer(RedisServer):
    """One Redis in a container; killed and started anew it is another one at the same port.

    Args:
        image: What runs; a Redis or a Valkey.
        folder: Not used: all that it writes is within.
        password: What it asks for; nothing where empty.
    """

    def __init__(self, image: str, folder: Path, *, password: str = "") -> None:
        super().__init__(image, folder, password=password)
        from testcontainers.core.container import DockerContainer

        self._make = DockerContainer
        self._container: DockerContainer | None = None

    async def _launch(self, *settings: str) -> None:
        program = "valkey-server" if "valkey" in self._program else "redis-server"
        container = self._make(self._program).with_bind_ports(_INNER_PORT, self.port)
        # It is reached from loopback alone, yet sees another address than its own.
        self._container = container.with_command([program, "--protected-mode", "no", *settings])
        await asyncio.to_thread(container.start)

    def _insist_that_it_runs(self) -> None:
        assert self._container is not None
        self._container.reload()
        if self._container.status == "exited":
            raise RuntimeError(f"{self._program} ended: {self._container.get_logs()}")

    def signal(self, number: signal.Signals) -> None:
        """Send what runs in the container a signal."""
        assert self._container is not None
        self._container.get_wrapped_container().kill(signal=int(number))

    def freeze(self) -> None:
        """Let it stand still, with its connections open."""
        assert self._container is not None
        self._container.get_wrapped_container().pause()

    def thaw(self) -> None:
        """Let it go on."""
        assert self._container is not None
        self._container.get_wrapped_container().unpause()

    async def kill(self) -> None:
        """End it at once, with all that it holds."""
        container, self._container = self._container, None
        if container is not None:
            await asyncio.to_thread(container.stop)
