"""Bouts, short ones of real processes: who takes part, in which order, how they are judged."""

import dataclasses
from collections.abc import Mapping

import pytest

from bench import bouts, course
from bench.bouts import PARTS, LegFailed, run_bout
from bench.course import Course
from bench.legs import LEGS, Leg
from bench.measure import Load, Sample
from bench.rounds import Figures, Process, Round, figures_of
from bench.verdict import Ratio, Results, alone_per_s, p50_us

SHORT = Load(calls=40, warm_up_calls=8)


def short(name: str, **changes: object) -> Leg:
    leg = next(leg for leg in LEGS if leg.name == name)
    return dataclasses.replace(leg, loads=(SHORT,), **changes)  # type: ignore[arg-type]


async def test_legs_of_a_bout_take_turns_and_their_first_part_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []

    async def watch(processes: Mapping[str, Process], load: Load) -> Figures:
        taken.append(processes["caller"].pid)
        figures = await figures_of(processes, load)
        return dataclasses.replace(figures, sample=Sample(1.0, float(len(taken))))

    monkeypatch.setattr(bouts, "figures_of", watch)
    rounds = await run_bout([short("stock"), short("relay")], "asyncio", 7)
    assert list(rounds) == ["stock", "relay"]
    assert [pid == taken[0] for pid in taken] == [True, False] * (PARTS + 1)
    for name, middle in (("stock", 10.0), ("relay", 11.0)):  # of 3, 5, ... 17, and 4, 6, ... 18
        assert rounds[name].bout == 7
        assert rounds[name].in_flight is None
        alone = rounds[name].alone
        assert alone is not None
        assert alone.sample == Sample(1.0, middle)
        assert all(cpu_us >= 0 for cpu_us in alone.cpu_us)


async def test_bout_goes_on_without_a_rival_that_does_not_start() -> None:
    legs = [short("stock"), short("relay", module="bench.nowhere", is_rival=True), short("toolbus")]
    with pytest.raises(LegFailed, match="relay router ended"):
        await run_bout(legs, "asyncio", 1)
    run = Course({"asyncio": legs})
    await run.run(1)
    assert "relay" in run.results.missing
    measured = {name for (_, name), rounds in run.results.rounds.items() if rounds}
    assert measured == {"stock", "toolbus"}


async def test_bout_ends_where_a_leg_of_ours_fails() -> None:
    run = Course({"asyncio": [short("stock"), short("relay", module="bench.nowhere")]})
    with pytest.raises(RuntimeError, match="relay router ended"):
        await run.run(1)


async def test_each_round_begins_a_bout_with_another_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[str]] = []

    async def run(legs: list[Leg], _loop: str, number: int) -> dict[str, Round]:
        orders.append([leg.name for leg in legs])
        return {leg.name: round_of(1.0, bout=number) for leg in legs}

    monkeypatch.setattr(course, "run_bout", run)
    await Course({"asyncio": [short("stock"), short("relay"), short("nats")]}).run(3)
    assert orders == [
        ["stock", "relay", "nats"],
        ["relay", "nats", "stock"],
        ["nats", "stock", "relay"],
    ]


def round_of(p50_us: float, *, bout: int = 0) -> Round:
    return Round(Figures(Sample(1e6 / p50_us, p50_us), (1.0, 1.0, 1.0)), bout=bout)


def test_ratio_is_the_median_over_bouts() -> None:
    ours = [round_of(120.0, bout=1), round_of(360.0, bout=2), round_of(150.0, bout=3)]
    theirs = [round_of(100.0, bout=1), round_of(200.0, bout=2), round_of(100.0, bout=3)]
    results = Results(rounds={("uvloop", "toolbus"): ours, ("uvloop", "relay"): theirs})
    ratio = Ratio("toolbus", "relay", p50_us)
    assert ratio.of(results, "uvloop") == pytest.approx(1.5)
    assert ratio.best(results, "uvloop") == pytest.approx(1.2)
    rate = Ratio("toolbus", "relay", alone_per_s)
    assert rate.best(results, "uvloop") == pytest.approx(100 / 120)


def test_round_without_its_counterpart_counts_for_no_ratio() -> None:
    ours = [round_of(120.0, bout=1), round_of(900.0, bout=2)]
    results = Results(
        rounds={("uvloop", "toolbus"): ours, ("uvloop", "relay"): [round_of(100.0, bout=1)]}
    )
    assert Ratio("toolbus", "relay", p50_us).of(results, "uvloop") == pytest.approx(1.2)
