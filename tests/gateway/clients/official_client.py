"""The official Python client: its argument is the mode of negotiation."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.clients.steps import run


async def main(mode: str) -> None:
    """Use the toolkit, and print what came."""
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(os.environ["MCP_URL"], http_client=http), mode=mode
        ) as client,
    ):

        async def names() -> list[str]:
            return [tool.name for tool in (await client.list_tools()).tools]

        async def call(name: str, arguments: dict[str, Any], on_progress: Any = None) -> Any:
            return await client.call_tool(name, arguments, progress_callback=on_progress)

        if mode == "legacy":
            await run(names, call, None)
            return
        async with client.listen(tools_list_changed=True) as changes:

            async def changed() -> list[str]:
                await anext(changes)
                return await names()

            await run(names, call, changed)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
