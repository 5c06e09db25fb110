"""A relay before an HTTP server that adds an Authorization header to each request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

__all__ = ["authorizing_relay"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@asynccontextmanager
async def authorizing_relay(url: str, token: str) -> AsyncIterator[str]:
    """Relay requests, whose bodies have a length, to a server on this machine; its address here."""
    parts = urlsplit(url)
    ends: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(parts.hostname, parts.port)
        back = asyncio.create_task(_copy(from_server, writer))
        ends.add(back)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                to_server.write(
                    head[:-2] + f"Authorization: Bearer {token}\r\n\r\n".encode() + body
                )
        to_server.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()
    await asyncio.gather(*ends)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()
    writer.close()
