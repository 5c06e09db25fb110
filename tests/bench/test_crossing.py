"""Crossings of real processes and a real Redis, short ones: what goes by Redis, and what not."""

import asyncio
from collections import Counter
from urllib.parse import urlsplit

import pytest

from bench import crossing, redis_watch
from bench.course import Course
from bench.crossing import Crossing, run_crossing
from bench.legs import LEGS
from bench.promises import PROMISES
from bench.redis_watch import LEASE, WITHIN, counted_redis, named_in, sent
from bench.report import render
from bench.verdict import missed
from support.missing_parts import not_verified
from support.redis_server import redis_program

LEG = next(leg for leg in LEGS if leg.crosses_nodes)
SHORT = {
    "TURN_S": 0.05,
    "TURNS": 2,
    "CALLS": 20,
    "COUNTED_CALLS": 25,
    "IDLE_S": 0.5,
    "SETTLE_S": 0.2,
    "QUIET_S": 3.2,
    "ROOMS": 3,
    "TOOLKITS": 40,
    "JOINS": 5,
    "FIRST_JOINS": 1,
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    if redis_program() is None:
        not_verified("the bench of many nodes", "there is no Redis")
    for name, value in SHORT.items():
        monkeypatch.setattr(crossing, name, value)


@pytest.mark.usefixtures("short")
async def test_a_call_between_nodes_is_two_publish_and_a_local_one_is_no_command() -> None:
    taken = await run_crossing(LEG, "asyncio", is_whole=True)
    assert taken.counts is not None
    assert taken.counts.far_publishes == 2.0
    assert (taken.counts.far_others, taken.counts.local) == (0.0, 0.0)
    assert 0.0 <= taken.counts.idle.sent <= 2.0  # one renewal of each node, at most
    assert taken.counts.idle.published <= taken.counts.idle.sent  # each is heard through the inbox
    assert taken.counts.idle.run >= taken.counts.idle.commands
    assert (len(taken.single), len(taken.shared)) == (3, 2)
    assert (len(taken.near), len(taken.far)) == (3, 2)
    assert all(leap.redis.publishes >= 2 * leap.calls for leap in taken.far_alone)
    assert {leap.calls for leap in (*taken.near_alone, *taken.far_alone)} == {20}
    near = (*taken.near, *taken.near_alone)
    assert all(leap.redis.publishes < 5 < leap.calls for leap in near)  # what leases take
    assert taken.joins is not None
    assert [len(taken.joins.full_ms), len(taken.joins.first_full_ms)] == [5, 1]


async def test_without_a_redis_the_row_is_not_measured_and_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_watch, "redis_program", lambda: None)
    course = Course({"uvloop": [LEG]})
    await course.run(1)
    assert "no redis-server" in course.results.missing[LEG.name]
    promises = [each for each in PROMISES if each.row == "nodes" and each.is_judged]
    assert missed(promises, course.results, "uvloop") == promises
    assert "not measured: toolbus-nodes" in render(course.results, ["uvloop"], {})


async def test_a_second_round_neither_counts_nor_joins_unless_something_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    async def cross(_leg: object, _loop: str, *, is_whole: bool) -> Crossing:
        asked.append(is_whole)
        return Crossing([], [], [], [], [], [])

    monkeypatch.setattr("bench.course.run_crossing", cross)
    course = Course({"uvloop": [LEG]})
    await course.run(2)
    await course.run_again("uvloop", {LEG.name}, gathers=False)
    assert asked == [True, False, True]


async def test_what_scripts_run_is_told_from_what_is_sent() -> None:
    if redis_program() is None:
        not_verified("the bench of many nodes", "there is no Redis")
    async with counted_redis() as redis:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(redis.url).port)
        before = await redis.counts()
        async with redis.monitored() as seen:
            script = b"redis.call('PUBLISH', 'a', 'b') return redis.call('GET', 'c')"
            for words in ((b"EVAL", script, b"0"), (b"PUBLISH", b"a", b'"] "GET" \r\n')):
                writer.write(b"*%d\r\n" % len(words))
                writer.writelines(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
                await reader.readuntil(b"\r\n")
        writer.close()
        did = (await redis.counts()).since(before)
    within = {f"{WITHIN} PUBLISH": 1, f"{WITHIN} GET": 1}
    assert seen == Counter(EVAL=1, PUBLISH=1, **within)
    assert sent(seen) == 2
    assert did.publishes == 2


def test_the_renewal_of_a_lease_is_told_from_other_scripts() -> None:
    keys = b'"toolbus:nodes" "toolbus:nodes:version" "toolbus:gone"'
    beat = b'+1.2 [0 127.0.0.1:5] "EVALSHA" "ab" "3" ' + keys + b' "me"\r\n'
    assert named_in(beat) == LEASE
    assert named_in(beat.replace(b"toolbus:gone", b"toolbus:{r:lab}:facts")) == "EVALSHA"
    assert named_in(b'+1.2 [0 lua] "PUBLISH" "a" "b"\r\n') == f"{WITHIN} PUBLISH"
