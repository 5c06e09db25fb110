import asyncio
import sys

from toolbus_toolkits.mcp import McpServer


async def main() -> None:
    async with McpServer("greeter", command=sys.executable, args=["greeter.py"]) as greeter:
        greet = greeter.tool("greet")
        print(await greet(name="Eve"))


asyncio.run(main())
