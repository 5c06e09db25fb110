"""Nodes without Redis: one alone hands over its participants; if all are, they keep them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from support.clients.plain_http import numbers_at, read
from support.clients.raw_client import raw_participant
from support.clients.raw_requests import ask, offer
from support.deploy.balancer import balancer
from support.deploy.haproxy import haproxy_program, running_haproxy
from support.nodes.cluster import until_listed
from support.nodes.kits import Kit, error_of
from support.nodes.processes import node_processes
from support.nodes.relayed import RelayedNodes, node_of, relayed_nodes
from support.nodes.tools import add
from support.processes.server_process import ServerProcess
from support.redis.relay import redis_relay
from support.redis.server import RedisServer, redis_server
from support.rooms.events import until, until_hosts
from toolbus import RoomClient, RoomException, Toolkit, tool
from toolbus.cli.commands.doctor import check_room
from toolbus.cli.room_options import RoomOptions
from toolbus_server.cluster import isolation as isolation_module
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.isolation import ALONE_TEXT, ISOLATED_TEXT, READY_TEXT, Isolation
from toolbus_server.testing import TestServer
from toolbus_server.websocket import leaving

TIME_S = 60
QUICK = (
    "-c",
    """
from toolbus_server.cluster import isolation, node
isolation.ISOLATED_AFTER_S, isolation._ROUND_S = 2.0, 0.1
node.HEARTBEAT_S = 0.5
from toolbus.__main__ import main
main()
""",
)
"""As `toolbus`, with shorter times, so that tests need not wait for them."""


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RelayedNodes]:
    """Run two nodes that know each other's address, with short times."""
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(isolation_module, "ISOLATED_AFTER_S", 1.0)
    monkeypatch.setattr(isolation_module, "_ROUND_S", 0.1)
    monkeypatch.setattr(leaving, "_AGAIN_S", 0.2)
    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes:
        isolations = [node_of(each).isolation for each in (nodes.here, nodes.there)]
        await until(lambda: all(each.addresses for each in isolations))
        yield nodes


def names_at(server: TestServer) -> set[str]:
    """Return the names of a node's own participants."""
    room = server.server.hub.rooms.get("lab")
    sessions = () if room is None else room.sessions.values()
    return {each.connection.participant.identity.name for each in sessions}


async def readiness(server: TestServer) -> tuple[int, str]:
    answer = await read(server.url, "/readyz")
    return answer.status, answer.body


async def doctor_finding(server: TestServer) -> tuple[str, str]:
    """Return the status and text of the doctor's check `ready` of a node."""
    options = RoomOptions(url=server.url, room="lab", token=server.token("doctor"))
    finding = next(each for each in await check_room(options) if each.check == "ready")
    return finding.status, finding.found


