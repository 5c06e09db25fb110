"""Sockets without a protocol: a silent listener, and both sides of a connection to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolbus_server.testing import FaultProxy

KIB = 1024


class Peer:
    """One side's socket. It records what it reads and how the connection ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.readexactly(count)

    async def end(self) -> str:
        """Wait for the end of the connection, and return how it ended."""
        async with asyncio.timeout(60):
            try:
                rest = await self.reader.read()
            except ConnectionResetError:
                return "reset"
        return f"end after {len(rest)} bytes"

    async def receives_nothing(self) -> bool:
        """Return whether nothing arrives for a while, not even an end of file."""
        try:
            async with asyncio.timeout(0.2):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    def push_until_full(self) -> int:
        """Write as much as the kernel accepts without waiting; return the number of bytes."""
        sock = self.writer.get_extra_info("socket")
        taken = 0
        raw = socket.socket(fileno=socket.dup(sock.fileno()))
        with raw:
            raw.setblocking(False)
            while True:
                try:
                    taken += raw.send(bytes(64 * KIB))
                except BlockingIOError:
                    return taken


class Listener:
    """Stands in for a server: accepts connections and sends nothing."""

    def __init__(self) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.url = ""

    async def next(self) -> Peer:
        async with asyncio.timeout(60):
            return await self.peers.get()


@asynccontextmanager
async def listener() -> AsyncIterator[Listener]:
    there = Listener()
    taken: list[Peer] = []

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(Peer(reader, writer))
        there.peers.put_nowait(taken[-1])

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    there.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield there
    finally:
        server.close()
        for peer in taken:
            peer.writer.transport.abort()


def port_of(proxy: FaultProxy) -> int:
    return int(proxy.url.rpartition(":")[2])
