"""The gateway from its start to its end: drain, TLS, and the command."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest

from gateway.conftest import REVISIONS, Door, running_gateway
from gateway.raw_http import raw_connection
from support.clients.certificates import make_pki
from support.processes.command_line import CommandLine, heard_interrupts
from toolbus import Toolkit, tool
from toolbus_gateway import http_protocol, service
from toolbus_gateway.http_access import AccessSettings
from toolbus_gateway.results import ERROR_KEY
from toolbus_gateway.service import GatewayService, GatewaySettings
from toolbus_server.testing import TestServer, running_server

MODERN = "2026-07-28"
ACCEPT = "application/json, text/event-stream"


@dataclass
class Waiting:
    """A tool that waits until it is released."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def hosted(self, server: TestServer) -> AsyncIterator[None]:
        @tool
        async def wait() -> str:
            self.started.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        async with server.room("host") as host, host.host(Toolkit("words", [wait])):
            yield


def request(server: TestServer, method: str, **params: Any) -> dict[str, Any]:
    """What httpx sends for a request of 2026-07-28."""
    meta = {types.PROTOCOL_VERSION_META_KEY: MODERN, types.CLIENT_CAPABILITIES_META_KEY: {}}
    headers = {
        "Accept": ACCEPT,
        "Authorization": f"Bearer {server.token('alice')}",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": method,
    }
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **params}}
    return {"json": body, "headers": headers}


def waiting_call(server: TestServer) -> dict[str, Any]:
    return request(server, "tools/call", name="words__wait", arguments={})


async def ignored(progress: float, total: float | None, message: str | None) -> None:
    """Ask for progress."""


async def is_draining(http: httpx2.AsyncClient, url: str) -> None:
    """Wait until the gateway says that it drains."""
    while (await http.get(f"{url}/healthz")).status_code != 503:
        pass


async def test_stop_lets_calls_end_and_refuses_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_CLOSE_S", 0)
    waiting = Waiting()
    async with (
        running_gateway(drain_s=60.0) as door,
        waiting.hosted(door.server),
        httpx2.AsyncClient(timeout=60) as http,
        asyncio.timeout(60),
    ):
        call = waiting_call(door.server)
        running = asyncio.create_task(http.post(door.address(), **call))
        await waiting.started.wait()
        stopping = asyncio.create_task(door.service.stop())
        for _ in range(300):  # many times what it takes to end
            await is_draining(http, door.service.url)
        refused = await http.post(door.address(), **call)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        waiting.release.set()
        assert "done" in (await running).text
        await stopping
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"{door.service.url}/healthz")


@pytest.mark.parametrize("mode", REVISIONS)
async def test_a_call_that_outlasts_the_drain_ends_with_a_result(
    caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    waiting = Waiting()
    async with (
        running_gateway(drain_s=0.0) as door,
        waiting.hosted(door.server),
        asyncio.timeout(60),
    ):
        async with door.client(mode) as client:
            wait = client.call_tool("words__wait", {}, progress_callback=ignored)
            call = asyncio.create_task(wait)
            await waiting.started.wait()
            await door.service.stop()
            result = await call
        await waiting.cancelled.wait()
    facts = (result.meta or {})[ERROR_KEY]
    assert (result.is_error, facts["code"], facts["executed"]) == (True, "unavailable", "maybe")
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and not record.name.startswith("mcp.client")
    ]
    assert lines == ["requests that have not ended in time are cancelled: 1"]


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
async def test_stop_ends_a_request_whose_body_does_not_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, revision: str
) -> None:
    """Its task has no traceback in the log."""
    monkeypatch.setattr(service, "_CLOSE_S", 0)
    async with (
        running_gateway(drain_s=0.0) as door,
        raw_connection(door.service.url) as unfinished,
        httpx2.AsyncClient(timeout=60) as http,
        asyncio.timeout(60),
    ):
        whole = request(door.server, "tools/list")
        await http.post(door.address(), **whole)  # its connection to the room is kept
        headers = whole["headers"]
        headers |= {"Host": "localhost", "Content-Type": "application/json", "Content-Length": "9"}
        headers["Mcp-Protocol-Version"] = revision
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await unfinished.send(f"POST /rooms/lab/mcp HTTP/1.1\r\n{head}\r\n".encode())
        while "in_flight 1" not in (await http.get(f"{door.service.url}/metrics")).text:
            pass
        await door.service.stop()
        assert await unfinished.is_closed()
    assert "Traceback" not in caplog.text


