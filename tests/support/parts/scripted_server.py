"""A server that sends only what a test tells it to send, to test clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from toolbus import ApiScope
from toolbus.wire import (
    SUBPROTOCOL,
    Frame,
    Result,
    Unknown,
    decode_from_client,
    encode,
    pack_body,
)

T = TypeVar("T")


class Line:
    """One client's connection, which was welcomed."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        assert connection.request is not None
        query = parse_qs(urlsplit(connection.request.path).query)
        self.instance = query["instance"][0]
        self.epoch = int(query["epoch"][0])

    async def send(self, frame: Frame) -> None:
        await self.connection.send(encode(frame))

    async def next_of(self, kind: type[T]) -> T:
        """Read on until a frame of this kind."""
        async with asyncio.timeout(60):
            while True:
                data = await self.connection.recv()
                assert isinstance(data, bytes)
                frame = decode_from_client(data)
                assert not isinstance(frame, Unknown)
                if isinstance(frame, kind):
                    return frame

    async def answer(self, kind: type[Any], body: dict[str, Any]) -> Any:
        """Answer the next request of a kind with success, and return it."""
        request = await self.next_of(kind)
        await self.send(Result(request.id, pack_body(body)))
        return request


class ScriptedServer:
    """Welcomes every client, with the grants `api`, and hands the connections to the test."""

    def __init__(self, api: ApiScope) -> None:
        self.api = api.to_claims()
        self.lines: asyncio.Queue[Line] = asyncio.Queue()
        self.url = ""
        self.version = 1
        self.more: list[Any] = []
        """Fields behind those of a welcome."""

    async def next_line(self) -> Line:
        """Wait for the next connection."""
        async with asyncio.timeout(60):
            return await self.lines.get()

    async def handle(self, connection: ServerConnection) -> None:
        line = Line(connection)
        facts: dict[str, Any] = {"name": "alice", "issuer": "test", "role": "user", "limits": {}}
        facts |= {"api": self.api, "heartbeat_ms": 0}
        welcome = [1, self.version, "p1", "lab", "s1", facts]
        await connection.send(pack_body([*welcome, *self.more]))
        self.lines.put_nowait(line)
        await connection.wait_closed()


@asynccontextmanager
async def scripted_server(api: ApiScope | None = None) -> AsyncIterator[ScriptedServer]:
    """Run one on loopback until the block ends; without `api` it grants nothing."""
    server = ScriptedServer(api or ApiScope())
    async with serve(
        server.handle, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None
    ) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        server.url = f"ws://127.0.0.1:{port}"
        yield server
