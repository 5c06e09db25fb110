"""One process: a function, and the same function as a tool.

The tool is called as it is, and inside three middlewares with records in memory.
"""

from __future__ import annotations

from typing import Any

from bench.role import Call, Facts, Order, measured_calls, run_role, serve_orders
from toolbus import JsonChunk, Middleware, Records, ToolContext, Toolkit
from toolbus.middlewares import Metrics, RateLimit, Retry
from toolbus.tools.tool_run import LocalRun

ENDLESS = 1_000_000_000


async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


def called(toolkit: Toolkit) -> Call:
    """Make the call of `add` as a tool, with validation, as a runner makes it."""

    async def call(a: int, b: int) -> dict[str, Any]:
        chunk = await toolkit.execute(ToolContext(run=LocalRun()), "add", {"a": a, "b": b})
        assert isinstance(chunk, JsonChunk)
        value: dict[str, Any] = chunk.json
        return value

    return call


async def caller(facts: Facts) -> None:
    """Call by each way that an order names."""
    three: list[Middleware] = [Metrics(), RateLimit(ENDLESS, per_s=1), Retry()]
    wrapped = Toolkit("demo", [add], middlewares=three, records=Records.memory())
    ways: dict[str, Order] = {
        "function": measured_calls(add),
        "tool": measured_calls(called(Toolkit("demo", [add]))),
        "wrapped": measured_calls(called(wrapped)),
    }

    async def call(way: str, seconds: float, in_flight: int) -> Facts:
        return await ways[way](seconds=seconds, in_flight=in_flight)

    await serve_orders({"call": call}, ready=True)


if __name__ == "__main__":
    run_role({"caller": caller})
