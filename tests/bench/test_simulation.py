"""A simulation of few nodes, and what is said of it from figures that are known."""

import dataclasses
from typing import Any

import pytest
from redis.asyncio import Redis

from bench import simulation
from bench.forecast import (
    MEASURES,
    NAME_BYTES,
    ROUND,
    Cost,
    Phase,
    Run,
    Shape,
    all_near,
    deviations,
)
from bench.simulation import FULL, SMALL, run, run_beside, shares
from bench.simulation_report import report
from support.missing_parts import not_verified
from support.redis_server import redis_program

ONE = Cost(*(1.0 for _ in MEASURES))


def run_of(nodes: int, events: int, cost: Cost) -> Run:
    """A run in which each event cost so much, and each second of a node one of everything.

    One node is killed; all others read once who is left.
    """
    whole = cost.times(events).plus(ONE, 2.0 * nodes)
    read = dataclasses.replace(whole, bytes_out=whole.bytes_out + NAME_BYTES * (nodes - 1) ** 2)
    rounds = [dict.fromkeys(ROUND, Phase(events, 2.0, whole))]
    death = Phase(events, 2.0, read)
    idle = ONE.times(nodes)
    return Run(Shape(nodes, events, 1), idle, rounds, death, [1.0, 2.0], 1, 10.0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    if redis_program() is None:
        not_verified("the simulation of many nodes", "there is no Redis")
    monkeypatch.setattr(simulation, "IDLE_S", 0.5)


@pytest.mark.usefixtures("short")
async def test_everybody_comes_changes_is_seen_and_leaves_nothing_behind() -> None:
    small = await run(Shape(nodes=5, rooms=30, processes=2), is_killed=False)
    events = {what: phase.events for what, phase in small.phases.items()}
    assert events == {"join": 90, "register": 30, "change": 90, "leave": 90}
    units = {what: small.unit(what) for what in small.phases}
    assert units["join"].scripts == pytest.approx(2.0, abs=0.2)  # it reads the room, and tells
    assert units["register"].publishes == pytest.approx(3.0, abs=0.2)  # to all who hold the room
    assert units["change"].scripts == pytest.approx(1.0, abs=0.2)
    assert len(small.delays_ms) == 18  # of two watched rooms with three people each
    assert "5 nodes, 30 rooms" in report([small])


@pytest.mark.soak
@pytest.mark.usefixtures("short")
async def test_a_node_that_lost_its_lease_ends_the_simulation(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expire = simulation.Bus._do

    async def lose(bus: simulation.Bus, what: str) -> list[dict[str, Any]]:
        if what == "change":
            async with Redis.from_url(bus._redis.url) as client:
                await client.delete("toolbus:nodes")  # with its next beat each begins anew
                while not await client.exists("toolbus:nodes"):
                    pass
        return await expire(bus, what)

    monkeypatch.setattr(simulation.Bus, "_do", lose)
    with pytest.raises(RuntimeError, match="ended without its word"):
        await run(Shape(nodes=4, rooms=30, processes=2), is_killed=False)
    assert "lost its lease: too many nodes for this machine" in capfd.readouterr().err


@pytest.mark.soak
@pytest.mark.usefixtures("short")
async def test_nodes_that_are_killed_are_forgotten_within_a_lease_and_a_beat() -> None:
    small = await run(Shape(nodes=6, rooms=60, processes=3))
    assert small.dead_nodes == 1
    assert 5.0 < small.forgotten_s < 15.0


def test_costs_that_grow_with_the_number_of_events_are_predicted() -> None:
    small, large = run_of(10, 100, ONE.times(5)), run_of(200, 4_000, ONE.times(6))
    every = [each for each in deviations(small, large) if each.what != "death"]
    assert all(each.share == pytest.approx(0.2, abs=0.02) for each in every)
    assert all(each.is_near for each in deviations(small, large))


def test_that_all_nodes_read_who_is_left_is_predicted_with_the_square_of_their_number() -> None:
    alike = deviations(run_of(10, 100, ONE.times(5)), run_of(200, 4_000, ONE.times(5)))
    lists = next(each for each in alike if (each.what, each.measure) == ("death", "bytes_out"))
    assert lists.predicted == pytest.approx(lists.measured, rel=0.001)
    assert lists.measured > NAME_BYTES * 199**2


@pytest.mark.parametrize(("times", "is_near"), [(1, True), (2, True), (3, False)])
def test_that_all_nodes_read_who_is_left_twice_may_be_and_more_is_off(
    times: int, is_near: bool
) -> None:
    large = run_of(200, 4_000, ONE.times(5))
    assert large.death is not None
    more = NAME_BYTES * 199**2 * (times - 1)
    cost = large.death.cost
    death = dataclasses.replace(
        large.death, cost=dataclasses.replace(cost, bytes_out=cost.bytes_out + more)
    )
    read = dataclasses.replace(large, death=death)
    found = deviations(run_of(10, 100, ONE.times(5)), read)
    assert all_near(found) is is_near


@pytest.mark.parametrize("measure", ["commands", "bytes_in", "redis_cpu_us", "node_cpu_us"])
def test_a_cost_that_grows_faster_is_off(measure: str) -> None:
    costly = dataclasses.replace(ONE.times(5), **{measure: 7.0})
    small, large = run_of(10, 100, ONE.times(5)), run_of(200, 4_000, costly)
    found = deviations(small, large)
    off = [each for each in found if not each.is_near]
    assert {each.measure for each in off} == {measure}
    assert {each.what for each in off if each.is_judged} >= set(ROUND)
    assert not all_near(found)
    table = report([small, large])
    assert "| OFF |" in table
    assert "NOT everything" in table
    assert "not judged: node_cpu_us where a participant's node is killed, as" in table


def test_processor_time_is_compared_with_the_rounds_beside_it() -> None:
    small, large = run_of(10, 100, ONE.times(5)), run_of(200, 4_000, ONE.times(5))
    slow = run_of(10, 100, dataclasses.replace(ONE.times(5), node_cpu_us=15.0)).rounds[0]
    plain = small.rounds[0]
    turned = dataclasses.replace(small, rounds=[slow, plain, plain, plain, slow, slow])
    units = {what: turned.unit_beside(what, 0) for what in ROUND}
    times = [units[what].node_cpu_us for what in ROUND]
    assert times == pytest.approx([5.0, 5.0, 10.0, 15.0])
    off = {each.what for each in deviations(turned, large) if each.is_judged and not each.is_near}
    assert off == {"change", "leave"}


def test_of_three_rounds_the_one_between_counts() -> None:
    small, large = run_of(10, 100, ONE.times(5)), run_of(200, 4_000, ONE.times(5))
    plain, half = small.rounds[0], run_of(10, 100, ONE.times(2.5)).rounds[0]
    many = dataclasses.replace(large, rounds=[large.rounds[0]] * 3)
    beside = [plain] * (1 + 3 * 5)
    for bad, is_near in (([], True), ([0], True), ([2], True), ([0, 2], False)):
        rounds = list(beside)
        for number in bad:  # what was measured beside it was cheaper by half
            rounds[1 + 5 * number : 6 + 5 * number] = [half] * 5
        found = deviations(dataclasses.replace(small, rounds=rounds), many)
        assert all_near(found) is is_near, bad


@pytest.mark.usefixtures("short")
async def test_a_small_bus_takes_turns_with_a_large_one() -> None:
    shapes = Shape(4, 20, 2), Shape(6, 30, 2)
    small, large = await run_beside(*shapes, is_killed=False, rounds=2)
    assert [len(small.rounds), len(large.rounds)] == [11, 2]
    assert {each["join"].events for each in small.rounds} == {60}
    assert large.phases["change"].events == 90
    counted = [
        each
        for each in deviations(small, large)
        if each.what in ROUND and each.measure in ("scripts", "commands")
    ]
    assert len(counted) == 8
    assert all(each.is_near for each in counted)


@pytest.mark.soak
@pytest.mark.timeout(simulation.LIMIT_S)
async def test_two_hundred_nodes_cost_what_twenty_say() -> None:
    if redis_program() is None:
        not_verified("the simulation of many nodes", "there is no Redis")
    small, large = await run_beside(SMALL, FULL)
    assert all_near(deviations(small, large)), report([small, large])


def test_every_node_is_in_one_process() -> None:
    assert shares(Shape(nodes=10, rooms=1, processes=4)) == [(0, 2), (2, 3), (5, 3), (8, 2)]
    *others, killed = shares(Shape(nodes=200, rooms=1, processes=4))
    assert others == [(0, 63), (63, 63), (126, 64)]
    assert killed == (190, 10)
