"""The handshake of a server: its answers to programs and browsers, and who may join."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.clients.forged_tokens import ABSENT, CLAIMS, KEY
from support.clients.raw_client import CLOSE, Head, RawClient, browser_bearer, raw_connection
from support.rooms.unharmed_server import unharmed_server
from toolbus import Key, KeyRing
from toolbus.wire import SUBPROTOCOL
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are valid now, with these changes."""
    now = time.time()
    changed = {**CLAIMS, "iat": now, "exp": now + 3600, **changes}
    return {name: value for name, value in changed.items() if value is not ABSENT}


@asynccontextmanager
async def handshake_server(
    key: Key = KEY, *, query_token: bool = False
) -> AsyncIterator[TestServer]:
    """A server with participants in room "lab"; at the end room "den" must be empty."""
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, allow_query_token=query_token)
    async with unharmed_server(settings=settings, key=key) as server:
        yield server
        assert "den" not in server.server.hub.rooms


async def ask(server: TestServer, path: str, headers: list[tuple[str, str]]) -> Head:
    """Request a websocket and return the response."""
    async with raw_connection(server.url) as client:
        return await client.upgrade(path, headers)


async def code_for_browser(server: TestServer, path: str, token: str) -> int:
    """Request a websocket as a browser does, and return the code of the first close frame."""
    async with raw_connection(server.url) as client:
        head = await client.upgrade(path, browser_bearer(token))
        assert head.status == 101
        assert head.headers["sec-websocket-protocol"] == SUBPROTOCOL
        raw = await client.read_raw()
        assert raw.opcode == CLOSE
        return int.from_bytes(raw.payload[:2], "big")


async def rest_of(client: RawClient) -> bytes:
    """Read until the server ends the connection in any way."""
    try:
        async with asyncio.timeout(60):
            return await client.reader.read()
    except ConnectionError:
        return b""