async def test_isolated_node_hands_its_participants_over_and_no_call_fails(
    nodes: RelayedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """LEAVE-11: hosts and callers move, and a call in flight ends where it began."""
    here, kit = nodes.here, Kit(nodes.here, "kit")
    async with balancer() as address:
        address.lead_to(here.url)

        def room(name: str) -> RoomClient:
            return RoomClient(address.url, room="lab", token=here.token(name))

        async with room("host") as host, room("me") as me, nodes.there.room("other") as other:
            async with host.host(Toolkit("kit", [add, kit.holding.tool])):
                await until_listed(other, "kit")
                in_flight = asyncio.create_task(me.invoke("kit.hold", retry=False))
                await kit.holding.began.wait()
                address.lead_to(here.url, nodes.there.url)
                nodes.here_way.cut()
                calls = [each.call("kit.add", a=1, b=2) for each in (me, other) for _ in range(3)]
                assert await asyncio.gather(*calls) == [3] * 6
                await until(lambda: names_at(nodes.there) == {"host", "me", "other"})
                assert await readiness(here) == (404, ISOLATED_TEXT)
                assert await doctor_finding(here) == ("warn", ISOLATED_TEXT.strip())
                assert (await read(here.url, "/healthz")).status == 200
                numbers = await numbers_at(here.url)
                assert (numbers["toolbus_redis_up"], numbers["toolbus_node_isolated"]) == (0, 1)
                assert numbers["toolbus_redis_outage_seconds"] > 0
                assert await readiness(nodes.there) == (200, READY_TEXT)
                kit.holding.is_over.set()
                assert (await in_flight).value is None
                await until(lambda: not names_at(here))
                nodes.here_way.mend()
                await node_of(here).is_joined.wait()
                assert await readiness(here) == (200, READY_TEXT)
                assert await doctor_finding(here) == ("ok", "accepts participants")
                assert (await numbers_at(here.url))["toolbus_redis_up"] == 1
                assert await me.call("kit.add", a=1, b=2) == 3
    lines = [each.getMessage() for each in caplog.records]
    assert sum(line.startswith("Redis is unavailable") for line in lines) == 1
    assert sum(line.startswith("Redis is available again") for line in lines) == 1


async def test_without_redis_for_all_each_node_stays_ready_and_keeps_its_participants(
    nodes: RelayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    asks = Isolation._others_have_redis

    async def recorded(self: Isolation) -> bool:
        found.append(await asks(self))
        return found[-1]

    monkeypatch.setattr(Isolation, "_others_have_redis", recorded)
    async with nodes.here.room("me") as me, me.host(Toolkit("kit", [add])):
        await nodes.redis.kill()
        await until(lambda: len(found) > 30 and not any(found[-10:]))
        for server in (nodes.here, nodes.there):
            assert await readiness(server) == (200, ALONE_TEXT)
            assert await doctor_finding(server) == ("warn", ALONE_TEXT.strip())
        assert names_at(nodes.here) == {"me"}
        async with nodes.here.room("newcomer") as newcomer:
            assert await newcomer.call("kit.add", a=1, b=2) == 3


async def test_participants_stay_at_an_isolated_node_if_no_other_server_is_reached(
    nodes: RelayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEAVE-11, CONN-4: they know only its address, and it refuses `elsewhere=1`.

    LEAVE-12: a missing host may have moved, or may not be published again.
    """
    monkeypatch.setattr(node_module, "_SETTLE_S", TIME_S)
    here = nodes.here
    async with here.room("me") as me, me.host(Toolkit("mine", [add])):
        async with raw_participant(here, "host") as host:
            await ask(host, offer())
            host.abort()
        await until_hosts(me, "echo", 0)
        nodes.here_way.cut()
        refused = here.server.admission.refused
        while refused["not_elsewhere"] < 3:
            assert await me.call("mine.add", a=1, b=2) == 3
        error = await error_of(me.invoke("echo.say", retry=False))
        assert (error.code, error.executed) == ("unavailable", "no")
        nodes.here_way.mend()
        await node_of(here).is_joined.wait()
        assert (await error_of(me.invoke("echo.say", retry=False))).code == "unavailable"
        assert names_at(here) == {"me"}


class Load:
    """Callers that make one call after the other of the toolkits `kit0`, `kit1`, `kit2`."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.failed: list[RoomException] = []
        self._numbers = count()

    def toolkit(self, name: str) -> Toolkit:
        @tool
        async def once(number: int) -> int:
            """Run once."""
            self.runs[number] += 1
            return number

        return Toolkit(name, [once])

    async def call_repeatedly(self, caller: RoomClient) -> None:
        for number in self._numbers:
            try:
                await caller.call(f"kit{number % 3}.once", number=number)
            except RoomException as error:
                self.failed.append(error)
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self, callers: list[RoomClient]) -> AsyncIterator[None]:
        """Call until the block ends."""
        tasks = [asyncio.create_task(self.call_repeatedly(each)) for each in callers]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until_addresses_are_known(redis: RedisServer, nodes: int) -> None:
    """Wait until each node has renewed its lease twice after all had published their address."""
    async with Redis.from_url(redis.url) as client:
        while await client.hlen("toolbus:nodes:addresses") < nodes:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        for _ in range(2):
            before = await leases(client)
            while before.items() & (await leases(client)).items():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)


async def leases(client: Redis) -> dict[bytes, float]:
    """Return the time at which the lease of each node expires."""
    found: Any = await client.zrange("toolbus:nodes:leases", 0, -1, withscores=True)
    return dict(found)


async def until_empty(node: ServerProcess) -> None:
    """Wait until a node has no participant."""
    while (await numbers_at(node.url))["toolbus_participants"]:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)


@pytest.mark.long
async def test_behind_a_balancer_a_node_that_alone_loses_redis_fails_only_calls_in_flight(
    tmp_path: Path,
) -> None:
    """LEAVE-11: three processes behind haproxy with the configuration of `deploy/`, under load."""
    haproxy_program()
    async with asyncio.timeout(TIME_S), AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server())
        way = await stack.enter_async_context(redis_relay(redis.port))
        running = node_processes(tmp_path, way.url, redis.url, redis.url, program=QUICK)
        nodes = await stack.enter_async_context(running)
        places = {f"node-{n}": urlsplit(node.url).netloc for n, node in enumerate(nodes, 1)}
        address = stack.enter_context(running_haproxy(tmp_path, places))

        async def join(name: str) -> RoomClient:
            room = RoomClient(address.url, room="lab", token=nodes[0].token(name))
            return await stack.enter_async_context(room)

        load = Load()
        for number in range(3):
            host = await join(f"host-{number}")
            await stack.enter_async_context(host.host(load.toolkit(f"kit{number}")))
        callers = [await join(f"caller-{number}") for number in range(3)]
        await asyncio.gather(*(until_listed(each, f"kit{n}") for each in callers for n in range(3)))
        await until_addresses_are_known(redis, len(nodes))
        async with load.running(callers):
            way.cut()
            await until_empty(nodes[0])
            way.mend()
            while (await read(nodes[0].url, "/readyz")).body != READY_TEXT:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        assert len(load.runs) > len(callers)
        assert {error.executed for error in load.failed} <= {"maybe"}
        assert len(load.failed) <= len(callers)  # each had one call in flight at the cut
        assert max(load.runs.values()) == 1