async def test_stop_ends_listen_streams_with_their_last_message(door: Door) -> None:
    listen = request(door.server, "subscriptions/listen", notifications={"toolsListChanged": True})
    async with (
        httpx2.AsyncClient(timeout=60) as http,
        asyncio.timeout(60),
        http.stream("POST", door.address(), **listen) as response,
    ):
        lines = response.aiter_lines()
        acknowledged = [await anext(lines) for _ in range(2)]
        assert "acknowledged" in acknowledged[1]
        await door.service.stop()
        last = [line async for line in lines if line.startswith("data: ")][-1]
        message = json.loads(last.removeprefix("data: "))
        assert (message["id"], "result" in message) == (1, True)


async def test_with_a_certificate_it_speaks_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open connections count for their address, and end."""
    monkeypatch.setattr(http_protocol, "_REFUSED_CONNECTIONS", 1)
    monkeypatch.setattr(http_protocol, "MAX_HEADERS_S", 0.5)
    pki = make_pki(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki.cert, pki.key)
    trusting = ssl.create_default_context(cafile=pki.authority)
    async with (
        asyncio.timeout(60),
        running_gateway(tls=context, access=AccessSettings(max_per_address=1)) as door,
        httpx2.AsyncClient(timeout=60, verify=trusting) as http,
    ):
        assert door.service.url.startswith("https://")
        async with (
            raw_connection(door.service.url) as first,
            raw_connection(door.service.url),
            raw_connection(door.service.url) as third,
        ):
            assert await third.is_closed()
            assert await first.is_closed()
        assert (await http.get(f"{door.service.url}/healthz")).text == "ok\n"


async def test_an_address_in_use_is_an_error_of_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = GatewaySettings(url="ws://127.0.0.1:1", port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await GatewayService(settings).start()


SIGNALS: dict[str, tuple[list[signal.Signals], int]] = {
    "one": ([signal.SIGTERM], 0),
    "two": ([signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM),
    "Ctrl-C twice": ([signal.SIGINT, signal.SIGINT], -signal.SIGINT),
}


@pytest.mark.parametrize("signals", SIGNALS)
async def test_the_command_ends_by_signals(tmp_path: Path, signals: str) -> None:
    """One lets the call under way end, whose result arrives; a second one does not."""
    (first, *second), code = SIGNALS[signals]
    waiting = Waiting()
    async with (
        running_server() as server,
        waiting.hosted(server),
        httpx2.AsyncClient(timeout=60) as http,
        asyncio.timeout(60),
    ):
        options = ("--url", server.url, "--port", "0", "--drain", "60", "--json")
        with CommandLine(tmp_path).start("gateway", *options) as running:
            url = json.loads(await asyncio.to_thread(running.line))["url"]
            post = http.post(f"{url}/rooms/lab/mcp", **waiting_call(server))
            call = asyncio.create_task(post)
            await waiting.started.wait()
            running.process.send_signal(first)
            await is_draining(http, url)
            if second:
                running.process.send_signal(*second)
                await waiting.cancelled.wait()
                with pytest.raises(httpx2.TransportError):
                    await call
            else:
                waiting.release.set()
                assert "done" in (await call).text
            outcome = await asyncio.to_thread(running.ended)
        assert (outcome.code, outcome.err) == (code, "")


WRONG = {
    ("--trusted-hosts", "a b"): "'a b' is not a host",
    ("--trusted-origins", "app.example.org"): "is not an origin",
    ("--trusted-proxies", "10.0.0.0/99"): "is not a network of proxies",
    ("--authorization-server", "login.example.org"): "is not an issuer",
    ("--tls-cert", "cert.pem"): "TLS needs both",
    ("--url", "http://a"): "ws://",
    ("--drain", "-1"): "-1",
    ("--max-result", "1.5"): "1.5",
    ("--state-key", "short"): "at least 32 bytes",
    ("--state-key", "@/nonexistent"): "cannot read",
    ("--port", "1", "--host", "192.0.2.1"): "cannot listen on 192.0.2.1, port 1",
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_wrong_options_are_refused_with_words(tmp_path: Path, options: tuple[str, ...]) -> None:
    with heard_interrupts():  # one that fails late leaves its handler behind
        outcome = CommandLine(tmp_path).run_here("gateway", *options)
    assert outcome.code == 2
    assert WRONG[options] in outcome.err


def test_the_command_warns_beyond_this_machine_without_tls_and_names(tmp_path: Path) -> None:
    with heard_interrupts():
        outcome = CommandLine(tmp_path).run_here("gateway", "--host", "192.0.2.1")
    assert "NO TLS on 192.0.2.1" in outcome.err
    assert "clients from elsewhere get 421" in outcome.err
