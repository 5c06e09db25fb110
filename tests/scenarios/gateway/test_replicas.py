"""Two replicas of the gateway under load: one is killed, and so is the room server.

What a client is told of each call is compared with a file of what really ran.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx2
import pytest

from support.processes.launch import ChildProcess
from support.processes.ledger_load import Load, keys_from, start_ledger
from support.processes.server_process import ServerProcess, server_process
from support.redis.server import free_port
from support.rooms.events import until_hosts
from toolbus import RoomClient, RoomException
from toolbus.errors import ConnectionLost, Unavailable

OF_REVISION: dict[str, dict[str, Any]] = {
    "2026-07-28": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    },
    "2025-11-25": {},
}
"""The `_meta` of a request."""


class GatewayError(RoomException):
    """What a client was told."""

    code = "told"

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(str(facts), executed=facts["executed"])
        self.facts = facts


class Client:
    """Calls the tools of a room as `RoomClient` does, through one gateway after the other."""

    def __init__(self, http: httpx2.AsyncClient, urls: list[str], revision: str) -> None:
        self._http = http
        self._urls = itertools.cycle(urls)
        self._revision = revision

    async def invoke(self, name: str, arguments: dict[str, Any], **_: object) -> Any:
        tool = name.replace(".", "__")
        params = {"name": tool, "arguments": arguments, "_meta": OF_REVISION[self._revision]}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self._revision,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        url = f"{next(self._urls)}/rooms/lab/mcp"
        try:
            response = await self._http.post(url, json=request, headers=headers)
        except httpx2.TransportError as error:
            raise ConnectionLost(str(error), executed="maybe") from error
        if response.status_code == 503:  # before anything ran
            raise Unavailable(response.text, executed="no")
        text = response.text
        if response.headers["content-type"] == "text/event-stream":
            lines = [line for line in text.splitlines() if line.startswith("data: {")]
            text = lines[-1].removeprefix("data: ") if lines else ""
        if not text:
            raise ConnectionLost("the stream ended", executed="maybe")
        result = json.loads(text)["result"]
        if result.get("isError"):
            raise GatewayError(result["_meta"]["toolbus/error"])
        return _Value(result["structuredContent"]["result"])


class _Value(NamedTuple):
    value: Any


class Replicas(NamedTuple):
    server: ServerProcess
    gateways: list[ChildProcess]
    loads: list[Load]

    async def go_on(self) -> None:
        for load in self.loads:
            await load.succeeds()


@asynccontextmanager
async def replicas(folder: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_process(folder))
        host = await start_ledger(server.url, server.token("host"), folder / "witness")
        stack.push_async_callback(host.kill)
        async with server.room("watcher") as watcher:
            await until_hosts(watcher, "ledger", 1)
        urls, gateways = [], []
        for _ in range(2):
            port = free_port()
            command = [sys.executable, "-m", "toolbus", "gateway", "--port", str(port)]
            gateways.append(await ChildProcess.start([*command, "--url", server.url], {}))
            stack.push_async_callback(gateways[-1].kill)
            urls.append(f"http://127.0.0.1:{port}")
        headers = {"Authorization": f"Bearer {server.token('alice')}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        loads = []
        for number, revision in enumerate(OF_REVISION):
            client = cast(RoomClient, Client(http, urls, revision))
            loads.append(Load(client, "count", keys_from(number * 1_000_000)))
            await stack.enter_async_context(loads[-1].running(4))
        both = Replicas(server, gateways, loads)
        await both.go_on()
        yield both
        await both.go_on()


@pytest.mark.parametrize("killed", ["gateway", "room server"])
async def test_what_clients_are_told_is_right_when_a_process_is_killed(
    tmp_path: Path, killed: str
) -> None:
    async with replicas(tmp_path) as both:
        if killed == "gateway":
            await both.gateways[0].kill()
        else:
            await both.server.end(signal.SIGKILL)
            await both.server.start()
    for load in both.loads:
        load.check(tmp_path / "witness")
        codes = {(error.code, error.executed) for error in load.failed.values()}
        assert ("connection_lost", "maybe") in codes or killed == "room server", codes
