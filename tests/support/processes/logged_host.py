"""A host process of any program, whose output is read as it arrives."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from support.patience import PATIENCE_S
from support.processes.launch import clean_environment

_TESTS = Path(__file__).parents[2]


class Host:
    """A host process and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ""
        """What stderr said until it ended."""

    async def entered(self) -> None:
        """Wait until one of its tools has begun."""
        await self._wait_for_line(b"entered\n")

    async def cancelled(self) -> None:
        """Wait until one of its tools has swallowed its cancel."""
        await self._wait_for_line(b"cancelled\n")

    async def _wait_for_line(self, words: bytes) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while (line := await self._process.stdout.readline()) != words:
                assert line, await self.ended()

    async def wait_for_log(self, words: str) -> None:
        """Wait until stderr contains that."""
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while words not in self.output:
                line = await self._process.stderr.readline()
                assert line, self.output
                self.output += line.decode()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; read its whole output, and return its exit code."""
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            self.output += (await self._process.stderr.read()).decode()
            return await self._process.wait()


@asynccontextmanager
async def host_of(
    url: str, token: str, command: Sequence[str], **variables: str
) -> AsyncIterator[Host]:
    """Start a host in the room "lab", and do not wait for it; kill it when the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=_TESTS,
        env={
            **clean_environment(),
            "TOOLBUS_URL": url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": token,
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Host(process)
    finally:
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate()  # to the end of its pipes, which a forked child has, too
