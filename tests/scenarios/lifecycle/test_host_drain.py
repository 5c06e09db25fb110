"""Hosts that are terminated while they are called: processes of their own, ended by signals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes.launch import ChildProcess
from support.processes.ledger_load import Load, keys_from, runs_of, start_ledger
from support.rooms.events import until_hosts
from support.rooms.server_state import connection_of, until_in_flight
from toolbus import RoomClient, Toolkit, tool
from toolbus.client.reconnecting_connection import ReconnectingConnection
from toolbus.errors import HostLost, NoHost, Unavailable
from toolbus.room.room import connection_of as client_connection_of
from toolbus.transport.websocket import CLOSE_TIMEOUT_S
from toolbus_server.testing import TestServer, running_server


@asynccontextmanager
async def ledger_host(
    server: TestServer, witness: Path, **variables: str
) -> AsyncIterator[ChildProcess]:
    """Run a host until the block ends."""
    host = await start_ledger(server.url, server.token("host"), witness, **variables)
    try:
        yield host
    finally:
        await host.kill()


async def test_stopped_replica_fails_no_call_and_runs_each_once(
    tmp_path: Path,
) -> None:
    """LEAVE-1, guarantee "host drains": without retries, so the drain itself leaves no gap."""
    witness = tmp_path / "witness"
    async with (
        running_server() as server,
        server.room("alice") as alice,
        ledger_host(server, witness),
        ledger_host(server, witness) as leaves,
    ):
        await until_hosts(alice, "ledger", 2)
        load = Load(alice, "count", keys_from(0), retry=False)
        async with load.running(16):
            await load.succeeds(200)
            assert await leaves.terminate() == 0
            await load.succeeds(200)
        assert load.failed == {}
        entered, ended = runs_of(witness)
        assert entered == ended == dict.fromkeys(load.succeeded, 1)


async def test_host_that_is_alone_leaves_its_name_to_the_next_of_its_identity(
    tmp_path: Path,
) -> None:
    """LEAVE-5, REG-18, guarantee "host drains": callers get `no_host`, never `not_found`."""
    witness = tmp_path / "witness"
    async with (
        running_server() as server,
        server.room("alice") as alice,
        ledger_host(server, witness) as first,
        AsyncExitStack() as hosts,
    ):
        load = Load(alice, "count", keys_from(0), retry=False)
        await until_hosts(alice, "ledger", 1)
        async with load.running():
            await load.succeeds()
            assert await first.terminate() == 0
            await load.fails(20)
            await hosts.enter_async_context(ledger_host(server, witness))
            await load.succeeds()
        assert {type(error) for error in load.failed.values()} == {NoHost}
        for error in load.failed.values():
            assert (error.executed, error.retryable) == ("no", True)
        load.check(witness)


async def _entered(witness: Path) -> None:
    async with asyncio.timeout(60):
        while not _text_of(witness):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


def _text_of(witness: Path) -> str:
    return witness.read_text() if witness.exists() else ""


# In a program


@tool
async def hold(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "held"


async def test_program_that_drains_finishes_its_calls_and_hosts_nothing_any_more() -> None:
    """LEAVE-5: whatever it does afterwards, also if it loses its connection and reconnects."""
    async with running_server() as server, server.room("alice") as alice:
        async with server.room("host") as host, host.host(Toolkit("work", [hold])):
            calling = asyncio.create_task(alice.call("work.hold", seconds=0.3))
            await until_in_flight(server, 1)
            await host.drain()
            assert calling.done() or await calling == "held"
            with pytest.raises(NoHost):
                await alice.invoke("work.hold", {"seconds": 0}, wait_for_host_s=0)
            link = _link_of(host)
            assert link.websocket is not None
            link.websocket.transport.abort()
            await link.websocket.wait_closed()
            await link.ready()
            with pytest.raises(Unavailable):
                async with host.host(Toolkit("more", [hold])):
                    pass
            with pytest.raises(NoHost):
                await alice.invoke("work.hold", {"seconds": 0}, wait_for_host_s=0)
        async with server.room("host") as host, host.host(Toolkit("work", [hold])):
            assert await alice.call("work.hold", seconds=0) == "held"


async def test_program_that_drains_for_no_time_gives_its_calls_up() -> None:
    """LEAVE-1."""
    async with running_server() as server, server.room("alice") as alice:
        async with server.room("host") as host, host.host(Toolkit("work", [hold])):
            calling = asyncio.create_task(alice.call("work.hold", seconds=60))
            await until_in_flight(server, 1)
            odd: list[Any] = [10**400, "x", -1, float("nan")]
            for wrong in odd:
                with pytest.raises(ValueError, match="seconds, 0 or more"):
                    await host.drain(wrong)
            async with asyncio.timeout(60):
                await host.drain(0)
        with pytest.raises(HostLost) as lost:
            await calling
        assert lost.value.executed == "maybe"


async def test_large_answers_that_still_wait_are_sent_before_a_host_that_drained_is_gone() -> None:
    """LEAVE-1: the server reads nothing for longer than a closing handshake may take."""
    go = asyncio.Event()

    @tool
    async def large() -> str:
        await go.wait()
        return "x" * 900_000

    async with running_server() as server, server.room("alice") as alice:
        async with server.room("host") as host, host.host(Toolkit("work", [large])):
            connection = connection_of(server, "host")
            own, end = _link_of(host).websocket, connection.port.transport
            assert own is not None
            for transport, option in (
                (end, socket.SO_RCVBUF),
                (own.transport, socket.SO_SNDBUF),
            ):
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 262_144)
            calls = [asyncio.create_task(alice.call("work.large")) for _ in range(6)]
            await until_in_flight(server, 6)
            draining = asyncio.create_task(host.drain())
            while not connection.participant.is_draining:  # noqa: ASYNC110 - a plain flag
                await asyncio.sleep(0)
            end.pause_reading()
            go.set()
            asyncio.get_running_loop().call_later(1.5 * CLOSE_TIMEOUT_S, end.resume_reading)
            await draining
        assert {len(answer) for answer in await asyncio.gather(*calls)} == {900_000}


def _link_of(room: RoomClient) -> ReconnectingConnection:
    return client_connection_of(room).link
