"""Turns of an agent are put together, one after another: 200 tools, of 10 toolkits or 200.

Every toolkit is hosted by one participant. The first turn fetches what the later ones know.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from bench.role import Facts, measured_calls, run_role, serve_orders
from toolbus import ApiScope, FunctionTool, RequiredToolkit, RoomClient, Toolkit, Turn
from toolbus_server.testing import running_server

ROOM = "bench"
TOOLS = 200
COUNTS = (10, 200)


async def route(facts: Facts) -> None:
    """Run the server."""
    async with running_server() as server:
        scopes = {"host": ApiScope.host_default(), "caller": ApiScope.agent_default()}
        tokens = {name: server.token(name, room=ROOM, api=api) for name, api in scopes.items()}
        await serve_orders({}, url=server.url, tokens=tokens)


async def host(facts: Facts) -> None:
    """Host 10 toolkits of 20 tools, and 200 of one."""
    async with (
        RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"]) as room,
        AsyncExitStack() as stack,
    ):
        for count in COUNTS:
            for name in names(count):
                tools = [FunctionTool(add, name=f"add{each}") for each in range(TOOLS // count)]
                await stack.enter_async_context(room.host(Toolkit(name, tools)))
        await serve_orders({}, ready=True)


async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


def names(count: int) -> list[str]:
    """Return the names of toolkits that have 200 tools together."""
    return [f"of{count}-{each}" for each in range(count)]


async def caller(facts: Facts) -> None:
    """Put turns together."""
    async with RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["caller"]) as room:

        async def call(toolkits: int, seconds: float, in_flight: int) -> Facts:
            required = [RequiredToolkit(name) for name in names(toolkits)]

            async def turn(a: int, b: int) -> dict[str, Any]:
                async with Turn(room, required=required) as turn:
                    assert len(turn.tools) == TOOLS
                return {"sum": a + b}

            return await measured_calls(turn)(seconds=seconds, in_flight=in_flight)

        await serve_orders({"call": call}, ready=True)


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
