"""A TCP balancer: one address, and each new connection goes to the server that is chosen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Balancer:
    """Passes bytes between those who connect to `url` and the server that is chosen now."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        """How many were made."""
        self._target = ""
        self._pipes: set[asyncio.Task[None]] = set()

    def lead_to(self, url: str) -> None:
        """Send new connections to this server; those that are there stay where they are."""
        self._target = url

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side has ended it."""
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        self.connections += 1
        place = urlsplit(self._target)
        try:
            with suppress(OSError):
                back, forth = await asyncio.open_connection(place.hostname, place.port)
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_pass_on(reader, forth))
                        both.create_task(_pass_on(back, writer))
                finally:
                    forth.close()
        finally:
            writer.close()
            self._pipes.discard(task)

    async def stop(self) -> None:
        """Drop what is left."""
        left = list(self._pipes)
        for pipe in left:
            pipe.cancel()
        if left:
            await asyncio.wait(left)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):  # the other side is gone already
        writer.write_eof()


@asynccontextmanager
async def balancer() -> AsyncIterator[Balancer]:
    """Run one on loopback for as long as the block runs."""
    one = Balancer()
    listening = await asyncio.start_server(one.take, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    one.url = f"ws://127.0.0.1:{port}"
    try:
        yield one
    finally:
        listening.close()
        await one.stop()
