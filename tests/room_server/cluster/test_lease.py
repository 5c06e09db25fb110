"""The script that renews a node's lease, called as nodes call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import pytest
from redis.asyncio import Redis

from support.redis.server import RedisServer

pytestmark = pytest.mark.redis
PARTS = (":leases", ":version", ":ended", ":addresses", "")
KEYS = tuple(f"toolbus:nodes{part}" for part in PARTS)
LEASES, EXCHANGE = KEYS[0], KEYS[4]
LIFE_MS = 60_000


class Leases:
    """Renews leases of several nodes."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._source = (files("toolbus_server.cluster") / "scripts" / "renew_lease.lua").read_text()

    async def renew(
        self,
        node: str,
        known: int = -1,
        *,
        first: bool = True,
        family: str = "",
        url: str = "",
        exchange: int = 1,
    ) -> Any:
        """Renew the lease of a node: its name, a space, its incarnation."""
        arguments = (*node.split(), LIFE_MS, known, int(first), family, url, exchange)
        return await self.client.eval(self._source, len(KEYS), *KEYS, *map(str, arguments))


@pytest.fixture
async def leases(redis: RedisServer) -> AsyncIterator[Leases]:
    async with Redis.from_url(redis.url) as client:
        yield Leases(client)


async def test_refused_node_does_not_hide_an_expired_lease_from_others(leases: Leases) -> None:
    """The refused node removed the expired lease; other nodes have to see that."""
    await leases.renew("one a")
    await leases.renew("two b")
    _, known, *_ = await leases.renew("one a", first=False)
    await leases.client.zadd(KEYS[0], {"two b": 1})
    assert (await leases.renew("one c"))[:2] == [0, b"one a"]
    _, version, live, ended, *_ = await leases.renew("one a", known, first=False)
    assert (live, ended) == ([b"one a"], [b"two b"])
    assert version > known


async def test_first_renewal_ends_the_lease_of_a_former_node_of_the_family(
    leases: Leases,
) -> None:
    await leases.renew("lab-1 f1-a", family="f1-")
    await leases.renew("lab-11 f1-b", family="f1-")
    _, known, *_ = await leases.renew("other c")
    got, _, _, ended, *_ = await leases.renew("lab-1 f1-d", family="f1-")
    assert (got, ended) == (1, [b"lab-1 f1-a"])  # the only node that cleans up after it
    _, _, live, ended, *_ = await leases.renew("other c", known, first=False)
    assert (sorted(live), ended) == ([b"lab-1 f1-d", b"lab-11 f1-b", b"other c"], [])
    assert await leases.renew("lab-1 f1-a", first=False, family="f1-") == [2]


async def test_renewal_returns_when_the_first_lease_expires(leases: Leases) -> None:
    """So that a dead node is noticed as its lease expires, not at a later heartbeat."""
    *_, alone_ms, _ = await leases.renew("one a")
    await leases.renew("two b")
    seconds, micros = await leases.client.time()
    now_ms = seconds * 1000 + micros // 1000
    await leases.client.zadd(KEYS[0], {"two b": now_ms + 2_000})
    *_, first_ms, _ = await leases.renew("one a", first=False)
    assert alone_ms == LIFE_MS
    assert 0 < first_ms <= 2_000


async def test_lease_of_another_family_is_left_alone(leases: Leases) -> None:
    for other, family in (("f2-a", "f2-"), ("a", "")):
        await leases.renew(f"lab-1 {other}", family=family)
        refused = await leases.renew("lab-1 f1-b", family="f1-")
        assert refused[:2] == [0, f"lab-1 {other}".encode()]
        assert 0 < refused[2] <= LIFE_MS
        await leases.client.flushdb()


async def test_first_renewal_may_be_repeated_after_a_lost_answer(leases: Leases) -> None:
    assert (await leases.renew("lab-1 f1-a", family="f1-"))[0] == 1
    status, _, live, ended, *_ = await leases.renew("lab-1 f1-a", family="f1-")
    assert (status, live, ended) == (1, [b"lab-1 f1-a"], [])


async def test_addresses_are_returned_when_they_change_and_end_with_the_lease(
    leases: Leases,
) -> None:
    await leases.renew("one a")
    _, known, *_ = await leases.renew("two b", url="http://10.0.0.2:7717")
    assert (await leases.renew("one a", known, first=False))[5] is None
    *_, addresses = await leases.renew("one a", known, first=False, url="http://10.0.0.1:7717")
    expected = [b"one a", b"http://10.0.0.1:7717", b"two b", b"http://10.0.0.2:7717"]
    assert sorted(addresses) == sorted(expected)
    await leases.client.zadd(KEYS[0], {"one a": 1})
    *_, addresses = await leases.renew("two b", known, first=False)
    assert addresses == [b"two b", b"http://10.0.0.2:7717"]


@pytest.mark.parametrize(
    ("at", "version", "ends_in_ms", "answer"),
    [
        (LEASES, "1", LIFE_MS, [1]),
        (LEASES, "2", LIFE_MS, [3, b"other x", b"2"]),
        (LEASES, None, LIFE_MS, [3, b"other x", b""]),  # another program has deleted it
        (LEASES, "2", -1, [1]),
        (EXCHANGE, None, LIFE_MS, [3, b"other x", b""]),  # of a release without a version
        (EXCHANGE, None, -1, [1]),
    ],
)
async def test_node_gets_no_lease_while_one_of_another_exchange_version_is_alive(
    leases: Leases, at: str, version: str | None, ends_in_ms: int, answer: list[Any]
) -> None:
    client = leases.client
    seconds, _ = await client.time()
    await client.zadd(at, {"other x": seconds * 1000 + ends_in_ms})
    if version is not None:
        await client.set(EXCHANGE, version)
    before = {key: await client.dump(key) for key in await client.keys()}
    got = await leases.renew("one a")
    assert got[: len(answer)] == answer
    if answer == [1]:
        assert got[3] == [b"other x"] * (ends_in_ms < 0)  # what it left is withdrawn
        assert await client.get(EXCHANGE) == b"1"
    else:
        assert {key: await client.dump(key) for key in await client.keys()} == before


async def test_the_last_node_that_leaves_makes_room_for_every_release(leases: Leases) -> None:
    source = (files("toolbus_server.cluster") / "scripts" / "leave.lua").read_text()
    keys = (*KEYS[:3], "rooms", *KEYS[3:])

    async def version_after_leaving(node: str) -> Any:
        await leases.client.eval(source, len(keys), *keys, node)
        return await leases.client.get(EXCHANGE)

    await leases.renew("one a")
    await leases.renew("two b")
    assert [await version_after_leaving(node) for node in ("one a", "two b")] == [b"1", None]
    await leases.client.set(EXCHANGE, "2")
    assert await version_after_leaving("two b") == b"2", "it has no lease, and another may have one"
