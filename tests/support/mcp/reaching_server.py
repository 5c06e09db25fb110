"""An MCP server whose tools reach for files and addresses, as far as its sandbox lets them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("reaching")


@server.tool(structured_output=False)
def read(path: str) -> str:
    """Read a file."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__


@server.tool(structured_output=False)
def write(path: str, text: str) -> str:
    """Write a file."""
    try:
        Path(path).write_text(text)
    except OSError as error:
        return type(error).__name__
    return "written"


@server.tool(structured_output=False)
def connect(port: int) -> str:
    """Connect to a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


@server.tool(structured_output=False)
def folder() -> str:
    """Return the working directory."""
    return os.getcwd()


if __name__ == "__main__":
    server.run()
