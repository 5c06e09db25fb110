"""Two servers that share a Redis are one bus: whoever is at one is at both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.redis_server import RedisPlace, any_redis
from toolbus import (
    ApiScope,
    DeadlineExceeded,
    FileChunk,
    InputStream,
    ParticipantToken,
    RemoteToolkit,
    RoomClient,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.errors import AlreadyExists, PermissionDenied, ToolFailed
from toolbus.keys import KeyRing
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_nodes

pytestmark = pytest.mark.redis
TIME_S = 20


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def fail() -> int:
    """Fail."""
    raise ToolFailed("no luck")


@tool
async def numbers(count: int) -> AsyncIterator[int]:
    """Give numbers."""
    for number in range(count):
        yield number


@tool
async def total(rows: InputStream[int]) -> int:
    """Add what comes."""
    return sum([row async for row in rows])


@tool
async def size(attachment: FileChunk) -> int:
    """Count bytes."""
    return sum([len(piece) async for piece in attachment.pieces()])


@tool
async def who(context: ToolContext) -> list[str | None]:
    """Tell on whose account this runs."""
    principal = context.on_behalf_of
    return [context.caller.name, None if principal is None else principal.name]


class Holding:
    """A tool that runs until it is cancelled, or all is over, and tells of both."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_over = asyncio.Event()
        """What a host that leaves waits for; to be set where a test may fail before the cancel."""

        @tool
        async def hold() -> None:
            """Run until cancelled."""
            self.began.set()
            try:
                await self.is_over.wait()
            finally:
                self.ended.set()

        self.tool = hold


@asynccontextmanager
async def nodes(
    redis: RedisPlace, count: int = 2, drain_s: float = 1.0, **more: Any
) -> AsyncIterator[list[TestServer]]:
    """Run servers that share a Redis, and wait until each has joined the others.

    What is `more` are further settings.
    """
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=drain_s, **more)
    async with running_nodes(redis.url, count, settings=settings) as servers:
        yield list(servers)


@asynccontextmanager
async def hosted(
    server: TestServer, *tools: Callable[..., Any], name: str = "kit"
) -> AsyncIterator[RoomClient]:
    """Host a toolkit at a node."""
    async with server.room("host") as room:
        async with room.host(Toolkit(name, list(tools))):
            yield room


async def until_listed(room: RoomClient, name: str) -> None:
    """Wait until a toolkit is listed here."""
    async with room.events(["toolkits"]) as events:
        if name in [each.name async for each in room.toolkits()]:
            return
        async for event in events:
            if event.toolkit is not None and event.toolkit.name == name:
                return


async def until_there(room: RoomClient, *names: str) -> None:
    """Wait until participants are seen here."""
    async with room.events(["participants"]) as events:
        seen = {each.name for each in await room.participants()}
        while not seen.issuperset(names):
            person = (await anext(aiter(events))).participant
            assert person is not None
            seen.add(person.name)


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


async def test_a_tool_is_called_from_another_node(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add, fail, who), here.room("me") as me:
            await until_listed(me, "kit")
            assert await me.call("kit.add", a=2, b=3) == 5
            assert await me.call("kit.who") == ["me", None]
            with pytest.raises(ToolFailed, match="no luck") as raised:
                await me.call("kit.fail")
            assert raised.value.executed == "yes"


async def test_streams_inputs_and_files_pass_between_nodes(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, numbers, total, size), here.room("me") as me:
            await until_listed(me, "kit")
            async with me.stream("kit", "numbers", {"count": 2_000}) as chunks:
                assert [chunk.value async for chunk in chunks] == list(range(2_000))
            async with me.stream("kit", "total", {}, input=range(1_000)) as chunks:
                assert [chunk.value async for chunk in chunks] == [sum(range(1_000))]
            counted = await me.invoke("kit", "size", {}, attachment=b"x" * 3_000_000)
            assert counted.value == 3_000_000


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
            with pytest.raises(DeadlineExceeded) as raised:
                await me.invoke("kit", "hold", {}, timeout_s=0.3)
            assert raised.value.executed == "maybe"
            await holding.ended.wait()


