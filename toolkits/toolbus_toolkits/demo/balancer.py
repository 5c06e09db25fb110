"""A balancer for the demo: forwards connections to the server that has the fewest.

It listens on one port per participant, and so records which server each participant is connected
to. When a server is lost its connections are closed, and reconnecting participants get another
server. Only for the demo: no TLS, no health checks, no draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

__all__ = ["Balancer"]

_READ_BYTES = 64 * 1024


class Balancer:
    """A TCP proxy between participants and servers, within this process.

    Args:
        servers: The servers' addresses, by their names.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = dict(servers)
        self._counts = dict.fromkeys(servers, 0)
        self._listeners: list[asyncio.Server] = []
        self._forwarding: set[asyncio.Task[None]] = set()
        self._connected: dict[str, asyncio.Event] = {}
        self.at: dict[str, str] = {}
        """The current or last server of each participant."""

    async def listen_for(self, name: str) -> str:
        """Open a port for one participant and return its address."""
        self._connected[name] = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._forwarding.add(task)
            try:
                await self._accept(name, reader, writer)
            finally:
                writer.close()
                self._forwarding.discard(task)

        listener = await asyncio.start_server(take, "127.0.0.1", 0)
        self._listeners.append(listener)
        return f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

    async def wait_connected(self, name: str) -> None:
        """Wait until a participant has connected for the first time."""
        await self._connected[name].wait()

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for listener in self._listeners:
            listener.close()
        left = set(self._forwarding)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _accept(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for server in sorted(self._servers, key=self._counts.__getitem__):
            address = urlsplit(self._servers[server])
            self._counts[server] += 1  # before the await, so that others count it
            try:
                back, forth = await asyncio.open_connection(address.hostname, address.port)
            except OSError:
                continue
            else:
                self.at[name] = server
                self._connected[name].set()
                await _relay(reader, writer, back, forth)
                return
            finally:
                self._counts[server] -= 1


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    back: asyncio.StreamReader,
    forth: asyncio.StreamWriter,
) -> None:
    """Forward data in both directions, until one side has ended."""
    directions = [
        asyncio.ensure_future(_forward(*way)) for way in ((reader, forth), (back, writer))
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        forth.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
