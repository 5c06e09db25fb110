"""A server that restarts: callers reconnect before hosts, and their calls wait for these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from toolbus import Key, KeyRing, RoomClient, Toolkit, tool
from toolbus.errors import ConnectionLost, NotFound, Unavailable
from toolbus.room.room import connection_of
from toolbus_server import ServerSettings
from toolbus_server.testing import running_server

KEY = Key.generate(kid="test", iss="acme")


class CountedTools:
    """A toolkit that counts its runs, and blocks calls until they are released."""

    def __init__(self) -> None:
        self.runs = 0
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    def toolkit(self) -> Toolkit:
        @tool(idempotent=True)
        async def again() -> int:
            return await self._run()

        @tool
        async def once() -> int:
            return await self._run()

        return Toolkit("work", [again, once])

    async def _run(self) -> int:
        self.runs += 1
        self.entered.set()
        await self.go.wait()
        return self.runs


@asynccontextmanager
async def restarted(
    alice_of: AsyncExitStack, tools: CountedTools, *, received: bool = True
) -> AsyncIterator[RoomClient]:
    """Let alice call a host's toolkit once, then stop the server and its host.

    If alice is not to be notified, her connection is cut before.
    """
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=0.0)
    async with running_server(key=KEY, settings=settings) as first:
        alice = await alice_of.enter_async_context(first.room("alice"))
        async with first.room("host") as host, host.host(tools.toolkit()):
            tools.go.set()
            assert await alice.call("work.again") == 1
            await alice.toolkit("work")
            tools.go.clear()
            tools.entered.clear()
            yield alice
            if not received:
                connection = connection_of(alice).link.websocket
                assert connection is not None
                connection.transport.abort()
                await connection.wait_closed()
            await first.server.stop()


def port_of(alice: RoomClient) -> int:
    return int(connection_of(alice).settings.url.rpartition(":")[2])


async def until_back(room: RoomClient) -> None:
    """Wait until a participant has its connection again."""
    async with asyncio.timeout(60):
        async for _ in room.toolkits():
            pass


async def test_a_call_made_after_a_restart_waits_for_the_host_that_is_not_back_yet() -> None:
    """RETRY-7."""
    tools = CountedTools()
    async with AsyncExitStack() as stack:
        async with restarted(stack, tools) as alice:
            pass
        settings = ServerSettings(keys=KeyRing([]), port=port_of(alice))
        async with running_server(key=KEY, settings=settings) as second:
            await until_back(alice)
            tools.go.set()
            calling = asyncio.ensure_future(alice.call("work.once"))
            with pytest.raises(NotFound):
                await alice.call(
                    "missing.tool"
                )  # a toolkit that never existed is not found at once
            assert not calling.done()
            async with second.room("host") as host, host.host(tools.toolkit()):
                async with asyncio.timeout(60):
                    assert await calling == 2


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("name", ["again", "once"])
async def test_a_call_in_flight_at_a_restart_runs_again_only_if_that_does_no_harm(
    name: str, received: bool
) -> None:
    """RETRY-2, RETRY-3, RETRY-7, LEAVE-8, guarantee "server is killed"."""
    tools = CountedTools()
    async with AsyncExitStack() as stack:
        async with restarted(stack, tools, received=received) as alice:
            calling = asyncio.ensure_future(alice.call(f"work.{name}"))
            async with asyncio.timeout(60):
                await tools.entered.wait()
        tools.go.set()
        settings = ServerSettings(keys=KeyRing([]), port=port_of(alice))
        async with running_server(key=KEY, settings=settings) as second:
            await until_back(alice)
            async with second.room("host") as host, host.host(tools.toolkit()):
                async with asyncio.timeout(60):
                    if name == "again":
                        assert await calling == 3
                    else:
                        with pytest.raises(Unavailable if received else ConnectionLost) as lost:
                            await calling
                        assert lost.value.executed == "maybe"
    assert tools.runs == (3 if name == "again" else 2)
