"""Hosts that are started before their server: they keep trying, unless that cannot help."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import support.processes
from support.nodes.cluster import nodes
from support.processes.logged_host import host_of
from support.processes.server_process import ServerProcess
from support.redis.server import RedisServer, free_port
from support.rooms.events import until_hosts
from toolbus import ApiScope, Key, ParticipantToken

_PROGRAMS = Path(support.processes.__path__[0])
COMMAND = ("-m", "toolbus", "host", "clock")
LEDGER = (str(_PROGRAMS / "ledger_host.py"), os.devnull)
"""A program that calls `RemoteToolkit.run`."""
WORK = (str(_PROGRAMS / "hosted_tools.py"), os.devnull)
"""A program that calls `serve_toolkits`."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server that is not started yet; its address is known."""
    server = ServerProcess(tmp_path)
    server.url = f"ws://127.0.0.1:{free_port()}"
    yield server
    await server.end(signal.SIGKILL)


@pytest.mark.parametrize(
    ("program", "toolkit", "tool", "arguments"),
    [
        (COMMAND, "clock", "now", {}),
        (LEDGER, "ledger", "count", {"key": 1}),
        (WORK, "work", "nap", {"seconds": 0}),
    ],
    ids=["toolbus host", "RemoteToolkit.run", "serve_toolkits"],
)
async def test_host_started_before_its_server_hosts_once_the_server_is_there(
    server: ServerProcess,
    program: tuple[str, ...],
    toolkit: str,
    tool: str,
    arguments: dict[str, Any],
) -> None:
    async with host_of(server.url, server.token("host"), program) as host:
        await host.wait_for_log(f"cannot host at {server.url} yet, trying again until it succeeds")
        await server.start()
        async with server.room("alice") as alice:
            await until_hosts(alice, toolkit, 1)
            await alice.invoke(f"{toolkit}.{tool}", arguments)
        await host.wait_for_log("hosting in room lab now")
        assert len(host.output.splitlines()) == 2
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0


async def test_host_started_at_an_isolated_node_hosts_once_the_node_reaches_redis(
    redis: RedisServer,
) -> None:
    """A public name cannot be claimed meanwhile."""
    async with asyncio.timeout(100), nodes(redis) as (here, there), there.room("alice") as alice:
        await redis.kill()
        async with host_of(here.url, here.token("host"), LEDGER) as host:
            await host.wait_for_log("(the other servers cannot be reached)")
            await redis.start()
            await until_hosts(alice, "ledger", 1)
            assert await alice.call("ledger.count", key=1) == 1


@pytest.mark.parametrize("program", [COMMAND, LEDGER], ids=["toolbus host", "RemoteToolkit.run"])
async def test_refused_token_ends_a_waiting_host_when_the_server_starts(
    server: ServerProcess, program: tuple[str, ...]
) -> None:
    token = ParticipantToken(name="host", room=["lab"], api=ApiScope.full())
    wrong = token.to_jwt(Key.generate(kid="other", iss="acme"))
    async with host_of(server.url, wrong, program) as host:
        await host.wait_for_log("cannot host at")
        await server.start()
        assert await host.ended() == 3
        assert "permission_denied: the server refuses the token" in host.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_a_waiting_host(server: ServerProcess, number: signal.Signals) -> None:
    async with host_of(server.url, server.token("host"), LEDGER) as host:
        await host.wait_for_log("cannot host at")
        host.signal(number)
        assert await host.ended() == 5
        stopped = "toolbus: stopped by a signal before anything was hosted"
        assert host.output.splitlines()[1:] == [stopped]
