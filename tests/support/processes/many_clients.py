"""A thousand participants in one process, and a caller whose calls must not fail meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.processes.server_process import ServerProcess
from toolbus import RoomClient, tool

PEOPLE = 1_000
_PROGRAM = Path(__file__).with_name("many_clients_process.py")


@tool
async def echo(number: int) -> int:
    return number


class ManyClients:
    """Participants in a process of their own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, word: str) -> None:
        """Send an order; return once the process waits, if it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        if word == "wait":
            assert await self._process.stdout.readline() == b"waiting\n"

    async def until_reconnected(self) -> list[float]:
        """Wait until all have reconnected; return how many seconds each took."""
        assert self._process.stdout is not None
        took: list[float] = json.loads(await self._process.stdout.readline())
        return took


@asynccontextmanager
async def many_clients(
    server: ServerProcess, participants: int = PEOPLE, url: str | None = None
) -> AsyncIterator[ManyClients]:
    """Run this many participants in their own process, connected to the server or to `url`."""
    place = {"TOOLBUS_URL": url or server.url, "TOOLBUS_ROOM": "lab"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_PROGRAM), str(participants)),
        env={**os.environ, **place, "TOOLBUS_TOKEN": server.token("crowd")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=2**20,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield ManyClients(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Caller:
    """Makes one call after the other, none of which may fail."""

    def __init__(self, room: RoomClient) -> None:
        self._room = room
        self.is_over = False
        self.calls = 0
        """How many have ended."""

    async def run(self) -> None:
        while not self.is_over:
            await self._room.invoke("t.echo", {"number": 1}, retry=False)
            self.calls += 1
