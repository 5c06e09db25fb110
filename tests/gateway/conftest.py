"""A room server with a toolkit, a gateway before it, and clients of the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from toolbus import ApiScope
from toolbus_gateway.service import GatewayService, GatewaySettings
from toolbus_server.testing import TestServer, running_server

REVISIONS = ("2026-07-28", "legacy")
"""The modes of the official client: each request by itself, or a session with a handshake."""


@dataclass(frozen=True, slots=True)
class Door:
    """A gateway that runs, and the room server behind it."""

    server: TestServer
    service: GatewayService

    def address(self, toolkit: str | None = None, room: str = "lab") -> str:
        """Return the address of a room, or of one toolkit in it."""
        path = f"{self.service.url}/rooms/{room}/mcp"
        return path if toolkit is None else f"{path}/{toolkit}"

    @asynccontextmanager
    async def client(
        self,
        mode: str = "2026-07-28",
        *,
        name: str = "alice",
        toolkit: str | None = None,
        api: ApiScope | None = None,
        **options: Any,
    ) -> AsyncIterator[Client]:
        """Connect the official client, made with the options, with a token of its own."""
        headers = {"Authorization": f"Bearer {self.server.token(name, api=api)}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(self.address(toolkit), http_client=http)
            async with Client(transport, mode=mode, **options) as client:
                yield client


OpenDoor: TypeAlias = Callable[..., AbstractAsyncContextManager[Door]]


@asynccontextmanager
async def running_gateway(**settings: object) -> AsyncIterator[Door]:
    """Run a room server and a gateway before it."""
    async with running_server() as server:
        chosen: dict[str, Any] = {"url": server.url, "port": 0, "drain_s": 1.0, **settings}
        service = GatewayService(GatewaySettings(**chosen))
        await service.start()
        try:
            yield Door(server, service)
        finally:
            await service.stop()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """A gateway with the default settings."""
    async with running_gateway() as opened:
        yield opened
