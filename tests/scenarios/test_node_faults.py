"""Nodes that die, freeze and come back, and a Redis that does: what callers are told, and when."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scenarios.test_nodes import add, hosted, nodes, until_listed
from support.node_kits import until_works
from support.redis_server import RedisServer
from support.server_process import ServerProcess, server_process
from toolbus import Toolkit, Unavailable, tool

TIME_S = 40


# As `toolbus`, with leases that end sooner: nobody has to wait for the whole of one.
SHORT_LEASES = """
from toolbus_server.nodes import node
node.LEASE_S, node.BEAT_S = 3.0, 0.5
from toolbus_command import main
main()
"""


@asynccontextmanager
async def two_processes(
    folder: Path, redis: RedisServer, program: tuple[str, str] = ("-m", "toolbus")
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """Run two servers that share a Redis."""
    async with server_process(folder, "--redis", redis.url, program=program) as here:
        async with server_process(folder, "--redis", redis.url, program=program) as there:
            yield here, there


@pytest.mark.redis
@pytest.mark.row(73)
@pytest.mark.row(74)
async def test_while_redis_is_away_a_node_goes_on_by_itself_and_comes_back(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("far") as far, there.room("near") as near:
            await until_listed(far, "kit")
            await redis.kill()
            assert await near.call("kit.add", a=1, b=1) == 2
            with pytest.raises(Unavailable) as raised:
                await far.invoke("kit", "add", {"a": 1, "b": 1}, retry=False)
            assert raised.value.executed == "no"
            async with there.room("late") as late:
                assert await late.call("kit.add", a=1, b=1) == 2
                with pytest.raises(Unavailable):
                    async with late.host(Toolkit("new", [add])):
                        pass
            await redis.start()
            await until_works(far)
            names = {each.name for each in await far.participants()}
            assert names == {"far", "near", "host"}


@pytest.mark.row(78)
async def test_a_node_that_was_frozen_for_longer_than_its_lease_joins_anew(
    redis: RedisServer, tmp_path: Path
) -> None:
    @tool
    async def one() -> int:
        """Give 1."""
        return 1

    nodes_of = two_processes(tmp_path, redis, ("-c", SHORT_LEASES))
    async with asyncio.timeout(TIME_S), nodes_of as (here, there):
        async with there.room("host") as host, here.room("me") as me:
            async with host.host(Toolkit("kit", [one])), me.events(["participants"]) as news:
                await until_listed(me, "kit")
                there.signal(signal.SIGSTOP)
                async for event in news:
                    if event.name == "participant_left":
                        break
                there.signal(signal.SIGCONT)
                async for event in news:
                    if event.name == "participant_joined":
                        break
                await until_listed(me, "kit")
                assert await me.call("kit.one") == 1
