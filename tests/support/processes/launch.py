"""Child processes, without the `TOOLBUS_*` variables of this one, ended by their process id."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Self


def clean_environment() -> dict[str, str]:
    """Return this process's variables, without those for toolbus and OpenTelemetry."""
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
        """End it with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """End it with SIGTERM, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()
