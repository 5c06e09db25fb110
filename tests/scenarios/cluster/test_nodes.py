"""Two servers that share a Redis are one bus: a participant of one is a participant of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.scenarios import (
    call_a_tool_at_another_node,
    keep_one_owner_of_a_public_name,
    kick_and_revoke,
    pass_streams_inputs_and_files,
    replace_a_connection,
    see_participants_and_messages,
)
from support.nodes.tools import Holding, add
from support.redis.server import RedisPlace, any_redis
from support.rooms.failures import late_in_its_tool
from toolbus import (
    RemoteToolkit,
    Toolkit,
    tool,
)

pytestmark = pytest.mark.redis
TIME_S = 60


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


async def test_a_tool_is_called_from_another_node(redis: RedisPlace) -> None:
    await call_a_tool_at_another_node(redis)


async def test_streams_inputs_and_files_pass_between_nodes(redis: RedisPlace) -> None:
    await pass_streams_inputs_and_files(redis)


async def test_a_call_that_is_given_up_is_cancelled_at_its_host(redis: RedisPlace) -> None:
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, holding.tool), here.room("me") as me:
            await until_listed(me, "kit")
            call = asyncio.create_task(me.call("kit.hold"))
            await holding.began.wait()
            call.cancel()
            await holding.ended.wait()


async def test_a_deadline_ends_a_call_at_both_nodes(redis: RedisPlace) -> None:
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, holding.tool), here.room("me") as me:
            await until_listed(me, "kit")
            error = await late_in_its_tool(
                lambda limit_s: me.invoke("kit.hold", {}, timeout_s=limit_s), holding.began.is_set
            )
            assert error.executed == "maybe"
            await holding.ended.wait()


async def test_a_public_name_has_one_owner_on_all_nodes(redis: RedisPlace) -> None:
    await keep_one_owner_of_a_public_name(redis)


async def test_one_of_two_simultaneous_claims_of_a_name_succeeds(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("one") as one, there.room("two") as two:
            kits = [RemoteToolkit(f"kit{number}", [add]) for number in range(20)]
            others = [RemoteToolkit(f"kit{number}", [add]) for number in range(20)]
            ends = await asyncio.gather(
                *(kit.start(one) for kit in kits),
                *(kit.start(two) for kit in others),
                return_exceptions=True,
            )
            for first, second in zip(ends[:20], ends[20:], strict=True):
                assert sorted(type(each).__name__ for each in (first, second)) == [
                    "AlreadyExists",
                    "NoneType",
                ]


async def test_participants_and_messages_are_visible_at_all_nodes(redis: RedisPlace) -> None:
    await see_participants_and_messages(redis)


async def test_private_toolkits_stay_private_between_nodes(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with there.room("host") as host, hosted(there, add, name="sign"):
            kit = RemoteToolkit("secret", [add], public=False, shared_with=["name:friend"])
            await kit.start(host)
            async with here.room("friend") as friend, here.room("stranger") as stranger:
                await until_listed(friend, "secret")
                assert (
                    await friend.invoke("secret.add", {"a": 1, "b": 1}, participant="host")
                ).value == 2
                await until_listed(stranger, "sign")
                assert "secret" not in [each.name async for each in stranger.toolkits()]


async def test_a_local_host_is_preferred_to_a_remote_one(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        ran: list[str] = []

        def kit_at(place: str) -> Callable[..., Any]:
            @tool
            async def place_of() -> str:
                """Return the node at which this ran."""
                ran.append(place)
                return place

            return place_of

        async with hosted(there, kit_at("there")), here.room("me") as me:
            await until_listed(me, "kit")
            assert await me.call("kit.place_of") == "there"
            async with hosted(here, kit_at("here")):
                assert {await me.call("kit.place_of") for _ in range(20)} == {"here"}
            assert await me.call("kit.place_of") == "there"


async def test_a_newer_connection_at_another_node_replaces_the_old_one(redis: RedisPlace) -> None:
    await replace_a_connection(redis)


async def test_participant_that_moves_to_another_node_is_listed_once_at_each(
    redis: RedisPlace,
) -> None:
    """CONN-11: and the toolkit that it hosts there has one host."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("host", instance="one") as first, there.room("me") as me:
            async with first.host(Toolkit("kit", [add])):
                await until_listed(me, "kit")
                async with there.room("host", instance="one") as second:
                    async with second.host(Toolkit("kit", [add])), here.room("other") as other:
                        await until_present(me, "other")
                        for each in (me, other):
                            names = [person.name for person in await each.participants()]
                            assert names == ["host", "me", "other"]
                            assert [kit.hosts async for kit in each.toolkits()] == [1]
                            assert await each.call("kit.add", a=1, b=1) == 2


async def test_kicked_participant_is_removed_at_every_node(redis: RedisPlace) -> None:
    await kick_and_revoke(redis)


async def test_only_the_state_of_tokens_is_left_in_redis_when_all_have_gone(
    redis: RedisPlace,
) -> None:
    from redis.asyncio import Redis

    async with asyncio.timeout(TIME_S), Redis.from_url(redis.url) as client:
        async with nodes(redis) as (here, there):
            async with hosted(there, add), here.room("me") as me:
                await until_listed(me, "kit")
        assert await client.keys("*") == [b"toolbus:tokens:since"]
