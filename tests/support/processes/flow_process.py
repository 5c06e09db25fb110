"""Starts the host of `flow_host`, and measures the memory of processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from support.processes.launch import ChildProcess
from support.rooms.events import until_hosts
from toolbus import RoomClient
from toolbus.chunks.chunk_types import Chunk

PROGRAM = Path(__file__).with_name("flow_host.py")
_LOOK_EVERY_S = 0.005


class RunningServer(Protocol):
    """A server, in this process or in its own."""

    @property
    def url(self) -> str: ...

    def token(self, name: str) -> str: ...


class FlowHost:
    """A process that hosts the toolkit `flow`.

    Args:
        child: The process.
        witness: The file in which its tools write that they began and were closed.
    """

    def __init__(self, child: ChildProcess, witness: Path) -> None:
        self.child = child
        self._witness = witness

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def count(self, line: str) -> int:
        """Count how often a line is in the witness file."""
        return self._witness.read_text().splitlines().count(line) if self._witness.exists() else 0

    async def wrote(self, line: str, times: int = 1) -> None:
        """Wait until a line is there this often."""
        async with asyncio.timeout(60):
            while self.count(line) < times:  # noqa: ASYNC110 - a file of another process has no event
                await asyncio.sleep(0.01)


@asynccontextmanager
async def flow_host(
    server: RunningServer, caller: RoomClient, folder: Path, *, url: str | None = None
) -> AsyncIterator[FlowHost]:
    """Run a host until the block ends; yield once `caller` can call it."""
    witness = folder / "flow"
    variables = {"TOOLBUS_URL": url or server.url, "TOOLBUS_TOKEN": server.token("host")}
    command = [sys.executable, str(PROGRAM), str(witness)]
    child = await ChildProcess.start(command, {**variables, "TOOLBUS_ROOM": "lab"})
    try:
        await until_hosts(caller, "flow", 1)
        yield FlowHost(child, witness)
    finally:
        await child.kill()


async def command(
    server: RunningServer, *words: str, name: str = "cli", stdout: Any = asyncio.subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    """Run `toolbus` as a participant of the room "lab", in its own process."""
    mine = {"TOOLBUS_URL": server.url, "TOOLBUS_ROOM": "lab", "TOOLBUS_TOKEN": server.token(name)}
    clean = {key: text for key, text in os.environ.items() if not key.startswith("TOOLBUS_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolbus", *words), env={**clean, **mine}, stdout=stdout
    )


def number_of(chunk: Chunk) -> int:
    """Return the number of one of the host's items."""
    value: Any = chunk.value
    return int(value["n"])


class Memory:
    """Measures the peak memory of processes: `async with Memory(...)`.

    Args:
        pids: The processes, by name.
    """

    def __init__(self, **pids: int) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.before: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Memory:
        self.look()
        self.before = dict(self.most)
        self._looking = asyncio.create_task(self._look_often())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._looking is not None
        self._looking.cancel()
        self.look()

    def grown(self, name: str) -> int:
        """Return by how many bytes a process grew at most."""
        return self.most[name] - self.before[name]

    def look(self) -> None:
        for name, process in self._processes.items():
            with suppress(psutil.Error):  # it has ended: what it had is known
                now = int(process.memory_info().rss)
                self.most[name] = max(self.most.get(name, 0), now)

    async def _look_often(self) -> None:
        while True:  # a process has no event for its memory
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()
