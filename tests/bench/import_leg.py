"""How long a fresh interpreter takes to import the names that an agent needs, and to call a tool.

Beside the names the libraries that they need, with one pydantic model and without the bus: the
time that no work on the bus saves. Beside `toolbus call` a program that does nothing.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Mapping

from bench.role import Facts, run_role, serve_orders
from toolbus import FunctionTool, Toolkit
from toolbus_server.testing import running_server

NAMES = "from toolbus import RoomClient, Toolkit, Turn, tool"
LIBRARIES = """\
import asyncio, jsonschema_rs, msgpack, msgspec, opentelemetry.trace, pydantic
import websockets.asyncio.client
class Model(pydantic.BaseModel):
    number: int = 0
"""
_PROGRAM = """\
import time
began_s = time.perf_counter()
{}
print(time.perf_counter() - began_s)
"""
PROGRAMS = {
    "names": ("-c", _PROGRAM.format(NAMES)),
    "libraries": ("-c", _PROGRAM.format(LIBRARIES)),
    "call": ("-m", "toolbus", "call", "demo.add", "a=35", "b=7"),
    "nothing": ("-c", "pass"),
}
"""The arguments of an interpreter. One that prints a time measured itself, without its start."""
_MEASURED_HERE = {"call": "42", "nothing": ""}
"""What the others print."""


async def start_s(program: str, variables: Mapping[str, str]) -> float:
    """Run a program in a fresh interpreter; return the seconds that it took."""
    began_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", *PROGRAMS[program]),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    output = (await process.communicate())[0].decode().strip()
    took_s = time.perf_counter() - began_s
    if program not in _MEASURED_HERE:
        return float(output)
    if output != _MEASURED_HERE[program]:
        raise AssertionError(f"{program} prints {output!r}")
    return took_s


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def caller(_facts: Facts) -> None:
    """Start interpreters that run the program that an order names, and host what they call."""
    async with running_server() as server, server.room("host") as room:
        variables = {
            "TOOLBUS_URL": server.url,
            "TOOLBUS_ROOM": room.room,
            "TOOLBUS_TOKEN": server.token("caller"),
        }

        async def start(program: str, times: int) -> Facts:
            began_s = time.perf_counter()
            durations_s = [await start_s(program, variables) for _ in range(times)]
            took_s = time.perf_counter() - began_s
            p50_us = statistics.median(durations_s) * 1e6
            return {"amount": times, "took_s": took_s, "p50_us": p50_us}

        async with room.host(Toolkit("demo", [FunctionTool(add)])):
            await serve_orders({"start": start}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
