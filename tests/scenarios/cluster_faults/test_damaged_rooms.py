"""Another program deletes or overwrites the keys of a room in Redis: the nodes mend them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.redis.server import RedisServer, redis_server
from toolbus import tool
from toolbus_server.cluster import replicated_rooms

TIME_S = 60
PREFIX = "toolbus:{r:lab}:"
FACTS, VERSION, HOLDERS = f"{PREFIX}facts", f"{PREFIX}version", f"{PREFIX}nodes"


@tool
async def say(text: str) -> str:
    """Return the text."""
    return text


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisServer]:
    monkeypatch.setattr(replicated_rooms, "CHECK_S", 0.1)
    async with redis_server() as server:
        yield server


async def overwrite(client: Any, key: str, value: str = "garbage") -> None:
    await client.delete(key)
    await client.set(key, value)


async def delete_one(client: Any) -> None:
    fields = await client.hkeys(FACTS)
    assert await client.hdel(FACTS, next(each for each in fields if each.startswith(b"t")))


DAMAGES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "facts deleted": lambda client: client.delete(FACTS),
    "facts overwritten": lambda client: overwrite(client, FACTS),
    "one fact deleted": delete_one,
    "all facts replaced": lambda client: overwrite_facts(client),
    "names deleted": lambda client: client.delete(f"{PREFIX}names"),
    "names overwritten": lambda client: overwrite(client, f"{PREFIX}names"),
    "reserved names overwritten": lambda client: overwrite(client, f"{PREFIX}kept"),
    "version deleted": lambda client: client.delete(VERSION),
    "version overwritten": lambda client: client.set(VERSION, "garbage"),
    "holders deleted": lambda client: client.delete(HOLDERS),
    "holders overwritten": lambda client: overwrite(client, HOLDERS),
    "all deleted": lambda client: delete_all(client),
}


async def overwrite_facts(client: Any) -> None:
    await client.delete(FACTS)
    await client.hset(FACTS, "m", "garbage")


async def delete_all(client: Any) -> None:
    await client.delete(*await client.keys(f"{PREFIX}*"))


@pytest.mark.parametrize("damage", DAMAGES)
async def test_nodes_publish_a_damaged_room_again(damage: str, redis: RedisServer) -> None:
    """A third node finds the toolkit, and calls between the nodes never lack it."""
    async with (
        asyncio.timeout(TIME_S),
        nodes(redis, 3) as servers,
        hosted(servers[0], say),
        servers[1].room("bob") as bob,
        Redis.from_url(redis.url) as client,
    ):
        await until_listed(bob, "kit")
        before = await client.hkeys(FACTS)
        await DAMAGES[damage](client)
        while await _keys(client) != sorted(before):
            assert await bob.call("kit.say", text="x") == "x"
        async with servers[2].room("eve") as eve:
            await until_listed(eve, "kit")
            assert await eve.call("kit.say", text="x") == "x"
            await until_present(eve, "bob", "host")
            async with hosted(servers[2], say, name="other"):
                await until_listed(bob, "other")
                assert await bob.call("other.say", text="x") == "x"


async def _keys(client: Any) -> list[bytes]:
    try:
        return sorted(await client.hkeys(FACTS))
    except Exception:  # it is no hash yet
        return []


async def test_room_without_damage_is_not_published_again(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Participants join, host, reserve names and leave at all nodes while the room is checked."""
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(TIME_S), nodes(redis, 2) as servers:
        for _ in range(5):
            async with servers[0].room("bob") as bob, hosted(servers[1], say):
                await until_listed(bob, "kit")
                async with hosted(servers[0], say, name="other"):
                    assert await bob.call("kit.say", text="x") == "x"
                await asyncio.sleep(0.15)  # a check comes in between
    assert "publishes its participants again" not in caplog.text
