"""An MCP server that shows its environment wherever it can, run as a program.

`--crash` ends it at once, and `--mute` never answers, both after they have written to stderr.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import BlobResourceContents, EmbeddedResource, ImageContent, TextContent
from pydantic import BaseModel

TOKEN = os.environ.get("TOKEN", "none")
SHOWN = "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))
DATA = base64.b64encode(b"\xff\x00" + SHOWN.encode()).decode()
BLOB = BlobResourceContents(uri="file:///env", blob=DATA, mime_type="a/b")
CONTENT: dict[str, list[Any]] = {
    "text": [TextContent(text=SHOWN)],
    "image": [ImageContent(data=DATA, mime_type="image/png")],
    "several": [TextContent(text=SHOWN), EmbeddedResource(resource=BLOB)],
}

server = MCPServer("leaky", instructions=f"Show {TOKEN}.")


class Answer(BaseModel):
    """An answer of the user."""

    text: str


@server.tool(structured_output=False, description=f"Shows {TOKEN}.")
def content(kind: str) -> list[Any]:
    return CONTENT[kind]


@server.tool()
def environment() -> dict[str, str]:
    """Return the variables, also as a name."""
    return {**os.environ, TOKEN: "1"}


@server.tool()
async def steps(context: Context) -> str:
    """Report the variables, and ask the user about them."""
    await context.report_progress(1, 2, SHOWN)
    return (await context.elicit(SHOWN, Answer)).action


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError(SHOWN)


@server.tool()
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def crash() -> str:
    """End the server."""
    sys.stderr.write(f"{SHOWN}\n{'x' * 485}{TOKEN}\n")
    sys.stderr.flush()
    os._exit(3)


server.add_tool(fail, name=TOKEN)

if __name__ == "__main__":
    sys.stderr.write(f"{SHOWN}\n")
    sys.stderr.flush()
    if "--crash" in sys.argv:
        sys.exit(3)
    if "--mute" in sys.argv:
        asyncio.run(asyncio.Event().wait())
    sys.stdout.write(f"{'x' * 185}{TOKEN}\n{SHOWN}\n")  # where messages belong
    sys.stdout.flush()
    server.run()
