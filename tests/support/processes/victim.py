"""A caller and its host in a process of their own: how long their calls wait while others attack.

Run as a program it calls a tool, one call after another, until its input ends, then prints how long
the calls took. The tool is that of its own host, or the `say` of another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

from support.processes.launch import clean_environment
from toolbus import RoomClient, Toolkit, tool

_PAUSE_S = 0.002


@dataclass
class Waits:
    """How long a victim's calls took, in ms; set when it has ended."""

    calls: int = 0
    p99: float = 0.0
    longest: float = 0.0


@asynccontextmanager
async def victim(url: str, token: str, toolkit: str = "victim") -> AsyncIterator[Waits]:
    """Run a victim around the block; the waits are known after it.

    Args:
        url: The server.
        token: The victim's token.
        toolkit: Which `say` it calls; by default it hosts that itself.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.processes.victim"),
        env={
            **clean_environment(),
            "VICTIM": f"{url} {token} {toolkit}",
            "PYTHONPATH": ":".join(sys.path),
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    waits = Waits()
    try:
        async with asyncio.timeout(60):
            await process.stdout.readline()  # it has made a call
        yield waits
        process.stdin.write_eof()
        async with asyncio.timeout(60):
            vars(waits).update(json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@tool
async def say(text: str) -> str:
    """Return the text."""
    return text


async def _call_until_input_ends(url: str, token: str, toolkit: str) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    waits = []
    async with RoomClient(url, room="lab", token=token) as room:
        own = room.host(Toolkit("victim", [say])) if toolkit == "victim" else nullcontext()
        async with own:
            await room.call(f"{toolkit}.say", text="ready")
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while not ended.done():
                began = perf_counter()
                await room.call(f"{toolkit}.say", text="x")
                waits.append((perf_counter() - began) * 1000)
                await asyncio.sleep(_PAUSE_S)
    waits.sort()
    result = {"calls": len(waits), "p99": waits[len(waits) * 99 // 100], "longest": waits[-1]}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(_call_until_input_ends(*os.environ["VICTIM"].split(" ")))
