"""The command line of the inspector: its argument is the era of the protocol, its command in JSON
the variable `MCP_INSPECTOR`. It shows no progress, and the end of its process cancels a call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from typing import Any

from mcp_types import CallToolResult

from gateway.clients.steps import run


async def inspect(era: str, *options: str) -> Any:
    """Run the command line once, and return its result."""
    process = await asyncio.create_subprocess_exec(
        *json.loads(os.environ["MCP_INSPECTOR"]),
        *("--cli", os.environ["MCP_URL"], "--transport", "http", "--protocol-era", era),
        *("--header", f"Authorization: Bearer {os.environ['MCP_TOKEN']}"),
        *("--quiet", "--format", "json", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return json.loads(output)["result"]


async def names(era: str) -> list[str]:
    """List the tools."""
    return [tool["name"] for tool in (await inspect(era, "--method", "tools/list"))["tools"]]


async def call(era: str, name: str, arguments: dict[str, Any], _: Any = None) -> CallToolResult:
    """Call a tool."""
    options = ("--tool-name", name, "--tool-args-json", json.dumps(arguments))
    return CallToolResult.model_validate(await inspect(era, "--method", "tools/call", *options))


if __name__ == "__main__":
    asyncio.run(run(partial(names, sys.argv[1]), partial(call, sys.argv[1]), None))
