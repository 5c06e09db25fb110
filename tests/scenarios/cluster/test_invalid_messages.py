"""Data in Redis that no node wrote, or one of another release: only the invalid part is ignored."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis

from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.relayed import node_of
from support.nodes.tools import Holding, add
from support.redis.server import RedisServer
from toolbus.errors import Unavailable
from toolbus_server.cluster.exchange import EXCHANGE_KEY, EXCHANGE_VERSION, LEASES_KEY
from toolbus_server.cluster.node import LEASE_S

pytestmark = pytest.mark.redis
TIME_S = 60
PLACE = b"p" * 16
FACTS, NAMES, VERSION = (f"toolbus:{{r:lab}}:{part}" for part in ("facts", "names", "version"))


def packed(*values: Any) -> bytes:
    """Pack as a script does."""
    return bytes(msgpack.packb(values))


UNREADABLE = [
    b"",
    b"P",
    b"P" + packed("other 1"),
    b"R",
    b"R\xc1",
    b"R\x81\x90\x01",
    b"R" + msgpack.packb(5),
    b"R" + packed(1, 2, 3, 4),
    b"R" + packed("lab", "1", "other 1", []),
    b"R" + packed(b"\xff", 1, b"\xff", []),
    b"R" + packed("lab", 1 << 50, "other 1", [5]),
    b"R" + packed("lab", 1 << 50, "other 1", [["in", "place"]]),
    b"R" + packed("lab", 1 << 50, "other 1", [["up", "place", 1, "name", "owner", "d", 1]]),
]


async def test_an_invalid_message_in_an_inbox_ends_no_call(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    holding = Holding()
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with (
            hosted(there, add, holding.tool),
            here.room("me") as me,
            Redis.from_url(redis.url) as client,
        ):
            await until_listed(me, "kit")
            call = asyncio.create_task(me.call("kit.hold"))
            await holding.began.wait()
            for message in UNREADABLE:
                for node in (node_of(here), node_of(there)):
                    await client.publish(f"toolbus:inbox:{node.node_id}", message)
            while caplog.text.count("cannot be read") < 2 * len(UNREADABLE):
                assert await me.call("kit.add", a=1, b=1) == 2
            assert not call.done()
            call.cancel()
        assert "Traceback" not in caplog.text


async def seal(client: Any) -> None:
    """Seal the room as a node does; without that the fact counts as one of another program."""
    counts = int(await client.get(VERSION)), await client.hlen(FACTS), await client.hlen(NAMES)
    await client.hset(FACTS, "s", packed(*counts))


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        (b"m" + PLACE, b"\xc1"),
        (b"m" + PLACE, msgpack.packb(5)),
        (b"m" + PLACE, packed("other 1", 1, b"\xc1", [])),
        (b"m" + PLACE, packed("other 1", 1, packed(*range(17)), [])),
        (b"m" + PLACE, packed("other 1", 1, packed(1), [])),
        (b"t" + PLACE + b"\0+kit", packed(1)),
        (b"k+kit", packed(1, 1, packed("kit"))),
        (b"k+kit", packed(1)),
        (b"odd", b""),
    ],
)
async def test_an_invalid_fact_of_a_node_hides_no_other(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, key: bytes, fact: bytes
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with hosted(there, add), Redis.from_url(redis.url) as client:
            await client.hset(FACTS, key, fact)
            await seal(client)
            async with here.room("me") as me, there.room("other") as other:
                await until_listed(me, "kit")
                await until_present(other, "me")
                assert await me.call("kit.add", a=1, b=1) == 2
        assert "cannot be read" in caplog.text
        assert "Traceback" not in caplog.text


async def test_invalid_names_of_nodes_do_not_prevent_joining(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(TIME_S), Redis.from_url(redis.url) as client:
        soon = time.time() * 1000 + LEASE_S * 1000
        await client.set(EXCHANGE_KEY, EXCHANGE_VERSION)
        await client.zadd(LEASES_KEY, {b"\xff 1": soon, b"none": soon})
        await client.sadd("toolbus:nodes:ended", b"\xff 2")
        async with nodes(redis) as (here, there):
            async with hosted(there, add), here.room("me") as me:
                await until_listed(me, "kit")
                assert await me.call("kit.add", a=1, b=1) == 2
        assert "failed with a bug" not in caplog.text


async def test_a_lease_of_before_the_clock_was_set_back_ends_as_others_do(
    redis: RedisServer,
) -> None:
    an_hour_ms = 3_600_000
    async with asyncio.timeout(TIME_S), Redis.from_url(redis.url) as client:
        await client.set(EXCHANGE_KEY, EXCHANGE_VERSION)
        await client.zadd(LEASES_KEY, {"other 1": time.time() * 1000 + an_hour_ms})
        async with nodes(redis) as (here, _), here.room("me"):
            ends_ms = await client.zscore(LEASES_KEY, "other 1")
            assert ends_ms is None or ends_ms < time.time() * 1000 + 2 * LEASE_S * 1000


async def test_a_redis_that_refuses_to_publish_is_logged_once(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with (
            hosted(there, add),
            here.room("me") as me,
            Redis.from_url(redis.url) as client,
        ):
            await until_listed(me, "kit")
            assert await me.call("kit.add", a=1, b=1) == 2
            await client.acl_setuser("default", enabled=True, commands=["-publish"])
            for _ in range(10):
                with pytest.raises(Unavailable) as raised:
                    await me.invoke("kit.add", {"a": 1, "b": 1}, retry=False)
                assert raised.value.executed == "no"
            assert caplog.text.count("Redis refused a message to node") == 1
            await client.acl_setuser("default", enabled=True, commands=["+publish"])
