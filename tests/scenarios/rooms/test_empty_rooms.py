"""Rooms that all participants have left: names that are reserved in them stay reserved."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import cast

import pytest
from redis.asyncio import Redis

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import ask, offer
from support.nodes.cluster import nodes, until_listed
from support.nodes.processes import SHORT_LEASES, node_processes
from support.nodes.reserved_names import kept_in
from support.nodes.tools import add
from support.processes.host_process import host_process
from support.processes.server_process import resident_bytes, server_process
from support.redis.server import RedisServer
from support.rooms.events import listed, next_toolkit_event
from toolbus import AgentsGrant, ApiScope, NoHost, NotFound, RemoteToolkit, RoomClient, Toolkit
from toolbus.auth.keys import KeyRing
from toolbus.errors import AlreadyExists
from toolbus_server import identity_usage
from toolbus_server.limits import Limits
from toolbus_server.registry.models import Identity
from toolbus_server.registry.toolkit_definition import Definition
from toolbus_server.rooms import hub
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

TIME_S = 60
RESERVED = Limits(reservation_ms=1_500)


async def lose_only_participant(server: TestServer, room: str = "lab") -> None:
    """Host `echo` in a room where no one else is, and lose the host."""
    async with raw_participant(server, "host", room=room) as host:
        await ask(host, offer())
        host.abort()
    while room in server.server.hub.rooms:  # noqa: ASYNC110 - a room has no event for its end
        await asyncio.sleep(0)


async def check_reserved(late: RoomClient, tool: str = "echo.say") -> None:
    """Check that a name is reserved for another participant."""
    name = tool.partition(".")[0]
    assert [(toolkit.name, toolkit.hosts) for toolkit in await listed(late)] == [(name, 0)]
    with pytest.raises(NoHost) as absent:
        await late.invoke(tool, retry=False)
    assert (absent.value.executed, absent.value.retryable) == ("no", True)
    with pytest.raises(AlreadyExists):
        await RemoteToolkit(name, [add]).start(late)


async def check_freed(late: RoomClient, name: str = "echo") -> None:
    """Check that the name is freed after a while, once."""
    async with late.events(["toolkits"]) as events:
        if await listed(late):
            assert (await next_toolkit_event(events)).name == "toolkit_removed"
    with pytest.raises(NotFound):
        await late.invoke(f"{name}.say", retry=False)
    async with late.host(Toolkit(name, [add])):
        assert await late.call(f"{name}.add", a=1, b=2) == 3


async def test_name_of_the_last_participant_stays_reserved_in_an_empty_room() -> None:
    """REG-18."""
    settings = ServerSettings(keys=KeyRing([]), port=0, limits=RESERVED)
    async with asyncio.timeout(TIME_S), running_server(settings=settings) as server:
        await lose_only_participant(server)
        async with server.room("late") as late:
            await check_reserved(late)
        async with server.room("later") as later:
            await check_freed(later)


async def test_owner_returns_to_an_empty_room_with_its_generation() -> None:
    """REG-10, REG-18."""
    async with asyncio.timeout(TIME_S), running_server() as server:
        await lose_only_participant(server)
        async with raw_participant(server, "host", epoch=2) as host:
            assert (await ask(host, offer(generation=1)))["generation"] == 1
            async with server.room("late") as late:
                assert [(toolkit.name, toolkit.hosts) for toolkit in await listed(late)] == [
                    ("echo", 1)
                ]


async def test_names_in_empty_rooms_are_bounded_and_those_of_the_first_room_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-18."""
    monkeypatch.setattr(hub, "MAX_PARKED_NAMES", 2)
    async with asyncio.timeout(TIME_S), running_server() as server:
        for room in ("one", "two", "three"):
            await lose_only_participant(server, room)
        async with server.room("late", room="one") as late:
            assert await listed(late) == []
        async with server.room("late", room="two") as late:
            await check_reserved(late)


async def test_name_outlives_an_empty_room_at_all_nodes(redis: RedisServer) -> None:
    """REG-18: afterwards Redis has nothing of the room."""
    async with asyncio.timeout(TIME_S), nodes(redis, limits=RESERVED) as (here, there):
        await lose_only_participant(there)
        async with here.room("late") as late:
            await check_reserved(late)
            assert len(await kept_in(redis)) == 2
        async with there.room("later") as later:
            await check_freed(later)


