"""A room server that cannot be reached: what its clients are told, and for how long they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from gateway.conftest import REVISIONS, Door
from support.rooms.events import until
from toolbus import Toolkit, tool
from toolbus_gateway import member
from toolbus_gateway.results import ERROR_KEY, UNREACHABLE
from toolbus_gateway.service import GatewayService, GatewaySettings
from toolbus_server.testing import FaultProxy, running_server

LOST = "lost the connection"


@tool
async def echo(text: str) -> str:
    return text


@asynccontextmanager
async def behind_proxy(mode: str) -> AsyncIterator[tuple[Door, FaultProxy, Client]]:
    """Run a gateway whose room server can be cut off, and a client that has listed its tools."""
    async with running_server() as server, FaultProxy(server.url) as proxy, asyncio.timeout(60):
        service = GatewayService(GatewaySettings(url=proxy.url, port=0, drain_s=0.0))
        await service.start()
        try:
            door = Door(server, service)
            async with (
                server.room("host") as host,
                host.host(Toolkit("words", [echo])),
                door.client(mode) as client,
            ):
                await client.list_tools()
                yield door, proxy, client
        finally:
            await service.stop()


async def cut(proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    await proxy.refuse()
    proxy.reset()
    await until(lambda: LOST in caplog.text)


@pytest.mark.parametrize("mode", REVISIONS)
async def test_requests_wait_for_a_server_that_is_away_for_a_limited_time(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with behind_proxy(mode) as (_, proxy, client):
        await cut(proxy, caplog)
        with monkeypatch.context() as limited:
            limited.setattr(member, "WAIT_FOR_SERVER_S", 0)
            result = await client.call_tool("words__echo", {"text": "no"})
            facts: dict[str, Any] = (result.meta or {})[ERROR_KEY]
            assert (facts["code"], facts["executed"]) == ("unavailable", "no")
            assert facts["retryable"] is True
            assert UNREACHABLE in result.model_dump_json()
            with pytest.raises(MCPError, match=UNREACHABLE):
                await client.list_tools(cache_mode="bypass")
        call = asyncio.create_task(client.call_tool("words__echo", {"text": "yes"}))
        await proxy.accept()
        assert "yes" in (await call).model_dump_json()


async def test_the_address_of_the_server_is_logged_once_and_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with behind_proxy(REVISIONS[0]) as (door, proxy, _), httpx2.AsyncClient() as http:
        await cut(proxy, caplog)
        caplog.clear()
        for _ in range(3):
            headers = {"Authorization": f"Bearer {door.server.token('new')}"}
            refused = await http.post(door.address(), headers=headers)
            assert (refused.status_code, refused.text) == (503, f"{UNREACHABLE}\n")
            assert refused.headers["retry-after"] == "1"
        assert caplog.text.count(f"cannot connect to {proxy.url}") == 1
