"""A relay whose connections break on the client's side only.

The server still believes that the connection is alive. It notices the loss only when a connection
with the same instance replaces it, or after many seconds without data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttableRelay:
    """A relay of TCP connections on loopback.

    Args:
        url: The address that it connects to.
    """

    def __init__(self, url: str) -> None:
        self._goal = urlsplit(url)
        self._near: set[asyncio.StreamWriter] = set()
        self._far: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def cut(self) -> None:
        """Break the clients' connections; the server does not notice."""
        for writer in self._near:
            writer.transport.abort()
        self._near.clear()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side ends it."""
        upstream_reader, upstream = await asyncio.open_connection(
            self._goal.hostname, self._goal.port
        )
        self._near.add(writer)
        self._far.add(upstream)
        for source, sink in ((reader, upstream), (upstream_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return

    async def end(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in (*self._near, *self._far):
            writer.transport.abort()


@asynccontextmanager
async def cuttable_relay(url: str) -> AsyncIterator[CuttableRelay]:
    """Listen on loopback and relay to a server until the block ends."""
    relay = CuttableRelay(url)
    listener = await asyncio.start_server(relay.join, "127.0.0.1", 0)
    relay.url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        listener.close()
        await relay.end()
