"""A TCP balancer: each new connection to its address goes to one of the chosen servers, in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Balancer:
    """Relays bytes between clients of `url` and the servers that are chosen now."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        """How many were made."""
        self._targets: deque[str] = deque()
        self._pipes: set[asyncio.Task[None]] = set()

    def lead_to(self, *urls: str) -> None:
        """Send new connections to these servers in turn; existing connections stay where they are.

        A server that does not listen is skipped.
        """
        self._targets = deque(urls)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(len(self._targets)):
            place = urlsplit(self._targets[0])
            self._targets.rotate(-1)
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection(place.hostname, place.port)
        raise ConnectionRefusedError("no server listens")

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side has ended it."""
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        self.connections += 1
        try:
            with suppress(OSError):
                back, forth = await self._connect()
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
        """Drop all connections."""
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
    with suppress(OSError, RuntimeError):  # the other side has already ended
        writer.write_eof()


@asynccontextmanager
async def balancer() -> AsyncIterator[Balancer]:
    """Run one on loopback until the block ends."""
    one = Balancer()
    listening = await asyncio.start_server(one.take, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    one.url = f"ws://127.0.0.1:{port}"
    try:
        yield one
    finally:
        listening.close()
        await one.stop()
