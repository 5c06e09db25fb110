"""One tool of an MCP server over stdio: called through a room, and by the MCP SDK's client alone.

The server is a program of the SDK. The host runs it as `toolbus host mcp` does; the client alone
uses the SDK's own transport.
"""

from __future__ import annotations

import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from bench.role import Call, Facts, measured_calls, run_role, serve_orders
from bench.toolbus_leg import ROOM, route, set_up_tracing
from toolbus import RoomClient
from toolbus_toolkits.mcp import McpServer

ARGUMENTS = ["-m", "bench.toolkits.mcp_leg", "--serve"]


def serve() -> None:
    """Be the MCP server."""
    server = MCPServer("demo")

    @server.tool()
    def add(a: int, b: int) -> dict[str, int]:
        """Add two numbers."""
        return {"sum": a + b}

    server.run()


async def host(facts: Facts) -> None:
    """Host the toolkit of the server."""
    set_up_tracing("host", facts)
    client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"])
    environment = {"PYTHONPATH": ":".join(sys.path)}
    async with (
        client as room,
        McpServer("demo", command=sys.executable, args=ARGUMENTS, env=environment) as server,
        room.host(server.toolkit()),
    ):
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    """Call through the room."""
    set_up_tracing("caller", facts)
    async with RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["caller"]) as room:

        async def call(a: int, b: int) -> dict[str, Any]:
            result: dict[str, Any] = await room.call("demo.add", a=a, b=b)
            return result

        await serve_orders({"call": measured_calls(call)}, ready=True)


async def alone(facts: Facts) -> None:
    """Call with the client of the SDK; its spans are as those of the others."""
    set_up_tracing("alone", facts)
    environment = {"PYTHONPATH": ":".join(sys.path)}
    program = StdioServerParameters(command=sys.executable, args=ARGUMENTS, env=environment)
    async with Client(program) as client:
        await client.list_tools()
        await serve_orders({"call": measured_calls(_calls_of(client))}, ready=True)


def _calls_of(client: Client) -> Call:
    async def call(a: int, b: int) -> dict[str, Any]:
        result = await client.call_tool("add", {"a": a, "b": b})
        found: dict[str, Any] = result.structured_content
        return found

    return call


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        run_role({"router": route, "host": host, "caller": caller, "alone": alone})
