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
    UnknownFrame,
    decode_from_client,
    encode,
    pack_body,
)

T = TypeVar("T")


class ScriptedConnection:
    """One client's connection, which was welcomed."""

    def __init__(self, websocket: ServerConnection) -> None:
        self.websocket = websocket
        assert websocket.request is not None
        query = parse_qs(urlsplit(websocket.request.path).query)
        self.instance = query["instance"][0]
        self.epoch = int(query["epoch"][0])
        self.asks_elsewhere = query.get("elsewhere") == ["1"]

    async def send(self, frame: Frame) -> None:
        await self.websocket.send(encode(frame))

    async def next_of(self, kind: type[T]) -> T:
        """Read on until a frame of this kind."""
        async with asyncio.timeout(60):
            while True:
                data = await self.websocket.recv()
                assert isinstance(data, bytes)
                frame = decode_from_client(data)
                assert not isinstance(frame, UnknownFrame)
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
        self.connections: asyncio.Queue[ScriptedConnection] = asyncio.Queue()
        self.url = ""
        self.version = 1
        self.limits: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        """Facts of the welcome that differ."""
        self.more: list[Any] = []
        """Fields behind those of a welcome."""

    async def next_connection(self) -> ScriptedConnection:
        """Wait for the next connection."""
        async with asyncio.timeout(60):
            return await self.connections.get()

    async def handle(self, connection: ServerConnection) -> None:
        client = ScriptedConnection(connection)
        facts: dict[str, Any] = {"name": "alice", "issuer": "test", "role": "user"}
        facts |= {"limits": self.limits, "api": self.api, "heartbeat_ms": 0} | self.facts
        welcome = [1, self.version, "p1", "lab", "s1", facts]
        await connection.send(pack_body([*welcome, *self.more]))
        self.connections.put_nowait(client)
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
