"""Hosts of one toolkit with different speeds: calls go to the one with fewer calls in flight."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from support.rooms.events import until_hosts
from support.rooms.replicas import Pair
from toolbus import Key, KeyRing, RoomClient
from toolbus_server import ServerSettings
from toolbus_server.testing import running_server

KEY = Key.generate(kid="test", iss="acme")


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


async def test_no_call_goes_to_a_host_in_reserve_even_after_a_restart() -> None:
    """CALL-21, REG-10."""
    pair = Pair()
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        async with running_server(key=KEY) as first:
            settings = ServerSettings(keys=KeyRing([]), port=first.server.port)
            await pair.join(first, stack)
            alice = await stack.enter_async_context(first.room("alice"))
            assert await where_calls_go(alice, pair) == ["quick"] * 50
        async with running_server(key=KEY, settings=settings):
            await until_hosts(alice, "work", 2)
            assert await where_calls_go(alice, pair) == ["quick"] * 50


async def test_of_two_hosts_the_faster_one_serves_most_calls() -> None:
    pair = Pair(slow_s=0.1)

    async def keep_calling(alice: RoomClient) -> None:
        while pair.served["slow"] < 20:
            await alice.call("work.run")

    async with AsyncExitStack() as stack, asyncio.timeout(60):
        server = await stack.enter_async_context(running_server(key=KEY))
        await pair.join(server, stack)
        alice = await stack.enter_async_context(server.room("alice"))
        await asyncio.gather(*(keep_calling(alice) for _ in range(8)))
    assert pair.served["quick"] > 3 * pair.served["slow"]
