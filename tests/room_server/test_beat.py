"""The script with which a node renews its lease, asked as nodes ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import pytest
from redis.asyncio import Redis

from support.redis_server import RedisServer

pytestmark = pytest.mark.redis
KEYS = ("toolbus:nodes", "toolbus:nodes:version", "toolbus:gone")
LIFE_MS = 60_000


class Beats:
    """Nodes, as far as their leases go."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._source = (files("toolbus_server.nodes") / "scripts" / "beat.lua").read_text()

    async def beat(
        self, node: str, known: int = -1, *, first: bool = True, family: str = ""
    ) -> Any:
        """Renew the lease of a node: its name, a space, its incarnation."""
        words = (*node.split(), LIFE_MS, known, int(first), family)
        return await self.client.eval(self._source, len(KEYS), *KEYS, *map(str, words))


@pytest.fixture
async def beats(redis: RedisServer) -> AsyncIterator[Beats]:
    async with Redis.from_url(redis.url) as client:
        yield Beats(client)


async def test_who_gets_no_lease_does_not_hide_from_others_whose_has_ended(beats: Beats) -> None:
    """The one that is refused has tidied up: what it found, the others have to learn."""
    await beats.beat("one a")
    await beats.beat("two b")
    _, known, *_ = await beats.beat("one a", first=False)
    await beats.client.zadd(KEYS[0], {"two b": 1})
    assert (await beats.beat("one c"))[:2] == [0, b"one a"]
    _, version, living, gone, _ = await beats.beat("one a", known, first=False)
    assert (living, gone) == ([b"one a"], [b"two b"])
    assert version > known


async def test_lease_of_a_former_node_of_the_family_ends_with_the_next_ones_first_beat(
    beats: Beats,
) -> None:
    await beats.beat("lab-1 f1-a", family="f1-")
    await beats.beat("lab-11 f1-b", family="f1-")
    _, known, *_ = await beats.beat("other c")
    got, _, _, gone, _ = await beats.beat("lab-1 f1-d", family="f1-")
    assert (got, gone) == (1, [b"lab-1 f1-a"])  # which it is to tidy up after, and nobody else
    _, _, living, gone, _ = await beats.beat("other c", known, first=False)
    assert (sorted(living), gone) == ([b"lab-1 f1-d", b"lab-11 f1-b", b"other c"], [])
    assert await beats.beat("lab-1 f1-a", first=False, family="f1-") == [2]


async def test_who_renews_its_lease_learns_when_the_first_one_ends(beats: Beats) -> None:
    """So that whoever died is noticed as its lease ends, and not with a beat after that."""
    *_, alone_ms = await beats.beat("one a")
    await beats.beat("two b")
    seconds, micros = await beats.client.time()
    now_ms = seconds * 1000 + micros // 1000
    await beats.client.zadd(KEYS[0], {"two b": now_ms + 2_000})
    *_, first_ms = await beats.beat("one a", first=False)
    assert alone_ms == LIFE_MS
    assert 0 < first_ms <= 2_000


async def test_lease_of_another_family_is_left_alone(beats: Beats) -> None:
    for other, family in (("f2-a", "f2-"), ("a", "")):
        await beats.beat(f"lab-1 {other}", family=family)
        refused = await beats.beat("lab-1 f1-b", family="f1-")
        assert refused[:2] == [0, f"lab-1 {other}".encode()]
        assert 0 < refused[2] <= LIFE_MS
        await beats.client.flushdb()


async def test_first_beat_that_was_not_answered_may_be_made_again(beats: Beats) -> None:
    assert (await beats.beat("lab-1 f1-a", family="f1-"))[0] == 1
    status, _, living, gone, _ = await beats.beat("lab-1 f1-a", family="f1-")
    assert (status, living, gone) == (1, [b"lab-1 f1-a"], [])
