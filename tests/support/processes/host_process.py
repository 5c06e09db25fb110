"""A host in its own process, which a test can kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.processes.server_process import ServerProcess
from toolbus_server.testing import FaultProxy, TestServer

_PROGRAM = Path(__file__).with_name("hosted_tools.py")


class HostProcess:
    """A process that hosts the toolkit `work`.

    Args:
        process: The process, which has printed that it is ready.
        witness: The file in which its tools write that they began and ended.
    """

    def __init__(self, process: asyncio.subprocess.Process, witness: Path) -> None:
        self._process = process
        self._witness = witness

    async def kill(self) -> None:
        """End it with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """End it with SIGTERM, and return its exit code."""
        return await self._end(signal.SIGTERM)

    def stop(self) -> None:
        """Suspend it."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it."""
        self._process.send_signal(signal.SIGCONT)

    async def ended(self) -> int:
        """Wait until it ends without a signal, and return its exit code."""
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def _end(self, number: signal.Signals) -> int:
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(60):
            return await self._process.wait()

    def count(self, line: str) -> int:
        """Count how often a line is in the witness file."""
        return self._witness.read_text().splitlines().count(line) if self._witness.exists() else 0

    async def wrote(self, line: str) -> None:
        """Wait until a line is there."""
        async with asyncio.timeout(60):
            while not self.count(line):  # noqa: ASYNC110 - a file of another process has no event
                await asyncio.sleep(0.01)


@asynccontextmanager
async def host_process(
    server: TestServer | ServerProcess,
    witness: Path,
    *,
    hold: bool = False,
    token: str | None = None,
    via: FaultProxy | None = None,
    **variables: str,
) -> AsyncIterator[HostProcess]:
    """Start a host and wait until its toolkit is registered; it is stopped when the block ends."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TOOLBUS_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_PROGRAM), str(witness), *(["hold"] if hold else [])),
        env={
            **clean,
            "TOOLBUS_URL": server.url if via is None else via.url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": token or server.token("host"),
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    host = HostProcess(process, witness)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        yield host
    finally:
        await host.kill()
