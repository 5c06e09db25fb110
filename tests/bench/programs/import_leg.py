"""Fresh interpreters: how long the import of toolbus takes, and that of its libraries alone."""

from __future__ import annotations

import asyncio
import statistics
import sys

from bench.role import Facts, run_role, serve_orders

STATEMENTS = {
    "toolbus": "from toolbus import RoomClient, Toolkit, Turn, tool",
    "libraries": "import asyncio, msgpack, msgspec, websockets.asyncio.client\n"
    "from pydantic import BaseModel\n"
    "class First(BaseModel):\n    value: int",
}
"""The second includes one model: pydantic loads most of itself with the first class."""
_TIMED = """
import sys, time
began = time.perf_counter()
exec(sys.argv[1])
print(time.perf_counter() - began)
"""


async def caller(facts: Facts) -> None:
    """Start interpreters."""
    await serve_orders({"call": call}, ready=True)


async def call(what: str, count: int) -> Facts:
    """Import in fresh interpreters, one after another."""
    took_s = [await _import_s(STATEMENTS[what]) for _ in range(count)]
    return {"amount": count, "took_s": sum(took_s), "p50_us": statistics.median(took_s) * 1e6}


async def _import_s(statement: str) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _TIMED, statement, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise AssertionError(f"the import failed with status {process.returncode}")
    return float(output)


if __name__ == "__main__":
    run_role({"caller": caller})
