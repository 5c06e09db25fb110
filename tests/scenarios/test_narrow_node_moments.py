"""What happens between two nodes in the moment in which they do not know the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from scenarios.test_nodes import add, hosted, nodes, until_listed, until_there
from support.raw_client import bearer, raw_connection, raw_participant
from support.redis_relay import Fate, is_order
from support.redis_server import RedisServer, redis_server
from support.relayed_nodes import node_of, relayed_nodes
from toolbus import ApiScope, ParticipantToken, RoomClient, Toolkit
from toolbus.errors import PermissionDenied
from toolbus_server.nodes import node as node_module
from toolbus_server.testing import TestServer

TIME_S = 30


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def chief_of(server: TestServer, room: str = "lab") -> RoomClient:
    """Make one who may look after all rooms."""
    token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(server.key)
    return RoomClient(server.url, room=room, token=token)


async def test_of_two_who_claim_to_be_one_connection_the_first_stays(redis: RedisServer) -> None:
    """CONN-5: at one server the second is refused; at another it is closed as soon as both know."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there), here.room("me") as me:
        async with raw_participant(here, "twin", instance="one"):
            await until_there(me, "twin")
            async with raw_connection(there.url) as second:
                path = "/rooms/lab?instance=one&epoch=1"
                await second.upgrade(path, bearer(there.token("twin")))
                assert await second.closed_by_both() == 4409
            people = [each.name for each in await me.participants()]
            assert people == ["me", "twin"]
        async with there.room("other") as other:
            while [each.name for each in await other.participants()] != ["me", "other"]:
                pass


async def test_who_comes_and_goes_while_redis_refuses_to_write_is_told_of_afterwards(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_module, "BEAT_S", 100.0)  # no beat is refused, so no line ends
    monkeypatch.setattr(node_module, "LEASE_S", 300.0)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("me") as me, Redis.from_url(redis.url) as client:
            async with there.room("stays") as stays:
                async with there.room("goes"):
                    await until_there(me, "stays", "goes")
                    await client.config_set("min-replicas-to-write", 1)  # and it has none
                async with there.room("late"), stays.host(Toolkit("mine", [add]), public=False):
                    await client.config_set("min-replicas-to-write", 0)
                    await until_there(me, "late")
                    names = [each.name for each in await me.participants()]
                    assert names == ["late", "me", "stays"]
            await until_there(me, "me")
            async with there.room("last"):
                await until_there(me, "last")
                await client.config_set("min-replicas-to-write", 1)
                caplog.clear()
            while caplog.text.count("Redis refuses the script") < 2:  # that it left, and to purge
                await me.participants()
            await client.config_set("min-replicas-to-write", 0)
            while [each.name for each in await me.participants()] != ["me"]:
                pass


async def test_a_revocation_whose_parcel_is_lost_with_the_line_is_told_anew() -> None:
    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes:
        async with chief_of(nodes.here) as chief, nodes.there.room("bob") as bob:
            await until_there(chief, "bob")
            lost = nodes.here_way.going(is_order, Fate.LOST)
            await chief.admin("revoke", name="bob", issuer=bob.me.issuer)
            await lost.met.wait()
            assert [each.name for each in await chief.participants()] == ["bob", "chief"]
            nodes.here_way.cut()
            while node_of(nodes.here).is_joined.is_set():
                await chief.participants()
            nodes.here_way.mend()
            with pytest.raises(PermissionDenied):
                await bob.closed()


async def test_a_revocation_ends_no_connection_with_a_newer_token(redis: RedisServer) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        newer = ParticipantToken(name="bob", room=["lab"], api=ApiScope.full())
        minted = newer.to_jwt(there.key, now=time.time() + 30)
        async with chief_of(here) as chief, there.room("bob") as old:
            async with RoomClient(there.url, room="lab", token=minted) as bob:
                await until_there(chief, "bob")
                while len(await chief.participants()) < 3:
                    pass
                done = await chief.admin("revoke", name="bob", issuer=bob.me.issuer)
                assert done == {"closed": 1}
                with pytest.raises(PermissionDenied):
                    await old.closed()
                while len(await chief.participants()) > 2:
                    pass
                assert await bob.participants()


async def test_who_is_revoked_while_its_room_is_read_does_not_come_in(redis: RedisServer) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(here, add), chief_of(there, "office") as chief:
            async with here.room("me") as me:
                await until_listed(me, "kit")
                redis.freeze()
                async with raw_connection(there.url) as bob:
                    await bob.upgrade("/rooms/lab?epoch=1", bearer(there.token("bob")))
                    issuer = chief.me.issuer
                    await chief.admin("revoke", name="bob", issuer=issuer)
                    redis.thaw()
                    assert await bob.closed_by_both() == 4440
