"""How long a fresh interpreter takes to import the names that an agent needs.

Beside it the libraries that these names need, with one pydantic model and without the bus: the
time that no work on the bus saves.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from bench.role import Facts, run_role, serve_orders

NAMES = "from toolbus import RoomClient, Toolkit, Turn, tool"
LIBRARIES = """\
import asyncio, jsonschema_rs, msgpack, msgspec, opentelemetry.trace, pydantic
import websockets.asyncio.client
class Model(pydantic.BaseModel):
    number: int = 0
"""
STATEMENTS = {"names": NAMES, "libraries": LIBRARIES}
_PROGRAM = """\
import time
began_s = time.perf_counter()
{}
print(time.perf_counter() - began_s)
"""


async def import_s(statement: str) -> float:
    """Run a statement in a fresh interpreter; return its seconds, without the interpreter's."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _PROGRAM.format(statement)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return float(output)


async def caller(_facts: Facts) -> None:
    """Start interpreters that run the statement that an order names."""

    async def start(statement: str, times: int) -> Facts:
        began_s = time.perf_counter()
        each_s = [await import_s(STATEMENTS[statement]) for _ in range(times)]
        took_s = time.perf_counter() - began_s
        return {"amount": times, "took_s": took_s, "p50_us": statistics.median(each_s) * 1e6}

    await serve_orders({"start": start}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
