"""MCP over streamable HTTP as FastMCP sets it up: a server and a client, no router between them.

Runs in a virtual environment of its own, without toolbus and websockets. One hop, where the other
legs have two.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from importlib.metadata import version
from typing import Any

from bench import mcp_load
from bench.role import Facts, run_role, serve_calls, serve_orders


def _module(name: str) -> Any:
    # By name, because type checkers look at our environment and FastMCP is in another.
    return importlib.import_module(name)


async def host(_facts: Facts) -> None:
    toolkit = _module("fastmcp").FastMCP("demo")
    toolkit.tool(_add, name="add")
    uvicorn = _module("uvicorn")
    settings = uvicorn.Config(toolkit.http_app(), lifespan="on", log_level="warning")
    server = uvicorn.Server(settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
            if serving.done():
                raise RuntimeError("uvicorn ended before it was ready")
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        await serve_orders(url=url, door=url, tool="add")
        server.should_exit = True
        await serving


async def _add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


async def caller(facts: Facts) -> None:
    async def call(a: int, b: int) -> dict[str, Any]:
        answer = await client.call_tool("add", {"a": a, "b": b})
        result: dict[str, Any] = answer.data
        return result

    async with _module("fastmcp").Client(facts["url"]) as client:
        await serve_calls(call)


async def versions(_facts: Facts) -> None:
    await serve_orders(fastmcp=version("fastmcp"))


if __name__ == "__main__":
    run_role({"host": host, "caller": caller, "loader": mcp_load.caller, "versions": versions})
