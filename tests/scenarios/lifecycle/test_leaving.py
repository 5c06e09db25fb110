"""Hosts that leave, servers that restart, connections that drop: who notices, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from support.rooms.events import listed, until_hosts
from toolbus import ApiScope, Key, KeyRing, RemoteToolkit, RoomClient, Toolkit, tool
from toolbus.auth.grants import AgentsGrant
from toolbus.errors import NotFound, PermissionDenied, RoomException, Unavailable
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.testing import TestServer, running_server


@tool
async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


class Load:
    """Continuous calls, none of which may fail."""

    def __init__(self, room: RoomClient) -> None:
        self._room = room
        self._more = asyncio.Semaphore(0)
        self._stopping = False

    async def _call_repeatedly(self) -> None:
        while not self._stopping:
            chunk = await self._room.invoke("work.nap", {"seconds": 0.02}, retry=False)
            assert chunk.value == 0.02
            self._more.release()

    async def goes_on(self) -> None:
        """Wait until a hundred more calls are done."""
        async with asyncio.timeout(60):
            for _ in range(100):
                await self._more.acquire()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(self._call_repeatedly())
            yield self
            self._stopping = True


def drop(server: TestServer, name: str, *close: Any) -> None:
    """Abort the connection of a participant, as a network does, or close it with a code."""
    for session in server.server.hub.rooms["lab"].sessions.values():
        if session.connection.participant.identity.name == name:
            port: Any = session.connection.port  # a real connection
            port.close_with(*close) if close else port.transport.abort()


async def test_a_toolkit_that_is_stopped_and_started_again_fails_no_call() -> None:
    """Guarantee "caller disconnects"."""
    stays, leaves = (RemoteToolkit("work", [nap]) for _ in range(2))
    async with (
        running_server() as server,
        server.room("alice") as alice,
        server.room("host") as one,
        server.room("host") as two,
    ):
        await stays.start(one)
        await leaves.start(two)
        async with Load(alice).running() as load:
            for _ in range(2):
                await load.goes_on()
                await leaves.stop()
                assert [toolkit.hosts for toolkit in await listed(alice)] == [1]
                await leaves.start(two)
        await leaves.stop()
        await stays.stop()
        with pytest.raises(NotFound):
            await alice.toolkit("work")


async def test_participants_reconnect_to_a_restarted_server() -> None:
    key = Key.generate(kid="test", iss="acme")
    async with AsyncExitStack() as stack:
        async with running_server(key=key) as first:
            settings = ServerSettings(keys=KeyRing([]), port=first.server.port)
            host = await stack.enter_async_context(first.room("host"))
            alice = await stack.enter_async_context(first.room("alice"))
            await stack.enter_async_context(host.host(Toolkit("work", [nap])))
            assert await alice.call("work.nap", seconds=0) == 0
        waiting = asyncio.ensure_future(alice.toolkit("nothing"))
        async with running_server(key=key, settings=settings):
            with pytest.raises(NotFound):
                await waiting
            await until_hosts(alice, "work", 1)
            assert await alice.call("work.nap", seconds=0) == 0


@pytest.mark.parametrize(
    ("close", "reason"),
    [
        ((), ""),
        ((4430, "slow consumer"), " (the server closed it: slow consumer, 4430)"),
        ((1009, ""), " (the server closed it: 1009)"),
    ],
)
async def test_a_host_that_lost_its_connection_serves_again_and_logs_it(
    caplog: pytest.LogCaptureFixture, close: tuple[Any, ...], reason: str
) -> None:
    """Guarantee "host's connection is lost"."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        server.room("host") as host,
        host.host(Toolkit("work", [nap])),
        alice.events() as events,
    ):
        url = server.url
        drop(server, "host", *close)
        async with asyncio.timeout(60):
            event = await anext(events)
            while event.toolkit is None or event.toolkit.hosts == 0:
                event = await anext(events)
            assert event.name == "toolkit_changed"  # its name was reserved for it
            assert await alice.call("work.nap", seconds=0) == 0
            async for _ in host.toolkits():
                pass  # the host itself asks, so it is connected again
    output = [
        record.getMessage()
        for record in caplog.records
        if record.name == "toolbus.client.reconnecting_connection"
    ]
    assert output == [
        f"lost the connection to {url}{reason}: reconnecting",
        f"reconnected to {url}",
    ]


