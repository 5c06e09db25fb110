"""Connections that fail between real processes: silence, suspension, and slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from support.clients.handshakes import rest_of
from support.clients.raw_client import CLOSE, PING, RawClient, raw_participant
from support.clients.raw_requests import ask, next_of, offer
from support.processes.host_process import host_process
from support.rooms.events import listed, next_toolkit_event, until_hosts
from support.rooms.failures import error_of_call
from support.rooms.listeners import LISTENERS, MIB, Listener, broadcast_to
from support.rooms.server_state import INTERVAL_S, SILENCE_S, connection_of, until_in_flight
from toolbus.auth.keys import KeyRing
from toolbus.errors import ConnectionLost, HostLost, NoHost
from toolbus.wire import Dispatch, Result, pack_body
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server


@asynccontextmanager
async def impatient_server() -> AsyncIterator[TestServer]:
    """A server with shorter timeouts for silent participants."""
    settings = ServerSettings(
        KeyRing([]), port=0, drain_s=1.0, ping_interval_s=INTERVAL_S, ping_timeout_s=SILENCE_S
    )
    async with running_server(settings=settings) as server:
        yield server


# Silence


async def test_a_host_whose_connection_is_cut_without_a_close_is_gone_within_the_ping_timeout(
    tmp_path: Path,
) -> None:
    """CONN-7, REG-18, guarantee "host's connection is lost": and all are notified, by event, list
    and call.
    """
    async with (
        impatient_server() as server,
        FaultProxy(server.url) as proxy,
        server.room("alice") as alice,
        host_process(server, tmp_path / "w", hold=True, via=proxy) as host,
    ):
        await until_hosts(alice, "work", 1)
        async with alice.events(["toolkits"]) as events, asyncio.timeout(60):
            running = asyncio.ensure_future(error_of_call(alice, "work.wait"))
            await host.wrote("began wait")
            proxy.to_server = proxy.to_participant = Faults(lost=True)
            await host.kill()
            async with asyncio.timeout(10 * (INTERVAL_S + SILENCE_S)):
                lost = await next_toolkit_event(events)
            assert (lost.name, lost.toolkit and lost.toolkit.hosts) == ("toolkit_changed", 0)
            error = await running
            assert isinstance(error, HostLost)
            assert error.executed == "maybe"
            assert [(toolkit.name, toolkit.hosts) for toolkit in await listed(alice)] == [
                ("work", 0)
            ]
            absent = await error_of_call(alice, "work.wait")
            assert isinstance(absent, NoHost)
            assert absent.executed == "no"
            async with host_process(server, tmp_path / "w2"):
                assert (await next_toolkit_event(events)).name == "toolkit_changed"
                assert await alice.call("work.wait") == "free"


async def test_a_frozen_host_is_declared_dead_and_reconnects_by_itself(
    tmp_path: Path,
) -> None:
    """CONN-7, CONN-11, ERR-2, LEAVE-4, guarantee "host stalls": with a higher epoch, and each call
    ended once for its caller.
    """
    async with (
        impatient_server() as server,
        server.room("alice") as alice,
        host_process(server, tmp_path / "w") as host,
    ):
        await until_hosts(alice, "work", 1)
        before = connection_of(server, "host").participant
        async with asyncio.timeout(60):
            napping = asyncio.ensure_future(alice.invoke("work.nap", {"seconds": 0.2}))
            await until_in_flight(server, 1)
            host.stop()
            entered = asyncio.ensure_future(error_of_call(alice, "work.wait"))
            with pytest.raises(HostLost) as lost:
                await napping
            assert lost.value.executed == "maybe"
            assert (await entered).executed == "maybe"  # dispatched, whether it was read or not
            assert host.count("began wait") == 0
            assert [toolkit.hosts for toolkit in await listed(alice)] == [0]
            host.go_on()
            await until_hosts(alice, "work", 1)
            after = connection_of(server, "host").participant
            assert after.instance == before.instance
            assert after.epoch > before.epoch
            assert await alice.call("work.wait") == "free"
        assert server.server.hub.router.in_flight == 0
        # A call in its socket's buffer may have been entered late: its replies were dropped.
        assert host.count("ended wait") - 1 in (0, 1)


async def until_closing(client: RawClient) -> None:
    """Read until the server sends its close frame; its requests are not answered meanwhile."""
    while (raw := await client.read_raw()).opcode != CLOSE:
        assert raw.opcode == PING


async def test_late_replies_of_a_host_declared_dead_are_dropped() -> None:
    """CONN-7, CALL-9: its results, and its registrations."""
    async with impatient_server() as server, server.room("alice") as alice:
        async with raw_participant(server, "host", instance="one") as host:
            await ask(host, offer())
            calling = asyncio.ensure_future(error_of_call(alice, "echo.say"))
            dispatch = await next_of(host, Dispatch)
            await until_closing(host)
            assert (await calling).executed == "maybe"
            host.send_frame(Result(dispatch.id, pack_body([0])))
            host.send_frame(offer({"name": "late", "tools": []}, request_id=2))
            await host.flush()
            assert await rest_of(host) == b""  # answered is none of it
        async with raw_participant(server, "host", instance="one", epoch=2) as back:
            assert [toolkit.name for toolkit in await listed(alice)] == ["echo"]
            assert (await listed(alice))[0].hosts == 0
            await ask(back, offer(generation=1))
            assert (await listed(alice))[0].hosts == 1


# Slow readers


async def test_a_caller_whose_window_is_closed_is_the_only_one_to_be_closed(
    tmp_path: Path,
) -> None:
    """CONN-7, CALL-12, STREAM-11, guarantee "slow reader": by its silence, not by its results; its
    host is notified.
    """
    async with (
        running_server() as server,
        FaultProxy(server.url) as proxy,
        host_process(server, tmp_path / "w", hold=True) as host,
        server.room("bob") as bob,
        server.room("slow", via=proxy) as slow,
    ):
        await until_hosts(bob, "work", 1)
        held = asyncio.ensure_future(error_of_call(slow, "work.wait"))
        await host.wrote("began wait")
        to_slow, bobs_id = connection_of(server, "slow").port, bob.me.id
        proxy.to_participant = Faults(stalled=True)
        asked, most_bytes = [], 0
        for _ in range(64):  # 32 MiB, which wait at the host
            blob = slow.invoke("work.blob", {"kib": 512}, retry=False)
            asked.append(asyncio.ensure_future(blob))
            assert await bob.call("work.nap", seconds=0) == 0
            waiting_bytes = (
                to_slow._ensure_queue().bytes + to_slow.transport.get_write_buffer_size()
            )
            most_bytes = max(most_bytes, waiting_bytes)
        assert most_bytes < MIB
        await host.wrote("left wait")
        assert to_slow.protocol.close_sent.code == 1011
        await proxy.heal()
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*asked, return_exceptions=True)
            lost = [end for end in ends if isinstance(end, ConnectionLost)]
            assert lost
            assert {end.executed for end in [*lost, await held]} == {"maybe"}
            assert await slow.call("work.nap", seconds=0) == 0  # it reconnects by itself
        assert bob.me.id == bobs_id


async def test_a_broadcast_reaches_99_while_the_hundredth_does_not_read() -> None:
    """SEND-2."""
    async with running_server() as server, FaultProxy(server.url) as proxy, AsyncExitStack() as out:
        sender = await out.enter_async_context(server.room("sender"))
        tasks = await out.enter_async_context(asyncio.TaskGroup())
        listeners: list[Listener] = []
        for number in range(LISTENERS):
            via = proxy if number == 0 else None
            name = "slow" if via else f"ear{number}"
            listeners.append(Listener(await out.enter_async_context(server.room(name, via=via))))
        listening = []
        for listener in listeners:
            is_ready = asyncio.Event()
            listening.append(tasks.create_task(listener.listen(is_ready)))
            await is_ready.wait()
        async with asyncio.timeout(60):
            await broadcast_to(sender, listeners)
            proxy.to_participant = Faults(stalled=True)
            to_slow = connection_of(server, "slow").port
            while await sender.send("slow", "fill", "w" * 200_000):
                pass  # until 4 MiB wait for it
            await broadcast_to(sender, listeners[1:])
        assert to_slow.is_open  # it was slow throughout
        assert to_slow._ensure_queue().bytes > 3 * MIB
        assert all(listener.received.empty() for listener in listeners)
        proxy.reset()
        for task in listening:
            task.cancel()
