"""A host whose tool waits for a person, a caller, and a person who follows a script.

Each is a program. It prints one line of JSON for everything that a test waits for; the first says
that it is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S
from support.processes.launch import clean_environment
from support.processes.server_process import ServerProcess
from toolbus import HeldCall, RoomClient, RoomException, Toolkit, tool
from toolbus_server.testing import TestServer

WITNESS = "WITNESS"


def tell(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


@tool(approval=True)
async def write(path: str, text: str) -> str:
    """Write into a witness file what ran."""
    with Path(os.environ[WITNESS]).open("a") as witness:  # noqa: ASYNC230 - a line of a test
        witness.write(f"{path}: {text}\n")
    return f"wrote {path}"


FILES = Toolkit("files", [write])
"""For `toolbus host` too."""


async def host(room: RoomClient) -> None:
    """Host `files`."""
    async with room.host(FILES):
        tell("ready")
        await asyncio.Event().wait()


async def call(room: RoomClient, number: int, options: dict[str, Any]) -> None:
    """Make `number` calls at once, and tell how each ended and what was known of its wait."""

    async def one(path: str) -> None:
        seen: list[HeldCall] = []
        try:
            chunk = await room.invoke(
                "files.write", {"path": path, "text": "a"}, on_held=seen.append, **options
            )
            end = {"value": chunk.value}
        except RoomException as error:
            end = {"code": error.code, "executed": error.executed, "text": error.message}
        tell([path, end, [held.outcome for held in seen]])

    tell("ready")
    await asyncio.gather(*(one(f"f{index}") for index in range(number)))


async def decide(room: RoomClient, number: int, think_s: float, step: list[Any]) -> None:
    """Wait for `number` calls, and decide about them in random order, each after a while."""
    async with room.events(["holds"]) as events:
        tell("ready")
        added: list[str] = []
        while len(added) < number:
            event = await anext(events)
            if event.name == "hold_added" and event.hold is not None:
                added.append(event.hold.id)
        random.Random(number).shuffle(added)
        word, *rest = step
        for hold_id in added:
            hold = await room.hold(hold_id)
            assert hold.body is not None
            tell(["asked", dict(hold.body.arguments), hold.purpose])
            await asyncio.sleep(think_s)
            if word == "approve":
                await room.approve(hold, *rest)
            elif word == "deny":
                await room.deny(hold, *rest)
    tell("decided")


async def answer(room: RoomClient, *chunks: Any) -> None:
    """Answer what waits already."""
    tell("ready")
    for hold in await room.holds():
        await room.answer(hold, *chunks)
    tell("answered")


async def main(part: str, *arguments: Any) -> None:
    async with RoomClient() as room:
        parts: dict[str, Any] = {"host": host, "call": call, "decide": decide, "answer": answer}
        await parts[part](room, *arguments)


class Program:
    """A program that runs in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self, busy_s: float = 0) -> Any:
        """Wait for what it tells next, which takes so long."""
        assert self._process.stdout is not None
        async with asyncio.timeout(busy_s + PATIENCE_S):
            line = await self._process.stdout.readline()
        assert line, "it has ended: see its errors in the output of the test"
        return json.loads(line)

    def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def program(
    server: TestServer | ServerProcess, name: str, part: str, *arguments: Any, **variables: str
) -> AsyncIterator[Program]:
    """Run a part as a participant until the block ends; it is ready when the block begins."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, part, json.dumps(arguments)),
        cwd=Path(__file__).parents[2],
        env={
            **clean_environment(),
            "TOOLBUS_URL": server.url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": server.token(name),
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    started = Program(process)
    try:
        assert await started.next() == "ready"
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *json.loads(sys.argv[2])))
