"""Processes of their own, without the `TOOLBUS_*` variables around, ended by their id."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Self


def clean_environment() -> dict[str, str]:
    """Give the variables around, without those that are for toolbus and OpenTelemetry."""
    ours = ("TOOLBUS_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class ChildProcess:
    """A process that a test started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**clean_environment(), **environment},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return cls(process)

    async def kill(self) -> None:
        """End it without asking."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """Ask it to end, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()
