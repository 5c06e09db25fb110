"""What happens between two nodes while they do not know the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.clients.raw_client import bearer, raw_connection, raw_participant
from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.relayed import node_of, relayed_nodes
from support.nodes.tools import add
from support.redis.relay import Fate, is_admin_action
from support.redis.server import RedisServer, redis_server
from toolbus import ApiScope, ParticipantToken, RoomClient, Toolkit
from toolbus.errors import PermissionDenied
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.lease import RefusalLog
from toolbus_server.testing import TestServer

TIME_S = 60


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


def admin_of(server: TestServer, room: str = "lab") -> RoomClient:
    """Make an administrator of all rooms."""
    token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(server.key)
    return RoomClient(server.url, room=room, token=token)


async def test_first_of_two_connections_that_claim_one_identity_stays(redis: RedisServer) -> None:
    """CONN-5: at one server the second is refused; at another it is closed as soon as both know."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there), here.room("me") as me:
        async with raw_participant(here, "twin", instance="one"):
            await until_present(me, "twin")
            async with raw_connection(there.url) as second:
                path = "/rooms/lab?instance=one&epoch=1"
                await second.upgrade(path, bearer(there.token("twin")))
                assert await second.closed_by_both() == 4409
            listed = [each.name for each in await me.participants()]
            assert listed == ["me", "twin"]
        async with there.room("other") as other:
            while [each.name for each in await other.participants()] != ["me", "other"]:
                pass


async def test_changes_while_redis_refuses_writes_are_published_afterwards(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []
    monkeypatch.setattr(RefusalLog, "refused", lambda _, script, *__: refusals.append(script))
    monkeypatch.setattr(
        node_module, "HEARTBEAT_S", 100.0
    )  # no heartbeat is refused, so no connection ends
    monkeypatch.setattr(node_module, "LEASE_S", 300.0)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("me") as me, Redis.from_url(redis.url) as client:
            async with there.room("stays") as stays:
                async with there.room("goes"):
                    await until_present(me, "stays", "goes")
                    await client.config_set("min-replicas-to-write", 1)  # and it has none
                async with there.room("late"), stays.host(Toolkit("mine", [add]), public=False):
                    await client.config_set("min-replicas-to-write", 0)
                    await until_present(me, "late")
                    names = [each.name for each in await me.participants()]
                    assert names == ["late", "me", "stays"]
            await until_present(me, "me")
            async with there.room("last"):
                await until_present(me, "last")
                await client.config_set("min-replicas-to-write", 1)
                refusals.clear()
            while len(refusals) < 2:  # that it left, and the purge
                await me.participants()
            await client.config_set("min-replicas-to-write", 0)
            while [each.name for each in await me.participants()] != ["me"]:
                pass


async def test_a_revocation_lost_with_the_connection_is_sent_again() -> None:
    async with asyncio.timeout(TIME_S), relayed_nodes() as nodes:
        async with admin_of(nodes.here) as administrator, nodes.there.room("bob") as bob:
            await until_present(administrator, "bob")
            lost = nodes.here_way.intercept_published(is_admin_action, Fate.LOST)
            await administrator.admin("revoke", name="bob", issuer=bob.me.issuer)
            await lost.met.wait()
            assert [each.name for each in await administrator.participants()] == ["bob", "chief"]
            nodes.here_way.cut()
            while node_of(nodes.here).is_joined.is_set():
                await administrator.participants()
            nodes.here_way.mend()
            with pytest.raises(PermissionDenied):
                await bob.closed()


async def test_a_revocation_ends_no_connection_with_a_newer_token(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A token of 30 s later is newer then, and the server still accepts it.
    monkeypatch.setattr("toolbus_server.access.revocations.LEEWAY_S", 10)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        newer = ParticipantToken(name="bob", room=["lab"], api=ApiScope.full())
        minted = newer.to_jwt(there.key, now=time.time() + 30)
        async with admin_of(here) as administrator, there.room("bob") as old:
            async with RoomClient(there.url, room="lab", token=minted) as bob:
                await until_present(administrator, "bob")
                while len(await administrator.participants()) < 3:
                    pass
                done = await administrator.admin("revoke", name="bob", issuer=bob.me.issuer)
                assert done == {"closed": 1}
                with pytest.raises(PermissionDenied):
                    await old.closed()
                while len(await administrator.participants()) > 2:
                    pass
                assert await bob.participants()


async def test_participant_revoked_while_its_room_is_read_is_refused(redis: RedisServer) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(here, add), admin_of(there, "office") as administrator:
            async with here.room("me") as me:
                await until_listed(me, "kit")
                redis.freeze()
                async with raw_connection(there.url) as bob:
                    await bob.upgrade("/rooms/lab?epoch=1", bearer(there.token("bob")))
                    issuer = administrator.me.issuer
                    await administrator.admin("revoke", name="bob", issuer=issuer)
                    redis.thaw()
                    assert await bob.closed_by_both() == 4440
