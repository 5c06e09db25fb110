"""Hosts of one toolkit that are not equally fast: calls go where fewer are under way."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from support.room_watch import until_hosts
from support.server_process import ServerProcess
from toolbus import Key, KeyRing, RoomClient, Toolkit, tool
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

KEY = Key.generate(kid="test", iss="acme")


class Pair:
    """Two hosts of one toolkit: a quick one, and one whose calls each take a while or for ever."""

    def __init__(self, slow_s: float | None = None) -> None:
        self.served = {"quick": 0, "slow": 0}
        self.go = asyncio.Event()
        self._slow_s = slow_s

    def toolkit(self, host: str) -> Toolkit:
        @tool
        async def run() -> str:
            if host == "slow" and self._slow_s is None:
                await self.go.wait()
            elif host == "slow":
                await asyncio.sleep(self._slow_s or 0)
            self.served[host] += 1
            return host

        return Toolkit("work", [run])

    async def join(self, server: TestServer | ServerProcess, stack: AsyncExitStack) -> None:
        for host in self.served:
            room = await stack.enter_async_context(server.room("pair", instance=host))
            await stack.enter_async_context(room.host(self.toolkit(host)))


async def where_calls_go(alice: RoomClient, pair: Pair) -> list[str]:
    """Make two calls at once, which go to one host each, and then others, one after the other."""
    pair.go.clear()
    both = [asyncio.ensure_future(alice.call("work.run")) for _ in range(2)]
    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    assert [call.result() for call in done] == ["quick"]
    others = [await alice.call("work.run") for _ in range(50)]
    pair.go.set()
    assert sorted(await asyncio.gather(*both)) == ["quick", "slow"]
    return others


async def test_no_call_goes_to_a_host_that_is_behind_and_a_restart_changes_nothing() -> None:
    """CALL-21, REG-10."""
    pair = Pair()
    async with AsyncExitStack() as people, asyncio.timeout(30):
        async with running_server(key=KEY) as first:
            settings = ServerSettings(keys=KeyRing([]), port=first.server.port)
            await pair.join(first, people)
            alice = await people.enter_async_context(first.room("alice"))
            assert await where_calls_go(alice, pair) == ["quick"] * 50
        async with running_server(key=KEY, settings=settings):
            await until_hosts(alice, "work", 2)
            assert await where_calls_go(alice, pair) == ["quick"] * 50


async def test_of_two_hosts_the_faster_one_serves_most_calls() -> None:
    pair = Pair(slow_s=0.1)

    async def keep_calling(alice: RoomClient) -> None:
        while pair.served["slow"] < 20:
            await alice.call("work.run")

    async with AsyncExitStack() as people, asyncio.timeout(30):
        server = await people.enter_async_context(running_server(key=KEY))
        await pair.join(server, people)
        alice = await people.enter_async_context(server.room("alice"))
        await asyncio.gather(*(keep_calling(alice) for _ in range(8)))
    assert pair.served["quick"] > 3 * pair.served["slow"]
