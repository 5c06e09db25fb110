"""A server on our connections with nothing on top: a raw client at one end, a receiver at the
other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.protocol import Event
from websockets.typing import Subprotocol

from support.clients.raw_client import RawClient, raw_connection
from toolbus.transport import websocket as transport
from toolbus.transport.websocket import ServerTransport
from toolbus.wire import SUBPROTOCOL

KIB = 1024
PROTOCOL = [("Sec-WebSocket-Protocol", SUBPROTOCOL)]


@dataclass
class PlainTicket:
    """A ticket."""

    written: bool = False
    ended: bool = False


class RecordingReceiver:
    """A receiver that keeps each message."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.closes = 0
        self.closed = asyncio.Event()

    def on_message(self, data: bytes) -> None:
        self.messages.put_nowait(data)

    def on_close(self) -> None:
        self.closes += 1
        self.closed.set()

    async def next(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.messages.get()

    async def gone(self) -> None:
        async with asyncio.timeout(60):
            await self.closed.wait()


class RecordingTransport(ServerTransport):
    """A connection that records every event that websockets passes to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.events: list[Event] = []

    def process_event(self, event: Event) -> None:
        self.events.append(event)
        super().process_event(event)


class TransportServer:
    """A server, and its end of each connection."""

    def __init__(
        self, url: str, arrived: asyncio.Queue[tuple[RecordingTransport, RecordingReceiver]]
    ) -> None:
        self.url = url
        self._arrived = arrived

    @asynccontextmanager
    async def raw_pair(
        self,
    ) -> AsyncIterator[tuple[RawClient, RecordingTransport, RecordingReceiver]]:
        """A raw client, and the server's connection and receiver."""
        async with raw_connection(self.url) as client:
            assert (await client.upgrade("/", PROTOCOL)).status == 101
            connection, reader = await self._arrived.get()
            yield client, connection, reader


@asynccontextmanager
async def transport_server(
    *, deaf: bool = False, ping_s: float | None = None
) -> AsyncIterator[TransportServer]:
    arrived: asyncio.Queue[tuple[RecordingTransport, RecordingReceiver]] = asyncio.Queue()

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, RecordingTransport)
        reader = RecordingReceiver()
        connection.receiver = None if deaf else reader
        arrived.put_nowait((connection, reader))
        await connection.wait_closed()

    async with serve(
        handle,
        "127.0.0.1",
        0,
        create_connection=RecordingTransport,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        ping_interval=ping_s,
        ping_timeout=ping_s,
        close_timeout=0.2,
        write_limit=transport.WRITE_LIMIT_BYTES,
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield TransportServer(f"ws://127.0.0.1:{port}", arrived)


def fill(connection: ServerTransport, size: int = 64 * KIB) -> int:
    """Send until the transport is full; return the number of messages."""
    count = 0
    while not connection.paused:
        connection.send_message(bytes(size))
        count += 1
    return count
