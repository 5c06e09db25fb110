"""Where tests get their Redis: a person's own is left unchanged, a missing kind is named."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from rich.console import Console

from support.nodes.cluster import nodes, until_present
from support.redis import matrix as redis_matrix
from support.redis import server as redis_server
from support.redis.external import external_redis
from support.redis.matrix import Kind, Missing, Outcome
from support.redis.server import RedisServer

TIME_S = 60


@pytest.fixture
async def persons_own() -> AsyncIterator[RedisServer]:
    """A person's server, with an entry in its first database."""
    async with redis_server.redis_server() as server, Redis.from_url(server.url) as client:
        await client.set("toolbus:nodes", "a person's")
        yield server


def ninth(server: RedisServer) -> str:
    return server.url.removesuffix("0") + "9"


async def test_of_a_persons_server_one_database_is_used_and_left_empty(
    persons_own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "GIVEN_URL", ninth(persons_own))
    async with asyncio.timeout(TIME_S), Redis.from_url(ninth(persons_own)) as client:
        async with redis_server.any_redis() as given:
            assert given.url == ninth(persons_own)
            async with nodes(given) as (here, there):
                async with here.room("ann") as ann, there.room("bob"):
                    await until_present(ann, "bob")
                    assert await client.keys("toolbus:*")
            await client.set("theirs", "1")
        assert await client.keys() == [b"theirs"]
    async with Redis.from_url(persons_own.url) as client:
        assert await client.get("toolbus:nodes") == b"a person's"


async def test_a_database_with_something_in_it_is_refused_and_left_alone(
    persons_own: RedisServer,
) -> None:
    with pytest.raises(pytest.fail.Exception, match="is not empty"):
        async with external_redis(persons_own.url):
            raise AssertionError("it was taken")
    async with Redis.from_url(persons_own.url) as client:
        assert await client.keys() == [b"toolbus:nodes"]


async def test_a_test_that_hurts_its_server_never_gets_a_persons(
    persons_own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "GIVEN_URL", ninth(persons_own))
    async with redis_server.redis_server() as server:
        assert server.port != persons_own.port


async def test_where_there_is_none_it_is_not_verified_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_server, "GIVEN_SERVER", "")
    monkeypatch.setattr(redis_server, "why_no_image", lambda _: "no engine")
    monkeypatch.setattr(redis_server, "redis_program", lambda: None)
    for in_ci, kind in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", in_ci)
        with pytest.raises(kind, match="NOT VERIFIED: many nodes"):
            async with redis_server.redis_server():
                raise AssertionError("there was one")


def missing() -> str:
    raise Missing("there is none")


def test_a_kind_that_is_missing_is_named_and_fails_only_where_ci_must_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seldom, always = Kind("Seldom 8", missing, ci_has_it=False), Kind("Always 7", missing, True)
    outcomes = [redis_matrix.run_tests(kind, ()) for kind in (seldom, always)]
    paper = io.StringIO()
    redis_matrix.show(outcomes, Console(file=paper, width=120))
    for name in ("Seldom 8", "Always 7"):
        assert f"{name}  NOT VERIFIED: there is none" in paper.getvalue()
    monkeypatch.setenv("CI", "false")
    assert [each.is_good for each in outcomes] == [True, True]
    monkeypatch.setenv("CI", "true")
    assert [each.is_good for each in outcomes] == [True, False]


def test_a_kind_counts_only_if_tests_ran_with_it_and_none_failed() -> None:
    kind = Kind("any", missing, ci_has_it=True)

    def is_good(passed: int, failed: int) -> bool:
        return Outcome(kind, "", {"passed": passed, "failed": failed, "skipped": 1}).is_good

    assert is_good(3, 0)
    assert not is_good(3, 1)
    assert not is_good(0, 0)


def test_the_choice_of_tests_is_found_by_its_mark() -> None:
    names = {path.name for path in redis_matrix.files_of_choice()}
    assert {"test_nodes.py", "test_failover.py", "test_redis_outages.py"} <= names
