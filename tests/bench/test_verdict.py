"""What the bench says of figures that are known."""

import pytest

from bench.measure import Sample
from bench.report import render
from bench.rounds import Figures
from bench.verdict import PROMISES, Results, missed

RELAY_OVER_STOCK = next(each for each in PROMISES if each.leg == "relay")


def round_of(p50_us: float, in_flight_per_s: float) -> list[Figures]:
    alone = Sample(per_s=1e6 / p50_us, p50_us=p50_us)
    in_flight = Sample(per_s=in_flight_per_s, p50_us=64e6 / in_flight_per_s)
    return [Figures(alone, (10.0, 10.0, 10.0)), Figures(in_flight, (40.0, 20.0, 20.0))]


def results_of(toolbus: list[Figures]) -> Results:
    return {
        ("uvloop", "stock"): [round_of(150.0, 20_000)],
        ("uvloop", "relay"): [round_of(100.0, 50_000)],
        ("uvloop", "toolbus"): [toolbus],
    }


def test_ratios_within_their_bounds_miss_nothing() -> None:
    assert missed(results_of(round_of(149.0, 33_000)), "uvloop") == []


def test_a_p50_above_its_must_is_missed() -> None:
    (promise,) = missed(results_of(round_of(151.0, 33_000)), "uvloop")
    assert (promise.leg, promise.against, promise.must) == ("toolbus", "relay", 1.5)


def test_a_throughput_below_its_must_is_missed() -> None:
    (promise,) = missed(results_of(round_of(149.0, 32_000)), "uvloop")
    assert (promise.leg, promise.against, promise.must) == ("toolbus", "relay", 0.65)


def test_a_leg_that_was_not_measured_is_missed() -> None:
    assert RELAY_OVER_STOCK in missed({}, "uvloop")


def test_every_round_counts_in_the_median() -> None:
    results = {
        ("uvloop", "stock"): [round_of(100.0, 1_000)] * 3,
        ("uvloop", "relay"): [round_of(p50_us, 1_000) for p50_us in (50.0, 200.0, 400.0)],
    }
    assert RELAY_OVER_STOCK.ratio(results, "uvloop") == pytest.approx(0.5)


def test_report_shows_medians_spread_and_verdict() -> None:
    text = render(results_of(round_of(110.0, 30_000)), ["uvloop"], {"machine": "some"})
    assert "| toolbus / relay: one at a time, p50 | **1.10x** | 1.00x | <= 1.5x | 1.2x |" in text
    assert "| **0.60x** | 1.00x | >= 0.65x | 0.85x | missed |" in text
    assert "| relay | **100** [100-100] |" in text
