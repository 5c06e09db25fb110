"""The verdict's arithmetic, and one leg that runs. Nothing here judges by the clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.idle import Idle
from bench.legs import ALONE, GROUPS, IN_FLIGHT, LOOP, RELAY, Contender, Group, Load
from bench.report import render
from bench.rounds import IDLE, Part, Results, run_round
from bench.verdict import ABOVE, MS, P50, ROWS, Row, missed

LATENCY = Row("calls", 1.15, 1.0, ALONE, "toolbus", "relay", P50)
THROUGHPUT = Row("calls", 1.3, 1.7, IN_FLIGHT, "toolbus", "relay")
WRAPPED = Row("local", 0.6, 0.4, ALONE, "three middlewares and records", "function", ABOVE)
MEMORY = Row(IDLE, 24.0, 18.0)


def measured(row: Row, *rounds: Sequence[tuple[float, float]]) -> Results:
    """Results with these parts of the contender and of what it is compared with."""
    assert row.load is not None
    results = Results()
    results.rounds[row.group, row.load.name] = [
        {
            row.contender: [Part(one, one, (one, one)) for one, _ in pairs],
            row.against: [Part(other, other, (other, other)) for _, other in pairs],
            LOOP.name: [Part(100, 100, (100, 100))],
        }
        for pairs in rounds
    ]
    return results


@pytest.mark.parametrize(
    ("row", "value", "verdict"),
    [
        (LATENCY, 99.0, "aim met"),
        (LATENCY, 114.0, "met"),
        (LATENCY, 116.0, "MISSED"),
        (WRAPPED, 139.0, "aim met"),
        (WRAPPED, 161.0, "MISSED"),
        (THROUGHPUT, 171.0, "aim met"),
        (THROUGHPUT, 131.0, "met"),
        (THROUGHPUT, 129.0, "MISSED"),
    ],
)
def test_a_must_that_does_not_hold_is_missed(row: Row, value: float, verdict: str) -> None:
    results = measured(row, [(value, 100.0)])
    assert row.verdict(results) == verdict
    assert missed([row], results) == ([row] if verdict == "MISSED" else [])


def test_memory_above_its_must_is_missed() -> None:
    results = Results(idle=[Idle(5_000, 24.1, 700.0, 1_000.0)])
    assert missed([MEMORY], results) == [MEMORY]


@pytest.mark.parametrize("row", [LATENCY, MEMORY])
def test_a_judged_row_that_was_not_measured_is_missed(row: Row) -> None:
    assert missed([row], Results()) == [row]
    assert row.verdict(Results()) == "MISSED: not measured"


def test_a_row_whose_rival_is_missing_is_missed() -> None:
    results = measured(LATENCY, [(100.0, 100.0)])
    row = Row("calls", 1.5, 2.0, ALONE, "toolbus", "nats")
    assert missed([LATENCY, row], results) == [row]


def test_a_row_without_a_must_is_never_missed() -> None:
    row = Row("rivals", None, None, ALONE, "toolbus", "crossbar")
    assert missed([row], Results()) == []
    assert row.verdict(Results()) == "reported: not measured"


def test_a_ratio_is_the_median_over_rounds_of_parts_side_by_side() -> None:
    results = measured(LATENCY, [(110, 100), (220, 200), (900, 300)], [(150, 100)], [(120, 100)])
    assert LATENCY.values(results) == pytest.approx([1.1, 1.5, 1.2])
    assert LATENCY.value(results) == pytest.approx(1.2)


def test_processor_time_is_compared_over_all_parts_of_a_round() -> None:
    assert LATENCY.values(measured(LATENCY, [(100, 100), (300, 100)]), by_cpu=True) == [2.0]
    assert MEMORY.values(Results(idle=[Idle(1, 1, 1, 1)]), by_cpu=True) == []


@pytest.mark.parametrize(("value", "is_close"), [(114.0, False), (120.0, True), (140.0, False)])
def test_only_rows_that_are_missed_by_little_are_measured_again(
    value: float, is_close: bool
) -> None:
    assert LATENCY.is_close(measured(LATENCY, [(value, 100.0)])) is is_close


def test_each_row_names_contenders_and_a_load_of_its_group() -> None:
    groups = {group.name: group for group in GROUPS}
    for row in ROWS:
        if row.load is not None:
            names = {each.name for each in groups[row.group].contenders}
            unit = {LOOP.name} if row.figure == ABOVE else {""}
            assert ({row.contender, row.against} | unit) - {""} <= names
            assert row.must is None or row.figure != MS  # it would judge the machine
            assert row.load in groups[row.group].loads


async def test_a_round_measures_its_legs_and_leaves_out_one_that_fails() -> None:
    broken = Contender(RELAY.__class__("broken", "bench.no_such_leg", "does not start"))
    load = Load("tiny", {"order": "call", "seconds": 0.01, "in_flight": 2}, parts=1)
    contenders = (Contender(RELAY), broken, Contender(RELAY, "again"))
    group = Group("smoke", contenders, (load,), rounds=1)
    results = Results()
    await run_round(group, results, "asyncio")
    [round_] = results.rounds["smoke", "tiny"]
    assert round_.keys() == {"relay", "again"}
    assert all(part.amount > 0 for parts in round_.values() for part in parts)
    assert list(results.missing) == ["broken"]
    row = Row("smoke", 1.0, None, load, "relay", "broken")
    text = render(results, [group], [row], {"machine": "some"})
    assert "| relay / broken: tiny, calls/s | - | - | >= 1x | - | MISSED: not measured |" in text
    assert "| smoke | again | tiny |" in text
