"""`executed` of calls through an MCP hub, against a file of what the servers really ran.

The servers send codes and texts that a client could take for its own, statuses of HTTP, and what is
no message; they end in the midst of calls, and so does the hub. `TOOLBUS_LEDGER_SEED` repeats the
decisions of a failed run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.processes.launch import ChildProcess
from support.processes.ledger import CANCELLED, MAYBE, NO, OK, YES, Ledger
from support.redis.server import free_port
from support.rooms.events import until_hosts
from toolbus import RoomClient, RoomException
from toolbus_server.testing import TestServer, running_server

SEED = os.environ.get("TOOLBUS_LEDGER_SEED")
PROGRAM = str(Path(__file__).parents[2] / "support/mcp/ledger_server.py")
CALLERS = 3
TASKS = 8
ERRORS = [
    "-32000 rate limit reached",
    "-32000 Connection closed",
    "-32001 Request timed out",
    "-32001 Session not found",
    "-32600 Session terminated",
    "-32600 Invalid session id",
    "-32601 Method not found",
    "-32602 Invalid params",
    "-32603 Server returned an error response",
    "-32700 Parse error",
    "-32020 header mismatch",
    "-32022 unsupported protocol version",
    "-32099 SSE stream ended without a response",
    "0 ",
]
COMMON = [
    *["ok"] * 12,
    *["is error"] * 2,
    *(f"error {each}" for each in ERRORS),
    'raw {"jsonrpc": "2.0", "id": ID, "result": 5}',
    'raw {"jsonrpc": "2.0", "id": ID, "result": {"content": [',
    "end before",
    "end within",
    "end after",
]
# Not 404: with a session's id it says, by MCP, that the server did not take the request.
STATUSES = [f"status {each}" for each in (400, 401, 403, 410, 429, 500, 502, 503, "none")]


class HubStorm:
    """Callers of two servers behind a hub, and the ends of servers and hub."""

    def __init__(self, server: TestServer, folder: Path, seed: str, calls: int) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.ledger = Ledger(calls)
        self.witness = folder / "witness"
        self.witness.touch()
        self.keys: Iterator[int] = iter(range(calls))
        self.ended = 0
        self.progress = asyncio.Condition()
        self.port = free_port()
        self.environment = {"WITNESS": str(self.witness)}
        self.config = folder / "mcp.json"
        pipes = {"command": sys.executable, "args": [PROGRAM], "env": self.environment}
        web = {"url": f"http://127.0.0.1:{self.port}/mcp", "timeout": 20}
        self.config.write_text(json.dumps({"mcpServers": {"pipes": pipes, "web": web}}))
        self.hubs: list[ChildProcess] = []
        self.web: ChildProcess | None = None

    async def keep_web(self) -> None:
        """Start the server with an address, and again when it has ended."""
        command = [sys.executable, PROGRAM, "--http", str(self.port)]
        while True:
            self.web = await ChildProcess.start(command, self.environment)
            await self.web.process.wait()

    async def start_hub(self) -> None:
        environment = {"TOOLBUS_TOKEN": self.server.token("host", room="lab")}
        flags = ["--config", str(self.config), "--allow-private", "--url", self.server.url]
        command = [sys.executable, "-m", "toolbus", "host", "mcp", *flags, "--room", "lab"]
        self.hubs.append(await ChildProcess.start(command, environment))

    async def fault(self, number: int, watcher: RoomClient) -> None:
        """End a server, or every fourth time a hub, beside which there is another."""
        if number % 4 == 0:
            await self.start_hub()
            await until_hosts(watcher, "pipes", len(self.hubs))
            await self.hubs.pop(0).kill()
        elif number % 4 == 1:
            assert self.web is not None
            await self.web.kill()
        else:
            for process in psutil.Process(self.hubs[0].process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it has ended by itself
                    if PROGRAM in process.cmdline():
                        process.kill()

    async def call(self, room: RoomClient, key: int) -> None:
        kit = self.random.choice(["pipes", "web"])
        how = self.random.choice(COMMON + (STATUSES if kit == "web" else []))
        tool = self.random.choice(["act", "act", "again"])
        self.ledger.idempotent[key] = tool == "again"
        arguments = {"how": how, "key": key, "work_s": self.random.choice([0.0, 0.0, 0.02])}
        call = asyncio.ensure_future(
            room.invoke(f"{kit}.{tool}", arguments, timeout_s=30, retry=self.random.random() < 0.7)
        )
        if self.random.random() < 0.05:
            await asyncio.wait([call], timeout=self.random.choice([0.0, 0.005, 0.03]))
            call.cancel()
        try:
            assert (await call).value == str(key)
        except asyncio.CancelledError:
            self.ledger.note(key, CANCELLED)
        except RoomException as error:
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    async def call_repeatedly(self, room: RoomClient) -> None:
        for key in self.keys:
            await self.call(room, key)
            async with self.progress:
                self.ended += 1
                self.progress.notify_all()

    async def run(self, callers: list[RoomClient], faults: int) -> None:
        every = len(self.ledger.outcomes) // (faults + 1)
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                for _ in range(TASKS):
                    group.create_task(self.call_repeatedly(caller))
            for number in range(1, faults + 1):
                async with self.progress:
                    while self.ended < number * every:
                        await self.progress.wait()
                await self.fault(number, callers[0])


async def run_ledger(folder: Path, calls: int, faults: int) -> None:
    seed = SEED or secrets.token_hex(4)
    print(f"ledger seed: {seed}")  # noqa: T201 - shown when the test fails, to repeat it
    async with running_server() as server:
        storm = HubStorm(server, folder, seed, calls)
        keeping = asyncio.create_task(storm.keep_web())
        try:
            await storm.start_hub()
            rooms = [server.room(f"caller-{number}") for number in range(CALLERS)]
            async with rooms[0] as first, rooms[1] as second, rooms[2] as third:
                await until_hosts(first, "pipes", 1)
                await until_hosts(first, "web", 1)
                await storm.run([first, second, third], faults)
        finally:
            keeping.cancel()
            for process in (*storm.hubs, *([] if storm.web is None else [storm.web])):
                await process.kill()
    received = storm.ledger.check(storm.witness)
    print(received)  # noqa: T201 - shown when the test fails
    assert min(received[outcome] for outcome in (OK, CANCELLED, NO, MAYBE, YES)) > 0, received


@pytest.mark.timeout(180)
@pytest.mark.long
async def test_executed_is_true_through_a_hub(tmp_path: Path) -> None:
    await run_ledger(tmp_path, 400, 4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_executed_is_true_through_a_hub_6000_times(tmp_path: Path) -> None:
    await run_ledger(tmp_path, 6_000, 60)
