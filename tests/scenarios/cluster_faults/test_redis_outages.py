"""A Redis that is suspended, forgets, refuses or comes back empty: how nodes react."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis

from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.kits import until_works
from support.nodes.relayed import node_of
from support.nodes.tools import add
from support.redis.server import RedisServer, free_port
from toolbus import ApiScope, ParticipantToken, RoomClient, RoomException, Toolkit, tool
from toolbus.auth.keys import KeyRing
from toolbus.errors import NoHost, NotFound, PermissionDenied, Unavailable
from toolbus_server import testing
from toolbus_server.cluster import node as node_module
from toolbus_server.cluster.node import HEARTBEAT_S, LEASE_S
from toolbus_server.cluster.token_state import RedisTokenState
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import FaultProxy, running_nodes, running_server

TIME_S = 60
SLACK_S = 3.0
"""What a busy machine may add to a promised time."""


@pytest.fixture
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the heartbeats so rare that none can tell nodes anything."""
    monkeypatch.setattr(node_module, "HEARTBEAT_S", 100.0)
    monkeypatch.setattr(node_module, "LEASE_S", 300.0)


class Ran:
    """A tool that records for whom it ran."""

    def __init__(self) -> None:
        self.whose: list[str] = []

        @tool
        async def run(whose: str) -> str:
            """Record whose call this is."""
            self.whose.append(whose)
            return whose

        self.tool = run


def saying(word: str) -> Callable[..., Any]:
    """Make a tool that returns one word."""

    @tool
    async def say() -> str:
        """Return the word."""
        return word

    return say


async def end_of(room: RoomClient, whose: str) -> RoomException:
    """Call a tool of another node once, and return the error."""
    with pytest.raises(RoomException) as raised:
        await room.invoke("far.run", {"whose": whose}, retry=False, timeout_s=TIME_S)
    return raised.value


@pytest.mark.redis
@pytest.mark.usefixtures("no_beats")
async def test_a_redis_that_stands_still_is_noticed_by_the_first_call_that_needs_it(
    redis: RedisServer,
) -> None:
    far = Ran()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, far.tool, name="far"), here.room("me") as me:
            await until_listed(me, "far")
            assert await me.call("far.run", whose="before") == "before"
            redis.freeze()
            for error in await asyncio.gather(end_of(me, "one"), end_of(me, "another")):
                assert (error.code, error.executed) == ("unavailable", "maybe")

            error = await end_of(me, "when it is known")
            assert (error.code, error.executed, error.retryable) == ("unavailable", "no", True)
            redis.thaw()
            await until_runs(me)
            assert "when it is known" not in far.whose


@pytest.mark.redis
async def test_who_joins_a_node_without_redis_is_told_that_a_toolkit_may_be_elsewhere(
    redis: RedisServer,
) -> None:
    far = Ran()
    async with (
        asyncio.timeout(TIME_S),
        nodes(redis) as (here, there),
        hosted(there, far.tool, name="far"),
    ):
        await redis.kill()
        router = here.server.hub.router
        while not router.view_is_partial:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        async with here.room("me") as me:
            error = await end_of(me, "early")
            assert (error.code, error.executed, error.retryable) == ("not_found", "no", True)
            assert "may be at a server that cannot be reached now" in error.message
            await redis.start()
            await until_runs(me)
    assert "early" not in far.whose


