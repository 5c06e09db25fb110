"""Hosts that are started before their server: they keep trying, unless that cannot help."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import support.processes
from support.clients.other_services import other_service
from support.nodes.cluster import nodes
from support.processes.launch import clean_environment
from support.processes.server_process import ServerProcess
from support.redis.server import RedisServer, free_port
from support.rooms.events import until_hosts
from toolbus import ApiScope, Key, ParticipantToken

_PROGRAMS = Path(support.processes.__path__[0])
COMMAND = ("-m", "toolbus", "host", "clock")
LEDGER = (str(_PROGRAMS / "ledger_host.py"), "{folder}/witness")
"""A program that calls `RemoteToolkit.run`."""
WORK = (str(_PROGRAMS / "hosted_tools.py"), "{folder}/witness")
"""A program that calls `serve_toolkits`."""


class Host:
    """A host process whose log is read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []

    async def logged(self, text: str) -> None:
        """Read its log until a line contains this text."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while not (self.log and text in self.log[-1]):
                line = await self.process.stderr.readline()
                assert line, self.log
                self.log.append(line.decode())

    async def ended(self) -> int:
        """Wait for its end, read the rest of its log, and return its exit code."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            self.log += (await self.process.stderr.read()).decode().splitlines(keepends=True)
            return await self.process.wait()


@asynccontextmanager
async def host_of(
    folder: Path, url: str, token: str, program: tuple[str, ...], **variables: str
) -> AsyncIterator[Host]:
    """Start a host, without a wait for anything, and kill it when the block ends."""
    variables |= {"TOOLBUS_URL": url, "TOOLBUS_ROOM": "lab", "TOOLBUS_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *(each.format(folder=folder) for each in program)),
        env={**clean_environment(), **variables},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Host(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


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
    tmp_path: Path,
    program: tuple[str, ...],
    toolkit: str,
    tool: str,
    arguments: dict[str, Any],
) -> None:
    async with host_of(tmp_path, server.url, server.token("host"), program) as host:
        await host.logged(f"cannot host at {server.url} yet, trying again until it succeeds")
        await server.start()
        async with server.room("alice") as alice:
            await until_hosts(alice, toolkit, 1)
            await alice.invoke(f"{toolkit}.{tool}", arguments)
        await host.logged("hosting in room lab now")
        assert len(host.log) == 2
        host.process.terminate()
        assert await host.ended() == 0


async def test_host_started_at_an_isolated_node_hosts_once_the_node_reaches_redis(
    redis: RedisServer, tmp_path: Path
) -> None:
    """A public name cannot be claimed meanwhile."""
    async with asyncio.timeout(100), nodes(redis) as (here, there), there.room("alice") as alice:
        await redis.kill()
        async with host_of(tmp_path, here.url, here.token("host"), LEDGER) as host:
            await host.logged("(the other servers cannot be reached)")
            await redis.start()
            await until_hosts(alice, "ledger", 1)
            assert await alice.call("ledger.count", key=1) == 1


@pytest.mark.parametrize("program", [COMMAND, LEDGER], ids=["toolbus host", "RemoteToolkit.run"])
async def test_refused_token_ends_a_waiting_host_when_the_server_starts(
    server: ServerProcess, tmp_path: Path, program: tuple[str, ...]
) -> None:
    token = ParticipantToken(name="host", room=["lab"], api=ApiScope.full())
    wrong = token.to_jwt(Key.generate(kid="other", iss="acme"))
    async with host_of(tmp_path, server.url, wrong, program) as host:
        await host.logged("cannot host at")
        await server.start()
        assert await host.ended() == 3
        assert "permission_denied: the server refuses the token" in "".join(host.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_a_waiting_host(
    server: ServerProcess, tmp_path: Path, number: signal.Signals
) -> None:
    async with host_of(tmp_path, server.url, server.token("host"), LEDGER) as host:
        await host.logged("cannot host at")
        host.process.send_signal(number)
        assert await host.ended() == 5
        assert host.log[1:] == ["toolbus: stopped by a signal before anything was hosted\n"]


@pytest.mark.parametrize(
    ("options", "variables"), [((), {"TOOLBUS_WAIT": "off"}), (("--no-wait",), {})], ids=str
)
async def test_host_that_is_not_to_wait_ends_with_the_first_error(
    server: ServerProcess, tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    program = (*COMMAND, *options)
    async with host_of(tmp_path, server.url, server.token("host"), program, **variables) as host:
        assert await host.ended() == 6
        assert host.log[0].startswith(f"toolbus: unavailable: cannot connect to {server.url}: ")


async def test_service_that_is_no_toolbus_server_ends_a_host_at_once(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with (
        other_service(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url,
        host_of(tmp_path, url, server.token("host"), LEDGER) as host,
    ):
        assert await host.ended() == 6
        assert host.log[0].startswith("toolbus: unavailable: not a toolbus server at")
