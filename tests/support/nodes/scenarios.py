"""What participants do at nodes that share a Redis, for tests with any kind of Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import answer, ask, next_of, offer
from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.reserved_names import kept_in, lost_name
from support.nodes.tools import Holding, add, fail, numbers, size, total, who
from support.redis.server import RedisPlace, RedisServer
from support.rooms.events import next_toolkit_event, until_hosts
from toolbus import (
    ApiScope,
    ParticipantToken,
    RemoteToolkit,
    RoomClient,
)
from toolbus.errors import AlreadyExists, PermissionDenied, ToolFailed
from toolbus.wire import Dispatch, Unregister
from toolbus_server.testing import TestServer

TIME_S = 60


async def call_a_tool_at_another_node(redis: RedisPlace) -> None:
    """Call a tool whose host is at another node."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add, fail, who), here.room("me") as me:
            await until_listed(me, "kit")
            assert await me.call("kit.add", a=2, b=3) == 5
            assert await me.call("kit.who") == ["me", None]
            with pytest.raises(ToolFailed, match="no luck") as raised:
                await me.call("kit.fail")
            assert raised.value.executed == "yes"


async def pass_streams_inputs_and_files(redis: RedisPlace) -> None:
    """Stream, send an input and a file to a host at another node."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, numbers, total, size), here.room("me") as me:
            await until_listed(me, "kit")
            async with me.stream("kit.numbers", {"count": 2_000}) as chunks:
                assert [chunk.value async for chunk in chunks] == list(range(2_000))
            async with me.stream("kit.total", {}, input=range(1_000)) as chunks:
                assert [chunk.value async for chunk in chunks] == [sum(range(1_000))]
            counted = await me.invoke("kit.size", {}, attachment=b"x" * 3_000_000)
            assert counted.value == 3_000_000


async def keep_one_owner_of_a_public_name(redis: RedisPlace) -> None:
    """Refuse a public name that is taken at another node, until it is free."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("other") as other:
            with pytest.raises(AlreadyExists):
                await RemoteToolkit("kit", [add]).start(other)
        async with here.room("other") as other:
            kit = RemoteToolkit("kit", [add])  # its first owner registered it again
            await kit.start(other)


async def see_participants_and_messages(redis: RedisPlace) -> None:
    """Receive attributes and messages of a participant at another node."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with there.room("ann") as ann, ann.events(["messages"]) as received:
            async with here.room("bob") as bob:
                await ann.set_attributes(mood="fine")
                async with bob.events(["participants"]) as notices:
                    known = {each.name: each for each in await bob.participants()}
                    while "ann" not in known or not known["ann"].attributes:
                        person = (await anext(aiter(notices))).participant
                        assert person is not None
                        known[person.name] = person
                assert known["ann"].attributes == {"mood": "fine"}
                while not await bob.send("ann", "hello", {"text": "hi"}):
                    pass
                async for event in received:
                    assert event.message is not None
                    assert event.message.body == {"text": "hi"}
                    break


async def replace_a_connection(redis: RedisPlace) -> None:
    """Join with the same instance at another node."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        scope = ApiScope.full()
        async with here.room("me", instance="one", api=scope) as first:
            async with there.room("me", instance="one", api=scope) as second:
                with pytest.raises(PermissionDenied, match="replaced this one"):
                    await first.closed()
                assert (await second.participants())[0].name == "me"


async def kick_and_revoke(redis: RedisPlace) -> None:
    """Kick and revoke participants of another node."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(here.key)
        admins = RoomClient(here.url, room="lab", token=token)
        async with admins as administrator, there.room("ann") as ann, there.room("bob") as bob:
            await until_present(administrator, "ann", "bob")
            done = await administrator.admin("kick", room="lab", participant="ann")
            assert done == {"closed": 1}
            with pytest.raises(PermissionDenied):
                await ann.closed()
            issuer = bob.me.issuer
            assert await administrator.admin("revoke", name="bob", issuer=issuer) == {"closed": 1}
            with pytest.raises(PermissionDenied):
                await bob.closed()
            with pytest.raises(PermissionDenied):
                async with there.room("bob"):
                    pass


async def take_up_a_reserved_name(redis: RedisServer) -> None:
    """Register a name at another node than its last host's."""
    async with lost_name(redis) as (here, _, witness):
        async with raw_participant(here, "host") as host:
            assert (await ask(host, offer(generation=1)))["generation"] == 1
            await until_hosts(witness, "echo", 1)
            assert not [each for each in await kept_in(redis) if each.endswith(b"echo")]
            calling = asyncio.ensure_future(witness.call("echo.say"))
            answer(host, await next_of(host, Dispatch), [2, "back"])
            assert await calling == "back"
            async with witness.events(["toolkits"]) as notices, here.room("other") as other:
                with pytest.raises(AlreadyExists):
                    await RemoteToolkit("echo", [add]).start(other)
                await ask(host, Unregister(2, "echo", True))
                assert (await next_toolkit_event(notices)).name == "toolkit_removed"


def admin_of(server: TestServer, *rooms: str) -> RoomClient:
    """Make an administrator of rooms."""
    token = ParticipantToken(name="chief", room=list(rooms), api=ApiScope.full())
    return RoomClient(server.url, room="lab", token=token.to_jwt(server.key))


async def all_rooms(administrator: RoomClient, **options: Any) -> list[dict[str, Any]]:
    """List all pages of rooms."""
    page = await administrator.admin("rooms", **options)
    rooms: list[dict[str, Any]] = page["rooms"]
    while page["cursor"] is not None:
        page = await administrator.admin("rooms", **options, cursor=page["cursor"])
        rooms += page["rooms"]
    return rooms


async def count_calls_once(
    redis: RedisServer,
) -> None:
    """Count the calls of rooms whose callers and hosts are at two nodes."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        holding = Holding()
        async with (
            hosted(there, holding.tool),
            here.room("ann") as ann,
            here.room("bob", room="attic") as bob,
            hosted(there, add, name="sign"),
            admin_of(here, "*") as administrator,
            admin_of(there, "*") as other,
        ):
            await until_present(administrator, "host", "ann")
            await until_listed(ann, "kit")
            held = asyncio.ensure_future(ann.call("kit.hold"))
            await holding.began.wait()
            for each in (administrator, other):
                calls = {room["name"]: room["calls"] for room in await all_rooms(each)}
                assert calls == {"attic": 0, "lab": 1}
            held.cancel()
            assert bob.me.name == "bob"
