"""The turn of an agent over 200 tools elsewhere: 10 toolkits of 20 tools, or 200 toolkits of one.

Measured is entering and leaving a turn in a room that has read the definitions before.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from bench.role import Facts, Order, keep_calling, run_role, serve_orders
from bench.toolbus_leg import ROOM, route, set_up_tracing
from toolbus import FunctionTool, RemoteToolkit, RequiredToolkit, RoomClient, Turn

TOOLS = 200
TOOLS_EACH = {"ten": 20, "each": 1}
"""By the name in an order: how many tools each toolkit has."""


async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


def names(of: str) -> list[str]:
    """Return the names of the toolkits that have all tools together."""
    return [f"{of}{number}" for number in range(TOOLS // TOOLS_EACH[of])]


async def host(facts: Facts) -> None:
    """Host all toolkits."""
    set_up_tracing("host", facts)
    async with AsyncExitStack() as stack:
        client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"])
        room = await stack.enter_async_context(client)
        for of, count in TOOLS_EACH.items():
            for name in names(of):
                tools = [FunctionTool(add, name=f"add{number}") for number in range(count)]
                toolkit = RemoteToolkit(name, tools)
                await toolkit.start(room)
                stack.push_async_callback(toolkit.stop)
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    """Make turns over the toolkits that an order names."""
    set_up_tracing("caller", facts)
    async with RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["caller"]) as room:
        orders = {of: measured_turns(room, of) for of in TOOLS_EACH}

        async def turn(of: str, seconds: float, in_flight: int) -> Facts:
            return await orders[of](seconds=seconds, in_flight=in_flight)

        await serve_orders({"call": turn}, ready=True)


def measured_turns(room: RoomClient, of: str) -> Order:
    """Make the order that puts turns together for a time, each over all tools."""
    required = [RequiredToolkit(name) for name in names(of)]

    async def put_together(*_: int) -> dict[str, Any]:
        async with Turn(room, required=required) as turn:
            return {"tools": len(turn.tools)}

    async def order(seconds: float, in_flight: int) -> Facts:
        found = await put_together()
        if found != {"tools": TOOLS}:
            raise AssertionError(f"the turn has {found}, not {TOOLS}")
        return await keep_calling(put_together, seconds, in_flight)

    return order


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
