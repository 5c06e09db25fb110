"""The client of FastMCP: its argument is the mode of negotiation."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from typing import Any

from gateway.clients.steps import run


async def main(mode: str) -> None:
    """Use the toolkit, and print what came. This client does not listen for changes."""
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    client_module = import_module("fastmcp.client")  # which the type checker does not have
    transport = client_module.StreamableHttpTransport(os.environ["MCP_URL"], headers=headers)

    async def approve(*question: Any) -> dict[str, Any]:
        return {"approve": True}

    async with client_module.Client(transport, mode=mode, elicitation_handler=approve) as client:

        async def names() -> list[str]:
            return [tool.name for tool in await client.list_tools()]

        async def call(name: str, arguments: dict[str, Any], on_progress: Any = None) -> Any:
            return await client.call_tool_mcp(name, arguments, progress_handler=on_progress)

        await run(names, call, None, asks=mode != "legacy")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