async def test_name_of_a_killed_node_stays_reserved_in_an_empty_room(
    redis: RedisServer, tmp_path: Path
) -> None:
    """REG-18: until the lease of that node expires, its host counts as connected."""
    async with (
        asyncio.timeout(TIME_S),
        node_processes(tmp_path, redis.url, redis.url, program=SHORT_LEASES) as (here, there),
    ):
        async with host_process(there, tmp_path / "w") as host:
            async with here.room("before") as before:
                await until_listed(before, "work")
            there.signal(signal.SIGKILL)
            await host.kill()
        # A participant that waits for an event would keep the room.
        while await kept_in(redis) == []:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with here.room("late") as late:
            await check_reserved(late, "work.nap")


async def lose_host_of(server: TestServer, room: str, text: str = "x") -> None:
    """Host a toolkit whose manifest has 100 KB in a room of its own, and lose the host."""
    tools = [
        {"name": "run", "description": text * 50_000, "input_schema": {"title": text * 50_000}}
    ]
    async with raw_participant(server, "mallory", room=room) as host:
        await ask(host, offer({"name": "big", "tools": tools}))
        host.abort()
    while room in server.server.hub.rooms:  # noqa: ASYNC110 - a room has no event for its end
        await asyncio.sleep(0)


def stored_manifest_bytes() -> int:
    """Measure the packed manifests that exist in this process."""
    gc.collect()
    found = [definition for definition in gc.get_objects() if isinstance(definition, Definition)]
    return sum(len(definition.packed) for definition in found)


async def test_names_in_empty_rooms_are_stored_without_manifests_up_to_a_limit_of_their_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-18: rooms of one identity; the name of another one is kept beside them."""
    monkeypatch.setattr(identity_usage, "MAX_PARKED_NAMES", 5)
    async with asyncio.timeout(TIME_S), running_server() as server:
        before = stored_manifest_bytes()
        for number in range(20):
            await lose_host_of(server, f"r{number}")
        await lose_only_participant(server)
        hub = server.server.hub
        assert len(hub.parked) == 6
        assert stored_manifest_bytes() - before < 20_000
        assert hub.usages.of(Identity("toolbus-test", "mallory")).manifest_bytes == 0
        async with server.room("late", room="r5") as late:
            assert await listed(late) == []
        async with server.room("late", room="r4") as late:
            await check_reserved(late, "big.run")
        async with server.room("late") as late:
            await check_reserved(late)


async def test_name_without_manifest_shows_nothing_to_those_without_a_grant_for_it() -> None:
    """REG-15, REG-18: `describe` is `no_host`."""
    async with asyncio.timeout(TIME_S), running_server() as server:
        await lose_only_participant(server)
        async with server.room("late") as late:
            with pytest.raises(NoHost):
                await late.toolkit("echo")
        narrow = ApiScope(agents=AgentsGrant(use_tools=True, call=True, deny=["echo"]))
        async with server.room("eve", api=narrow) as eve:
            assert await listed(eve) == []
            with pytest.raises(NotFound):
                await eve.invoke("echo.say", retry=False)


async def test_redis_keeps_names_in_empty_rooms_without_manifests_up_to_a_limit_of_their_owner(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-18."""
    monkeypatch.setattr(identity_usage, "MAX_PARKED_NAMES", 5)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        for number in range(20):
            await lose_host_of(here, f"r{number}")
        wanted = {f"r{number}" for number in range(5)}
        while (stored := await stored_by_room(redis)).keys() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert max(stored.values()) < 1_000
        async with there.room("late", room="r4") as late:
            await check_reserved(late, "big.run")


async def stored_by_room(redis: RedisServer) -> dict[str, int]:
    """Return the rooms of which Redis has anything, with the bytes of all their facts."""
    sizes = dict[str, int]()
    async with Redis.from_url(redis.url, driver_info=None) as client:
        async for key in client.scan_iter("toolbus:{r:*"):
            room = key.decode().partition("{r:")[2].partition("}")[0]
            facts = await client.hvals(key) if key.endswith(b":facts") else []
            sizes[room] = sizes.get(room, 0) + sum(map(len, facts))
    return sizes


@pytest.mark.soak
async def test_thousands_of_rooms_of_one_token_take_little_memory(tmp_path: Path) -> None:
    """REG-18: 2,000 rooms with a toolkit of 200 KB each, all of which end."""
    tools = [{"name": "run", "input_schema": {"title": "x" * 200_000}}]
    async with server_process(tmp_path) as server:
        there = cast(TestServer, server)

        async def lose(room: str) -> None:
            token = server.token("mallory", room="*")
            async with raw_participant(there, token=token, room=room) as host:
                await ask(host, offer({"name": "big", "tools": tools}))
                host.abort()

        await lose("first")
        before, most = resident_bytes(server.pid), 0
        for number in range(2_000):
            await lose(f"r{number}")
            most = max(most, resident_bytes(server.pid) - before)
        sys.stdout.write(f"grew by {most / 2**20:.0f} MiB\n")
        assert most < 100 * 2**20
