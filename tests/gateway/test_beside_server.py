"""`toolbus serve --gateway`: a gateway in the process of the room server."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from support.clients.certificates import make_pki
from support.processes.command_line import SUM_TOOLS, CommandLine
from toolbus.diagnostics.exit_codes import UsageError
from toolbus_server.process import gateways

DEV = ("serve", "--dev", "--port", "0", "--gateway", "--gateway-port", "0")


@pytest.mark.parametrize("has_tls", [False, True], ids=["without TLS", "with TLS"])
async def test_a_development_server_lets_clients_of_mcp_call_tools(
    tmp_path: Path, has_tls: bool
) -> None:
    (tmp_path / "sum_tools.py").write_text(SUM_TOOLS, encoding="utf-8")
    here, options = CommandLine(tmp_path), [*DEV, "--json"]
    trusting: ssl.SSLContext | bool = True
    if has_tls:
        pki = make_pki(tmp_path / "pki")
        trusting = ssl.create_default_context(cafile=pki.authority)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        variables = {"SSL_CERT_FILE": str(pki.authority)}
        here = replace(here, variables=variables).at(f"wss://127.0.0.1:{port}")
        options += ["--port", str(port), *pki.flags]
    with here.start(*options) as server:
        addresses = json.loads(await asyncio.to_thread(server.line))
        there = here.at(addresses["url"])
        with there.hosting("sum_tools:sums", "--name", "bob"):
            made = there.run_here("token", "create", "--name", "alice", "--preset", "user")
            headers = {"Authorization": f"Bearer {made.out.strip()}"}
            address = f"{addresses['gateway']}/rooms/main/mcp"
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60, verify=trusting) as http,
                Client(streamable_http_client(address, http_client=http)) as client,
            ):
                result = await client.call_tool("sums__add", {"a": 1})
                assert result.structured_content == {"result": 2}
        outcome = await asyncio.to_thread(server.end)
    assert outcome.code == 0


def test_both_addresses_are_printed(tmp_path: Path) -> None:
    with CommandLine(tmp_path).start(*DEV) as server:
        assert server.line().startswith("listening on ws://127.0.0.1:")
        assert server.line().startswith("clients of MCP: http://127.0.0.1:")
        assert server.end().code == 0


def test_a_gateway_that_cannot_run_beside_the_server_is_refused_with_words(tmp_path: Path) -> None:
    pki = make_pki(tmp_path / "pki")
    here = CommandLine(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        table: dict[tuple[str, ...], str] = {
            ("--workers", "2", "--redis", "redis://127.0.0.1:1"): "leave --workers out",
            pki.flags: "needs TOOLBUS_URL",
            ("--gateway-port", str(taken.getsockname()[1])): "another with --gateway-port",
            ("--trusted-hosts", "a b"): "--trusted-hosts: 'a b' is not a host",
        }
        for options, text in table.items():
            outcome = here.run_here(*DEV, *options)
            assert (options, outcome.code) == (options, 2)
            assert text in outcome.err
    for name, value in {"CALL_TIMEOUT": "0", "MAX_RESULT": "1.5", "MAX_PER_TOKEN": "-1"}.items():
        outcome = here.run_here(*DEV, **{f"TOOLBUS_{name}": value})
        assert (name, outcome.code) == (name, 2)
        assert f"TOOLBUS_{name}" in outcome.err


def test_the_variables_of_the_gateway_command_count_beside_the_server_too(tmp_path: Path) -> None:
    issuer = "https://login.example.org"
    options = {"TOOLBUS_AUTHORIZATION_SERVERS": issuer}
    with CommandLine(tmp_path).start(*DEV, "--json", **options) as server:
        address = json.loads(server.line())["gateway"]
        metadata = httpx2.get(f"{address}/.well-known/oauth-protected-resource").json()
        assert metadata["authorization_servers"] == [issuer]
        assert server.end().code == 0


def test_beyond_this_machine_the_names_of_the_gateway_are_asked_for(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    here.run_here("key", "create")
    options = ("serve", "--keys", "keys.toml", "--host", "192.0.2.1", "--gateway")
    for further, is_said in {(): True, ("--trusted-hosts", "a.example"): False}.items():
        outcome = here.run_here(*options, *further)
        assert ("clients from elsewhere get 421" in outcome.err) is is_said


def test_with_a_certificate_the_gateway_connects_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gateway(url: str, **_: Any) -> None:
        raise UsageError(f"refused for {url}")

    monkeypatch.setattr(gateways, "load_gateway", lambda: gateway)
    pki = make_pki(tmp_path / "pki")
    named = CommandLine(tmp_path).at("wss://several.test:7717")
    assert "refused for wss://several.test:7717" in named.run_here(*DEV, *pki.flags).err


@pytest.mark.parametrize("is_known", [False, True], ids=["no entry point", "no extra"])
def test_without_its_extra_the_line_that_installs_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    def entries(**_: Any) -> list[EntryPoint]:
        return [EntryPoint("mcp", "no_such_module:x", gateways.GATEWAYS)] if is_known else []

    monkeypatch.setattr(gateways, "entry_points", entries)
    outcome = CommandLine(tmp_path).run_here(*DEV)
    assert outcome.code == 2
    assert "[gateway]" in outcome.err