async def test_a_public_name_has_one_owner_on_all_nodes(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("other") as other:
            with pytest.raises(AlreadyExists):
                await RemoteToolkit("kit", [add]).start(other)
        async with here.room("other") as other:
            kit = RemoteToolkit("kit", [add])  # its first owner took it back
            await kit.start(other)


async def test_of_two_who_want_a_name_at_once_one_gets_it(redis: RedisPlace) -> None:
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


async def test_people_and_messages_are_seen_at_all_nodes(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with there.room("ann") as ann, ann.events(["messages"]) as heard:
            async with here.room("bob") as bob:
                await ann.set_attributes(mood="fine")
                async with bob.events(["participants"]) as news:
                    known = {each.name: each for each in await bob.participants()}
                    while "ann" not in known or not known["ann"].attributes:
                        person = (await anext(aiter(news))).participant
                        assert person is not None
                        known[person.name] = person
                assert known["ann"].attributes == {"mood": "fine"}
                while not await bob.send("ann", "hello", {"text": "hi"}):
                    pass
                async for event in heard:
                    assert event.message is not None
                    assert event.message.body == {"text": "hi"}
                    break


async def test_private_toolkits_stay_private_between_nodes(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with there.room("host") as host, hosted(there, add, name="sign"):
            kit = RemoteToolkit("secret", [add], public=False, shared_with=["name:friend"])
            await kit.start(host)
            async with here.room("friend") as friend, here.room("stranger") as stranger:
                await until_listed(friend, "secret")
                assert (
                    await friend.invoke("secret", "add", {"a": 1, "b": 1}, participant="host")
                ).value == 2
                await until_listed(stranger, "sign")
                assert "secret" not in [each.name async for each in stranger.toolkits()]


async def test_a_local_host_goes_before_one_elsewhere(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        ran: list[str] = []

        def told(place: str) -> Callable[..., Any]:
            @tool
            async def place_of() -> str:
                """Say where this ran."""
                ran.append(place)
                return place

            return place_of

        async with hosted(there, told("there")), here.room("me") as me:
            await until_listed(me, "kit")
            assert await me.call("kit.place_of") == "there"
            async with hosted(here, told("here")):
                assert {await me.call("kit.place_of") for _ in range(20)} == {"here"}
            assert await me.call("kit.place_of") == "there"


async def test_a_newer_connection_elsewhere_takes_the_place(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        scope = ApiScope.full()
        async with here.room("me", instance="one", api=scope) as first:
            async with there.room("me", instance="one", api=scope) as second:
                with pytest.raises(PermissionDenied, match="took its place"):
                    await first.closed()
                assert (await second.participants())[0].name == "me"


async def test_whoever_comes_to_another_node_is_listed_once_at_each(redis: RedisPlace) -> None:
    """CONN-11: and what it hosts there has one host."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("host", instance="one") as first, there.room("me") as me:
            async with first.host(Toolkit("kit", [add])):
                await until_listed(me, "kit")
                async with there.room("host", instance="one") as second:
                    async with second.host(Toolkit("kit", [add])), here.room("other") as other:
                        await until_there(me, "other")
                        for each in (me, other):
                            names = [person.name for person in await each.participants()]
                            assert names == ["host", "me", "other"]
                            assert [kit.hosts async for kit in each.toolkits()] == [1]
                            assert await each.call("kit.add", a=1, b=1) == 2


async def test_who_is_sent_away_goes_from_every_node(redis: RedisPlace) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(here.key)
        chiefs = RoomClient(here.url, room="lab", token=token)
        async with chiefs as chief, there.room("ann") as ann, there.room("bob") as bob:
            await until_there(chief, "ann", "bob")
            done = await chief.admin("kick", room="lab", participant="ann")
            assert done == {"closed": 1}
            with pytest.raises(PermissionDenied):
                await ann.closed()
            issuer = bob.me.issuer
            assert await chief.admin("revoke", name="bob", issuer=issuer) == {"closed": 1}
            with pytest.raises(PermissionDenied):
                await bob.closed()
            with pytest.raises(PermissionDenied):
                async with there.room("bob"):
                    pass


async def test_nothing_is_left_in_redis_when_all_have_gone(redis: RedisPlace) -> None:
    from redis.asyncio import Redis

    async with asyncio.timeout(TIME_S), Redis.from_url(redis.url) as client:
        async with nodes(redis) as (here, there):
            async with hosted(there, add), here.room("me") as me:
                await until_listed(me, "kit")
        assert await client.keys("*") == []
