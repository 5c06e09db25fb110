"""A Redis in a container, which tests may stop and kill like a process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from support.redis.docker_engine import container_of
from support.redis.server import RedisServer

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

__all__ = ["RedisContainer"]

_INNER_PORT = 6379


class RedisContainer(RedisServer):
    """One Redis in a container; killed and started again it is another container at the same port.

    Args:
        image: The image: a Redis or a Valkey.
        folder: Not used: the container keeps all that it writes.
        password: The password that it requires; none if empty.
    """

    def __init__(self, image: str, folder: Path, *, password: str = "") -> None:
        super().__init__(image, folder, password=password)
        self._container: DockerContainer | None = None

    async def _launch(self, *settings: str) -> None:
        program = "valkey-server" if "valkey" in self._program else "redis-server"
        container = container_of(self._program).with_bind_ports(_INNER_PORT, self.port)
        # It is reached from loopback alone, yet sees another address than its own.
        self._container = container.with_command([program, "--protected-mode", "no", *settings])
        await asyncio.to_thread(container.start)

    def _insist_that_it_runs(self) -> None:
        assert self._container is not None
        self._container.reload()
        if self._container.status == "exited":
            raise RuntimeError(f"{self._program} ended: {self._container.get_logs()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's process."""
        assert self._container is not None
        self._container.get_wrapped_container().kill(signal=int(number))

    def freeze(self) -> None:
        """Suspend it, with its connections open."""
        assert self._container is not None
        self._container.get_wrapped_container().pause()

    def thaw(self) -> None:
        """Resume it."""
        assert self._container is not None
        self._container.get_wrapped_container().unpause()

    async def kill(self) -> None:
        """Kill it, with all that it holds."""
        container, self._container = self._container, None
        if container is not None:
            await asyncio.to_thread(container.stop)
