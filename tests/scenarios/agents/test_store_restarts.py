"""An agent with a store is killed in the middle of 50 answers, or ends: each conversation goes on.

The scripted model counts the replies in a conversation, so that a lost one begins again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from support.processes.launch import clean_environment
from toolbus import JsonChunk, RoomClient, RoomException
from toolbus_server.testing import TestServer, running_server

COUNT = 50
REPLIES = """
{"text": "one"}
{"uses": [{"name": "kit.wait"}]}
{"text": "two"}
{"text": "three"}
"""
AGENT = """
import asyncio, json, signal, sys
from toolbus import Agent, RoomClient, SqliteStateStore, Toolkit, open_model, tool

@tool
async def wait() -> None:
    await asyncio.Event().wait()

class Told(SqliteStateStore):
    async def save(self, key: str, text: str) -> None:
        await super().save(key, text)
        print(json.loads(key)[2], len(json.loads(text)["conversation"]), flush=True)

async def main(url: str, token: str) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    kit = Toolkit("kit", [wait])
    async with (
        RoomClient(url, room="lab", token=token) as room,
        Agent(room, open_model("scripted:replies.jsonl"), name="helper", always=[kit],
              store=Told("states.db")),
    ):
        print("ready", flush=True)
        await end.wait()

asyncio.run(main(*sys.argv[1:]))
"""


class RunningAgent:
    """An agent in a process of its own, which prints how many messages it has stored of what."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def reads(self, *lines: str) -> None:
        """Wait until it has printed lines, in any order."""
        assert self.process.stdout is not None
        left = set(lines)
        async with asyncio.timeout(60):
            while left:
                line = await self.process.stdout.readline()
                assert line, left
                left.discard(line.decode().strip())

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()


@asynccontextmanager
async def agent(server: TestServer, folder: Path) -> AsyncIterator[RunningAgent]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT, server.url, server.token("helper")),
        cwd=folder,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    running = RunningAgent(process)
    try:
        await running.reads("ready")
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ask_all(room: RoomClient) -> list[str | None]:
    """Ask in all conversations at once; return the answers, None for one that broke off."""

    async def ask(number: int) -> str | None:
        question = {"text": "next", "conversation": f"c{number}"}
        with suppress(RoomException):
            async with room.stream("helper.ask", question, participant="helper") as events:
                async for event in events:
                    match event:
                        case JsonChunk({"type": "end", "text": str(text)}):
                            return text
        return None

    return await asyncio.gather(*map(ask, range(COUNT)))


async def test_conversations_go_on_after_the_agent_was_killed_and_after_it_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "replies.jsonl").write_text(REPLIES)
    async with running_server() as server, server.room("ann") as ann:
        async with agent(server, tmp_path) as helper:
            assert await ask_all(ann) == ["one"] * COUNT
            asking = asyncio.create_task(ask_all(ann))
            # Question and answer, then a question, a reply, and the result of a call that runs.
            await helper.reads(*(f"c{number} 5" for number in range(COUNT)))
            assert await helper.end(signal.SIGKILL) == -signal.SIGKILL
            assert await asking == [None] * COUNT
        async with agent(server, tmp_path) as helper:
            assert await ask_all(ann) == ["two"] * COUNT
            assert await helper.end(signal.SIGTERM) == 0
        async with agent(server, tmp_path):
            assert await ask_all(ann) == ["three"] * COUNT
            about = await ann.invoke("helper.about", {"conversation": "c7"}, participant="helper")
            assert about.value["conversation"]["messages"] == 9
