"""A thousand participants who come back at once: all are in within bounds, and calls go on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.server_process import ServerProcess, server_process
from toolbus import RoomClient, Toolkit, tool

PEOPLE = 1_000
_PROGRAM = Path(__file__).parent.parent / "support" / "crowd_process.py"
# Some 3 s on two free cores, of which the thousand themselves need one.
JOIN_P99_S = 30.0
CALL_S = 5.0


@tool
async def echo(number: int) -> int:
    return number


class Crowd:
    """Participants in a process of their own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, word: str) -> None:
        """Tell it what to do; once it waits, it has said so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        if word == "wait":
            assert await self._process.stdout.readline() == b"waiting\n"

    async def heard(self) -> list[float]:
        """Wait until all are back; say how long each took."""
        assert self._process.stdout is not None
        took: list[float] = json.loads(await self._process.stdout.readline())
        return took


@asynccontextmanager
async def crowd(
    server: ServerProcess, people: int = PEOPLE, url: str | None = None
) -> AsyncIterator[Crowd]:
    """Run so many participants in a process of their own, where the server is or the URL leads."""
    place = {"TOOLBUS_URL": url or server.url, "TOOLBUS_ROOM": "lab"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_PROGRAM), str(people)),
        env={**os.environ, **place, "TOOLBUS_TOKEN": server.token("crowd")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=2**20,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield Crowd(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def come_back(gathered: Crowd) -> list[float]:
    """Let all lose their connections at once; say how long each took to be back."""
    await gathered.say("again")
    return sorted(await gathered.heard())


class Caller:
    """Makes one call after the other, none of which may fail."""

    def __init__(self, room: RoomClient) -> None:
        self._room = room
        self.is_over = False
        self.waits: list[float] = []
        """How long each took."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_over:
            began = loop.time()
            await self._room.invoke("t", "echo", {"number": 1}, retry=False)
            self.waits.append(loop.time() - began)


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.row(82)
async def test_a_thousand_come_back_at_once_and_calls_of_others_go_on(tmp_path: Path) -> None:
    """CONN-16, LEAVE-4: by jitter, and by a server that lets in a few at a time."""
    async with (
        server_process(tmp_path) as server,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("alice") as alice,
        crowd(server) as gathered,
        asyncio.timeout(200),
    ):
        for _ in range(2):
            caller = Caller(alice)
            async with asyncio.TaskGroup() as group:
                group.create_task(caller.run())
                took = await come_back(gathered)
                caller.is_over = True
            assert len(took) == PEOPLE
            assert took[int(PEOPLE * 0.99)] < JOIN_P99_S
            assert max(caller.waits) < CALL_S
            assert len(caller.waits) > 100