async def test_a_connection_that_is_lost_while_it_registers_again_is_replaced_at_once() -> None:
    async with running_server() as server, server.room("alice") as alice:
        async with server.room("host") as host, host.host(Toolkit("work", [nap])):
            requests = server.server.hub.rooms["lab"].toolkit_requests
            register = requests.register
            losses = 2

            def lose_it(*arguments: object) -> object:
                nonlocal losses
                if losses:
                    losses -= 1
                    drop(server, "host")
                    return {}
                return register(*arguments)  # type: ignore[arg-type]  # as they came

            requests.register = lose_it  # type: ignore[assignment,method-assign]  # called in between
            drop(server, "host")
            async with asyncio.timeout(60):
                await until_hosts(alice, "work", 0)
                await until_hosts(alice, "work", 1)
            assert losses == 0


async def test_a_token_source_that_fails_for_a_while_is_retried() -> None:
    async with running_server() as server, server.room("alice") as alice:
        answers: list[str | Exception] = [server.token("host")]
        answers += [RuntimeError("away"), KeyError("x"), server.token("host")]

        async def token() -> str:
            answer = answers.pop(0)
            if isinstance(answer, str):
                return answer
            raise answer

        host = RoomClient(server.url, room="lab", token=token)
        async with host, host.host(Toolkit("work", [nap])):
            drop(server, "host")
            await until_hosts(alice, "work", 0)
            await until_hosts(alice, "work", 1)
            assert answers == []


async def test_participant_that_reconnects_with_fewer_grants_hosts_only_allowed_toolkits() -> None:
    less = ApiScope(agents=AgentsGrant(register_private_toolkit=True, use_tools=True))
    async with running_server() as server, server.room("alice") as alice:
        public, private = Toolkit("work", [nap]), Toolkit("mine", [nap])
        old = server.room("host", instance="one")
        async with old, old.host(public), old.host(private, public=False, shared_with=["*"]):
            assert [toolkit.name for toolkit in await listed(alice)] == ["mine", "work"]
            async with server.room("host", instance="one", api=less):
                assert [toolkit.name for toolkit in await listed(alice)] == ["mine"]
                with pytest.raises(PermissionDenied):
                    await old.closed()


async def test_a_connection_lost_before_its_session_began_leaves_no_ghost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = RoomServer._handle
    handled = asyncio.Event()

    async def lose_and_handle(server: RoomServer, connection: ServerConnection) -> None:
        connection.transport.abort()
        await connection.wait_closed()
        await handle(server, connection)
        handled.set()

    monkeypatch.setattr(RoomServer, "_handle", lose_and_handle)
    async with running_server() as server, asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await server.room("ghost").__aenter__()
        await handled.wait()
        assert server.server.hub.rooms == {}


async def test_leaving_ends_every_wait_for_the_room() -> None:
    """Guarantee "caller disconnects"."""
    async with running_server() as server, server.room("host") as host:
        async with host.host(Toolkit("work", [nap])):
            alice = server.room("alice")
            async with alice:
                call = asyncio.ensure_future(alice.call("work.nap", seconds=60))
                events = alice.events()
                stream = asyncio.ensure_future(anext(events, None))
                await alice.toolkit("work")
            async with asyncio.timeout(60):
                assert await stream is None
                with pytest.raises(RoomException) as caught:
                    await call
            assert (caught.value.code, caught.value.executed) == ("connection_lost", "maybe")