@pytest.mark.parametrize(
    ("lease_s", "still_s"),
    [(LEASE_S / 5, 3.0), pytest.param(LEASE_S, 30.0, marks=pytest.mark.soak)],
)
async def test_a_redis_that_stands_still_for_longer_than_a_lease_ends_nothing_within_a_node(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, lease_s: float, still_s: float
) -> None:
    monkeypatch.setattr(node_module, "HEARTBEAT_S", HEARTBEAT_S * lease_s / LEASE_S)
    monkeypatch.setattr(node_module, "LEASE_S", lease_s)
    far, near, loop = Ran(), Ran(), asyncio.get_running_loop()
    async with (
        asyncio.timeout(2 * TIME_S),
        nodes(redis) as (here, there),
        AsyncExitStack() as stack,
    ):
        await stack.enter_async_context(hosted(there, far.tool, name="far"))
        me = await stack.enter_async_context(hosted(here, near.tool, name="near"))
        await until_listed(me, "far")
        redis.freeze()
        frozen_at = loop.time()
        with pytest.raises(Unavailable) as raised:
            async with me.host(Toolkit("new", [add])):
                pass
        assert raised.value.executed == "no"
        async with me.host(Toolkit("mine", [add]), public=False):
            while loop.time() - frozen_at < still_s:
                assert await me.call("near.run", whose="me") == "me"
                assert await me.call("mine.add", a=1, b=1) == 2
        assert (await end_of(me, "nobody's")).executed == "no"
        redis.thaw()
        await until_runs(me)
        assert "nobody's" not in far.whose
        late = await stack.enter_async_context(there.room("late"))
        await until_present(me, "late")
        await until_listed(late, "near")
        for room in (me, late):
            names = sorted(each.name for each in await room.participants())
            assert names == ["host", "host", "late"]


async def until_runs(room: RoomClient) -> None:
    """Call a tool of another node until that succeeds."""
    while True:
        try:
            await room.invoke("far.run", {"whose": "again"}, timeout_s=5.0)
        except (Unavailable, NoHost, NotFound):
            await asyncio.sleep(0)
        else:
            return


@pytest.mark.redis
async def test_a_short_pause_of_redis_only_delays_calls(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("me") as me:
            await until_listed(me, "kit")
            redis.freeze()
            call = asyncio.create_task(me.invoke("kit.add", {"a": 1, "b": 1}, retry=False))
            await me.participants()
            redis.thaw()
            assert (await call).value == 2


@pytest.mark.redis
@pytest.mark.usefixtures("no_beats")
async def test_a_redis_that_forgets_its_scripts_is_given_them_again(redis: RedisServer) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("me") as me, Redis.from_url(redis.url) as client:
            await client.script_flush("SYNC")
            async with there.room("late") as late:
                await until_present(me, "late")
                async with late.host(Toolkit("kit", [add])):
                    await until_listed(me, "kit")
                    await until_works(me)


@pytest.mark.redis
@pytest.mark.usefixtures("no_beats")
async def test_a_redis_that_takes_no_writes_any_more_is_left_until_it_does(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with here.room("me") as me, Redis.from_url(redis.url) as client:
            await client.replicaof("127.0.0.1", free_port())  # as after a failover
            async with there.room("late") as late:
                while node_of(there).is_joined.is_set():
                    await late.participants()
                await client.replicaof("NO", "ONE")
                await until_present(me, "late")


@pytest.mark.redis
async def test_while_redis_refuses_to_write_a_name_is_refused_and_calls_go_on(
    redis: RedisServer,
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("me") as me, Redis.from_url(redis.url) as client:
            await until_listed(me, "kit")
            await client.config_set("min-replicas-to-write", 1)  # and it has none
            with pytest.raises(Unavailable) as raised:
                async with me.host(Toolkit("new", [add])):
                    pass
            assert raised.value.executed == "no"
            async with me.host(Toolkit("mine", [add]), public=False):
                assert await me.call("mine.add", a=1, b=1) == 2
            await client.config_set("min-replicas-to-write", 0)
            await until_works(me)
            async with me.host(Toolkit("newer", [add])), there.room("late") as late:
                await until_listed(late, "newer")


@pytest.mark.redis
async def test_revocations_survive_an_outage_or_an_emptied_redis(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A token of 30 s later is newer then, and the server still accepts it.
    monkeypatch.setattr("toolbus_server.access.revocations.LEEWAY_S", 10)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there), AsyncExitStack() as stack:
        token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(here.key)
        administrator = await stack.enter_async_context(
            RoomClient(here.url, room="lab", token=token)
        )
        bob = await stack.enter_async_context(there.room("bob"))
        await until_present(administrator, "bob")
        old = there.token("bob")

        await redis.kill()
        issuer = bob.me.issuer
        await administrator.admin("revoke", name="bob", issuer=issuer)
        await redis.start()
        with pytest.raises(PermissionDenied):
            await bob.closed()
        settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=redis.url)
        third = await stack.enter_async_context(running_server(key=here.key, settings=settings))
        await node_of(third).is_joined.wait()
        with pytest.raises(PermissionDenied):
            async with RoomClient(third.url, room="lab", token=old):
                pass
        newer = ParticipantToken(name="bob", room=["lab"], api=ApiScope.full())
        minted = newer.to_jwt(here.key, now=time.time() + 30)
        async with RoomClient(third.url, room="lab", token=minted) as back:
            assert back.me.name == "bob"


@pytest.mark.redis
async def test_first_node_that_publishes_a_contested_name_keeps_it_at_every_node(
    redis: RedisServer,
) -> None:
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=redis.url)
    async with asyncio.timeout(TIME_S), AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(f"ws://127.0.0.1:{redis.port}"))
        url = f"redis://{proxy.url.removeprefix('ws://')}/0"
        (here,) = await stack.enter_async_context(running_nodes(url, 1))
        loser = await stack.enter_async_context(here.room("loser"))
        await stack.enter_async_context(loser.host(Toolkit("kit", [saying("loser")])))
        await proxy.refuse()
        await redis.kill()
        await redis.start()
        there = await stack.enter_async_context(running_server(key=here.key, settings=settings))
        winner = await stack.enter_async_context(there.room("winner"))
        await stack.enter_async_context(winner.host(Toolkit("kit", [saying("winner")])))

        async with loser.events(["toolkits"]) as stream:
            await proxy.accept()
            async for event in stream:
                if event.name == "toolkit_added":
                    break
        assert event.toolkit is not None
        assert event.toolkit.owner == "winner"
        assert await loser.call("kit.say") == "winner"
        assert await winner.call("kit.say") == "winner"


