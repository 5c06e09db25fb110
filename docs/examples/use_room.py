import asyncio
import os
import sys

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client


async def main(address: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['TOOLBUS_TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(address, http_client=http)) as client:
            for tool in (await client.list_tools()).tools:
                print(tool.name)
            result = await client.call_tool("words__count", {"text": "a b a"})
            print(result.structured_content)
            wrong = await client.call_tool("words__count", {"txt": "a b a"})
            facts = (wrong.meta or {})["toolbus/error"]
            print(facts["code"], facts["executed"])


asyncio.run(main(sys.argv[1]))
