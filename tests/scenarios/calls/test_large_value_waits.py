"""How long calls wait while their host gets 1 MB of arguments again and again.

Server, host and victim are processes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.processes.launch import clean_environment
from support.processes.server_process import QUIET, ServerProcess, server_process
from support.processes.victim import victim
from toolbus.wire import Call, CallId, RequestId, pack_body

MOST_P99_MS, LONGEST_MS = 20.0, 100.0
"""Before values were read in slices, the longest wait was 2.3 s for three calls at once."""
AT_ONCE = 3

HOST = """
import asyncio
import os
from typing import Any

from pydantic import BaseModel

from toolbus import RoomClient, Toolkit, tool
from toolbus.cli.commands.host import tune_collector

class Row(BaseModel):
    a: int

@tool
async def say(text: str) -> str:
    return text

@tool
async def dicts(rows: list[dict[str, int]]) -> int:
    return len(rows)

@tool
async def models(rows: list[Row]) -> int:
    return len(rows)

@tool
async def numbers(rows: list[int]) -> int:
    return len(rows)

@tool
async def anything(rows: Any) -> int:
    return len(rows)

async def main() -> None:
    url, token = os.environ["HOST"].split(" ")
    kit = Toolkit("work", [say, dicts, models, numbers, anything])
    async with RoomClient(url, room="lab", token=token) as room, room.host(kit):
        tune_collector()  # as `toolbus host` does
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def host(server: ServerProcess) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOST),
        env={**clean_environment(), "HOST": f"{server.url} {server.token('host')}"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


ARGUMENTS: list[tuple[str, Any, int]] = [
    ("dicts", [{"a": 10**15}] * 65_000, 24),
    ("models", [{"a": 10**15}] * 65_000, 12),
    ("numbers", [1] * 1_000_000, 40),
    ("anything", [{"a": "b" * 12}] * 60_000 + [float("nan")], 24),
    ("anything", [{}] * 1_000_000, 40),
    ("anything", [[[]]] * 500_000, 40),
]
"""The tool, its argument, and how often it is called; the last two have too many lists."""


@pytest.mark.soak
@pytest.mark.parametrize(("name", "rows", "rounds"), ARGUMENTS)
async def test_calls_do_not_wait_for_the_large_arguments_of_others(
    name: str, rows: Any, rounds: int, tmp_path: Path
) -> None:
    """The p99 of the victim's calls and the longest of them."""
    packed = pack_body({"rows": rows})
    async with server_process(tmp_path, program=("-c", QUIET)) as server, host(server):
        target: Any = server
        async with (
            raw_participant(target, token=server.token("mallory"), instance="m") as mallory,
            victim(server.url, server.token("victim"), "work") as waits,
        ):
            for number in range(0, rounds * AT_ONCE, AT_ONCE):
                ids = range(number + 1, number + 1 + AT_ONCE)
                for each in ids:
                    call_id = CallId(f"call-{each}")
                    mallory.send_frame(
                        Call(RequestId(each), call_id, "work", name, 60_000, packed, None)
                    )
                for each in ids:
                    await mallory.reply_to(each)
        sys.stdout.write(f"{name} {len(packed)} bytes: {waits}\n")
        assert waits.calls > 0
        assert waits.p99 <= MOST_P99_MS
        assert waits.longest <= LONGEST_MS