@pytest.mark.parametrize(
    "revocation",
    [
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb({}),
        msgpack.packb({"jti": [1], "at": 1}),
        msgpack.packb({"issuer": "acme", "name": "eve", "at": "now"}),
    ],
)
async def test_an_invalid_revocation_does_not_prevent_joining(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, revocation: bytes
) -> None:
    async with asyncio.timeout(TIME_S), Redis.from_url(redis.url) as client:
        await client.zadd("toolbus:revocations", {revocation: time.time() + 60})
        async with nodes(redis) as (here, there):
            async with hosted(there, add), here.room("me") as me:
                await until_listed(me, "kit")
        assert "a revocation in Redis cannot be read" in caplog.text
        assert "failed with a bug" not in caplog.text


async def test_a_node_whose_connection_fails_with_a_bug_logs_it_and_rejoins(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_BUG_BACKOFF_S", 0.1)
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), here.room("me") as me, Redis.from_url(redis.url) as client:
            await until_listed(me, "kit")
            with monkeypatch.context() as broken:
                broken.setattr(RedisTokenState, "synchronize", None)
                await client.client_kill_filter(_type="pubsub")
                while caplog.text.count("failed with a bug") < 2:
                    await me.participants()
            await node_of(here).is_joined.wait()
            await until_works(me)


async def test_nodes_of_a_test_report_that_their_redis_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_module, "_START_S", 0.1)
    monkeypatch.setattr(testing, "_JOIN_S", 0.1)
    with pytest.raises(TimeoutError):
        async with running_nodes(f"redis://127.0.0.1:{free_port()}", 1):
            raise AssertionError("they have joined")
