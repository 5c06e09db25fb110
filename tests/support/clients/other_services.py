"""Services at the URL of a server that are not toolbus servers: each sends one fixed answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["NOT_FOUND", "other_service"]

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def other_service(answer: bytes) -> AsyncIterator[str]:
    """Answer each request with these bytes and close; yield the URL."""

    closed: list[asyncio.Future[None]] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()
        closed.append(asyncio.ensure_future(writer.wait_closed()))

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*closed, return_exceptions=True)
