"""A node with a thousand participants is killed: all join others, and others' calls continue."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.deploy.balancer import balancer
from support.nodes.cluster import until_listed
from support.processes.many_clients import Caller, echo, many_clients
from support.processes.server_process import server_process
from support.redis.server import redis_server
from toolbus import RoomClient, Toolkit


async def move(listed: int, folder: Path) -> list[float]:
    """Kill the node of many participants; return how long each took to join another one."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server())
        servers = [
            await stack.enter_async_context(server_process(folder, "--redis", redis.url))
            for _ in range(3)
        ]
        address = await stack.enter_async_context(balancer())
        address.lead_to(servers[0].url)
        host = await stack.enter_async_context(servers[1].room("host"))
        await stack.enter_async_context(host.host(Toolkit("t", [echo])))
        alice = await stack.enter_async_context(servers[2].room("alice"))
        await until_listed(alice, "t")
        gathered = await stack.enter_async_context(many_clients(servers[0], listed, address.url))
        address.lead_to(servers[1].url, servers[2].url)
        caller = Caller(alice)
        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            group.create_task(caller.run())
            await gathered.say("wait")
            await servers[0].end(signal.SIGKILL)
            took = sorted(await gathered.until_reconnected())
            caller.is_over = True
        assert caller.calls
        await until_so_many(alice, listed + 2)
        return took


async def until_so_many(room: RoomClient, count: int) -> None:
    """Wait until exactly this many are listed, within a lease."""
    async with asyncio.timeout(60):
        while len(await room.participants()) != count:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.2)


async def test_participants_of_a_killed_node_soon_join_another(tmp_path: Path) -> None:
    """CONN-16, LEAVE-4: none is refused for good, and no call of others fails."""
    took = await move(300, tmp_path)
    assert len(took) == 300


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_two_thousand_of_a_node_that_is_killed_are_in_at_others_soon(tmp_path: Path) -> None:
    """The same with more."""
    took = await move(2_000, tmp_path)
    assert len(took) == 2_000
    assert took[int(2_000 * 0.99)] < 30.0
