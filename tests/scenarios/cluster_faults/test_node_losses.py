"""What callers get for calls to other nodes when a host, a node or Redis is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.nodes.cluster import hosted, nodes, until_listed
from support.nodes.kits import error_of
from support.nodes.processes import node_processes
from support.nodes.tools import add
from support.processes.host_process import host_process
from support.redis.server import RedisServer
from support.rooms.events import listed, until_hosts
from support.rooms.server_state import INTERVAL_S, SILENCE_S, connection_of, until_in_flight
from toolbus import ChunkStream, InputStream, RoomClient, Toolkit, tool
from toolbus.errors import DeadlineExceeded, HostLost, NoHost, StreamBroken, Unavailable
from toolbus.room.room import connection_of as client_connection_of
from toolbus_server.testing import FaultProxy, Faults, TestServer

TIME_S = 60
IDEMPOTENT_S = 15.0
"""The timeout of the idempotent call, which is repeated that long while Redis is unavailable."""
IMPATIENT: dict[str, Any] = {"ping_interval_s": INTERVAL_S, "ping_timeout_s": SILENCE_S}


class Work:
    """A toolkit whose calls run until they are stopped.

    Args:
        is_spare: Whether calls of its idempotent tool end by themselves.
    """

    def __init__(self, *, is_spare: bool = False) -> None:
        self.began = {each: asyncio.Event() for each in ("once", "again", "takes")}

        @tool
        async def once() -> None:
            """Run once."""
            self.began["once"].set()
            await asyncio.Event().wait()

        @tool(idempotent=True)
        async def again() -> str:
            """Run any number of times."""
            self.began["again"].set()
            if not is_spare:
                await asyncio.Event().wait()
            return "done"

        @tool
        async def gives() -> AsyncIterator[int]:
            """Yield a number, then nothing."""
            yield 1
            await asyncio.Event().wait()

        @tool
        async def takes(rows: InputStream[int]) -> None:
            """Read a number, then nothing."""
            async for _ in rows:
                self.began["takes"].set()
                await asyncio.Event().wait()

        self.toolkit = Toolkit("work", [once, again, gives, takes])


class Calls:
    """Calls of all kinds to one host, in flight.

    Args:
        room: The caller.
        work: The toolkit that they run.
    """

    def __init__(self, room: RoomClient, work: Work) -> None:
        self.room = room
        self.work = work

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Calls]:
        """Begin them, and wait until each runs."""
        self.once = asyncio.ensure_future(self.room.invoke("work.once"))
        self.again = asyncio.ensure_future(self.room.invoke("work.again", timeout_s=IDEMPOTENT_S))
        self.upload = asyncio.ensure_future(self._upload())
        async with self.room.stream("work.gives") as chunks:
            assert (await anext(chunks)).value == 1
            self.rest = asyncio.ensure_future(_next(chunks))
            for began in self.work.began.values():
                await began.wait()
            yield self

    async def _upload(self) -> None:
        async with self.room.stream("work.takes", input=range(1)) as chunks:
            await anext(chunks)


async def _next(chunks: ChunkStream) -> None:
    await anext(chunks)


@pytest.mark.long
async def test_a_killed_node_is_as_many_lost_hosts_to_callers_at_the_others(
    redis: RedisServer, tmp_path: Path
) -> None:
    """CALL-13, REG-18, RETRY-2, guarantee "host's node is killed": within its lease."""
    work, spare = Work(), Work(is_spare=True)
    async with (
        asyncio.timeout(TIME_S),
        node_processes(tmp_path, redis.url, redis.url) as (here, there),
        there.room("host") as host,
        host.host(work.toolkit),
        there.room("single") as single,
        single.host(Toolkit("alone", [add])),
        here.room("me") as me,
        AsyncExitStack() as spares,
    ):
        await until_listed(me, "work")
        await until_listed(me, "alone")
        async with Calls(me, work).running() as calls:
            second = await spares.enter_async_context(here.room("host"))
            await spares.enter_async_context(second.host(spare.toolkit))
            await until_hosts(me, "work", 2)
            await there.end(signal.SIGKILL)
            with pytest.raises(Unavailable) as unsent:
                await me.invoke("alone.add", {"a": 1, "b": 1}, retry=False)
            assert unsent.value.executed == "no"
            lost = await error_of(calls.once)
            assert isinstance(lost, HostLost)
            assert lost.executed == "maybe"
            assert [each.name for each in await me.participants()] == ["host", "me"]
            assert (await calls.again).value == "done"
            for end in (await error_of(calls.rest), await error_of(calls.upload)):
                assert isinstance(end, HostLost | StreamBroken)
                assert end.executed == "maybe"
            hosts = {each.name: each.hosts for each in await listed(me)}
            assert hosts == {"work": 1, "alone": 0}
            with pytest.raises(NoHost):
                await me.invoke("alone.add", {"a": 1, "b": 1}, retry=False)


async def test_calls_between_nodes_end_when_redis_is_lost_and_others_go_on(
    redis: RedisServer,
) -> None:
    """Guarantee "Redis is unavailable", by phase: they may have run, and an idempotent one is
    retried.
    """
    work = Work()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with (
            there.room("host") as host,
            host.host(work.toolkit),
            here.room("far") as far,
            there.room("near") as near,
        ):
            await until_listed(far, "work")
            within = asyncio.ensure_future(near.invoke("work.once"))
            async with Calls(far, work).running() as calls:
                await redis.kill()
                for call in (calls.once, calls.rest, calls.upload):
                    end = await error_of(call)
                    assert isinstance(end, Unavailable), end
                    assert end.executed == "maybe"
                # Its last attempt may begin before its deadline and be answered after it.
                last = await error_of(calls.again)
                assert isinstance(last, Unavailable | DeadlineExceeded), last
                assert last.executed == "maybe"
                with pytest.raises(Unavailable) as raised:
                    await far.invoke("work.once", retry=False)
                assert raised.value.executed == "no"
            assert not within.done()
            within.cancel()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_host_that_is_killed_is_gone_from_all_nodes_and_its_call_ends_once(
    redis: RedisServer, tmp_path: Path, is_silent: bool
) -> None:
    """CONN-7, CALL-8, CALL-13, REG-18: also if its node does not notice the lost connection."""
    async with (
        asyncio.timeout(TIME_S),
        nodes(redis, **IMPATIENT) as (here, there),
        hosted(there, add),
        FaultProxy(there.url) as proxy,
        here.room("far") as far,
        there.room("near") as near,
        host_process(there, tmp_path / "w", hold=True, via=proxy) as host,
    ):
        await until_hosts(far, "work", 1)
        once = asyncio.ensure_future(far.invoke("work.wait"))
        await host.wrote("began wait")
        if is_silent:
            proxy.to_server = proxy.to_participant = Faults(lost=True)
        await host.kill()
        lost = await error_of(once)
        assert isinstance(lost, HostLost)
        assert (lost.executed, lost.retryable) == ("maybe", False)
        for room in (far, near):
            await until_hosts(room, "work", 0)
            assert {each.name: each.hosts for each in await listed(room)} == {"kit": 1, "work": 0}
            absent = await error_of(asyncio.ensure_future(room.invoke("work.wait", retry=False)))
            assert isinstance(absent, NoHost)
            assert absent.executed == "no"
        assert await far.call("kit.add", a=1, b=1) == 2  # by the path that a second end would take
        assert client_connection_of(far)._pending.dropped == 0
        for server in (here, there):
            router = server.server.hub.router
            assert (router.in_flight, router.dropped) == (0, 0)


async def test_a_host_that_stood_still_is_lost_meanwhile_and_serves_again_at_all_nodes(
    redis: RedisServer, tmp_path: Path
) -> None:
    """CONN-7, CONN-11, CALL-8, RETRY-2: another host takes over what may run again."""
    async with (
        asyncio.timeout(TIME_S),
        nodes(redis, **IMPATIENT) as (here, there),
        here.room("far") as far,
        there.room("near") as near,
        host_process(there, tmp_path / "one", hold=True) as one,
    ):
        await until_hosts(far, "work", 1)
        before = connection_of(there, "host").participant
        once = asyncio.ensure_future(far.invoke("work.wait"))
        again = asyncio.ensure_future(far.invoke("work.wait_again"))
        await one.wrote("began wait")
        await one.wrote("began wait_again")
        async with host_process(here, tmp_path / "two") as two:
            await until_hosts(near, "work", 2)
            # This one ends while its host is suspended: what the host reports of it is too late.
            nap = asyncio.ensure_future(near.invoke("work.nap", {"seconds": SILENCE_S - 0.1}))
            await until_in_flight(there, 3)
            one.stop()
            for call in (once, nap):
                lost = await error_of(call)
                assert isinstance(lost, HostLost)
                assert lost.executed == "maybe"
            assert (await again).value == "free"
            assert (two.count("began wait"), two.count("ended wait_again")) == (0, 1)
            for room in (far, near):
                await until_hosts(room, "work", 1)
            one.go_on()
            for room in (far, near):
                await until_hosts(room, "work", 2)
        for room, server in ((far, here), (near, there)):
            await until_hosts(room, "work", 1)
            assert await room.call("work.nap", seconds=0) == 0
            [epoch] = epochs_of(server, before.instance)
            assert epoch > before.epoch
            assert server.server.hub.router.in_flight == 0


def epochs_of(server: TestServer, instance: str) -> list[int]:
    """Return the epoch of each connection of an instance at a server."""
    connections = server.server.hub.rooms["lab"].routed.connections.values()
    return [
        connection.participant.epoch
        for connection in connections
        if connection.participant.instance == instance
    ]
