"""What the bench says of figures that are known."""

import dataclasses

import pytest

from bench.crossing import Counts, Crossing, Idle, Joins, Leap
from bench.gathering import Gathering
from bench.measure import Load, Sample
from bench.options import chosen_promises, legs_of
from bench.passages import QUIET, Delays, Passage, Transfer, delays_of
from bench.promises import PROMISES
from bench.redis_watch import RedisCounts
from bench.report import render
from bench.rivals import pip_error
from bench.rounds import Figures, Round
from bench.turns import Turn, Turns
from bench.verdict import Promise, Results, missed, span_cpu_us

RELAY = [promise for promise in PROMISES if promise.row in ("relay", "stock")]
RELAY_OVER_STOCK = next(each for each in PROMISES if each.row == "stock")


def round_of(
    p50_us: float, in_flight_per_s: float, *, cpu_us: float = 10.0, spans: float = 0.0
) -> Round:
    alone = Sample(per_s=1e6 / p50_us, p50_us=p50_us)
    in_flight = Sample(per_s=in_flight_per_s, p50_us=64e6 / in_flight_per_s)
    return Round(
        Figures(alone, (cpu_us, cpu_us, cpu_us)), Figures(in_flight, (40.0, 20.0, 20.0)), spans
    )


def results_of(**legs: Round | list[Round]) -> Results:
    rounds = {
        ("uvloop", name): value if isinstance(value, list) else [value]
        for name, value in legs.items()
    }
    return Results(rounds=rounds)


def beside_relays(toolbus: Round) -> Results:
    return results_of(stock=round_of(150.0, 20_000), relay=round_of(100.0, 50_000), toolbus=toolbus)


def gathering_of(memory_kib: float) -> Gathering:
    return Gathering(
        5_000, memory_kib, memory_kib + 0.5, joins_per_s=210.4, join_cpu_us=2_208.0, took_s=40.0
    )


def turns_of(*, plain: list[float], recorded: list[float]) -> Turns:
    """Turns of 2 s each that came to so many calls per second."""

    def turn(per_s: float) -> Turn:
        return Turn(int(per_s * 2), 2.0, (1e6 / per_s, 10.0, 10.0))

    return Turns([turn(per_s) for per_s in plain], [turn(per_s) for per_s in recorded])


def turning(rounds: list[Turns]) -> Results:
    return Results(turns={("uvloop", "toolbus-1%"): rounds})


def passage_of(down_per_s: float, *, up_per_s: float = 100.0, cpu_us: float = 2_000.0) -> Passage:
    cpu = (cpu_us, 1_000.0, 1_000.0)
    return Passage(Transfer(down_per_s, cpu), Transfer(up_per_s, cpu))


def passing(*, toolbus: list[Passage], relay: list[Passage]) -> Results:
    legs = {"toolbus-file": toolbus, "relay-file": relay}
    return Results(passages={("uvloop", name): passages for name, passages in legs.items()})


def leaps_of(*per_s: float, cpu_us: float = 10.0) -> list[Leap]:
    """Turns of a second each that came to so many calls."""
    cpu, redis = (cpu_us, cpu_us, cpu_us, 50.0, 60.0), RedisCounts(20, 0, 30, 4_000, 5_000, 0.001)
    return [Leap(int(rate), 1.0, 1e6 / rate, cpu, redis) for rate in per_s]


GOOD_IDLE = Idle(sent=0.4, published=0.3, run=2.7)
GOOD_COUNTS = Counts(2.0, 0.0, 0.0, GOOD_IDLE, GOOD_IDLE)
GOOD_JOINS = Joins([2.0, 3.0, 4.0], [5.0, 6.0, 7.0], [3.0], [300.0])


def crossing_of(
    *,
    far: float = 50.0,
    shared_cpu_us: float = 10.0,
    counts: Counts | None = GOOD_COUNTS,
    joins: Joins | None = GOOD_JOINS,
) -> Crossing:
    """A round whose figures hold, but for what is named; 100 calls/s are made within a node."""
    near, across = leaps_of(100.0, 100.0), leaps_of(far)
    shared = leaps_of(100.0, cpu_us=shared_cpu_us)
    return Crossing(near, shared, near, across, near, across, counts, joins)


def crossed(*rounds: Crossing) -> Results:
    return Results(crossings={("uvloop", "toolbus-nodes"): list(rounds)})


def promises_of(row: str) -> list[Promise]:
    return [promise for promise in PROMISES if promise.row == row]


def test_ratios_within_their_bounds_miss_nothing() -> None:
    assert missed(RELAY, beside_relays(round_of(149.0, 33_000)), "uvloop") == []


def test_a_p50_above_its_must_is_missed() -> None:
    (promise,) = missed(RELAY, beside_relays(round_of(151.0, 33_000)), "uvloop")
    assert (promise.name, promise.must) == ("toolbus / relay: one at a time, p50", 1.5)


def test_a_throughput_below_its_must_is_missed() -> None:
    (promise,) = missed(RELAY, beside_relays(round_of(149.0, 32_000)), "uvloop")
    assert (promise.name, promise.must) == ("toolbus / relay: 64 in flight, calls/s", 0.65)


def test_what_was_not_measured_is_missed() -> None:
    judged = [promise for promise in PROMISES if promise.is_judged]
    assert missed(PROMISES, Results(), "uvloop") == judged


def test_every_round_counts_in_the_median() -> None:
    relay = [round_of(p50_us, 1_000) for p50_us in (50.0, 200.0, 400.0)]
    results = results_of(stock=[round_of(100.0, 1_000)] * 3, relay=relay)
    assert RELAY_OVER_STOCK.figure.of(results, "uvloop") == pytest.approx(0.5)


@pytest.mark.parametrize(("alone_us", "in_flight", "failed"), [(80, 9e3, 0), (85, 7.9e3, 2)])
def test_nats_is_judged_one_at_a_time_and_in_flight(
    alone_us: float, in_flight: float, failed: int
) -> None:
    results = results_of(nats=round_of(100.0, 10_000), toolbus=round_of(alone_us, in_flight))
    assert len(missed(promises_of("nats"), results, "uvloop")) == failed


@pytest.mark.parametrize(
    ("per_s", "word"), [(9_701, "aim met"), (9_100, "must met"), (8_900, "missed")]
)
def test_one_percent_traced_is_judged_against_the_turns_beside(per_s: float, word: str) -> None:
    (promise,) = promises_of("traced")
    assert promise.figure.legs == ("toolbus-1%",)
    results = turning([turns_of(plain=[10_000] * 3, recorded=[per_s] * 2)])
    assert promise.word(promise.figure.of(results, "uvloop") or 0) == word
    assert missed([promise], results, "uvloop") == ([promise] if word == "missed" else [])


def test_a_machine_that_slows_down_between_turns_changes_no_ratio() -> None:
    turns = turns_of(plain=[20_000, 10_000, 4_000], recorded=[13_500, 6_300])
    assert turns.ratios(lambda turn: turn.per_s) == pytest.approx([0.9, 0.9])


def test_every_turn_of_every_round_counts_in_the_median() -> None:
    (promise,) = promises_of("traced")
    many = turns_of(plain=[100] * 4, recorded=[95, 94, 93])
    results = turning([turns_of(plain=[100] * 2, recorded=[10]), many])
    assert promise.figure.of(results, "uvloop") == pytest.approx(0.935)
    assert promise.figure.best(results, "uvloop") == pytest.approx(0.94)


def test_turns_are_lost_only_when_no_rounds_median_holds() -> None:
    (promise,) = promises_of("traced")
    bad, good = (turns_of(plain=[100] * 2, recorded=[per_s]) for per_s in (80, 91))
    assert promise.is_lost(turning([bad, bad]), "uvloop")
    assert promise.is_missed(turning([bad, bad, good]), "uvloop")
    assert not promise.is_lost(turning([bad, bad, good]), "uvloop")


def test_ten_thousand_toolkits_may_cost_a_tenth_more() -> None:
    (promise,) = promises_of("toolkits")
    few, many = round_of(100.0, 1_000), round_of(110.0, 1_000)
    results = Results({("uvloop", "toolbus-10"): [few], ("uvloop", "toolbus-10000"): [many]})
    assert missed([promise], results, "uvloop") == []
    results.rounds["uvloop", "toolbus-10000"] = [round_of(111.0, 1_000)]
    assert missed([promise], results, "uvloop") == [promise]


@pytest.mark.parametrize(
    ("memory_kib", "word"), [(18.0, "aim met"), (24.0, "must met"), (24.1, "missed")]
)
def test_memory_of_an_idle_participant_is_judged_in_kib(memory_kib: float, word: str) -> None:
    (promise,) = promises_of("idle")
    results = Results(gatherings={"uvloop": [gathering_of(memory_kib)]})
    assert promise.word(promise.figure.of(results, "uvloop") or 0) == word
    assert missed([promise], results, "uvloop") == ([promise] if word == "missed" else [])


@pytest.mark.parametrize(
    ("per_s", "word"), [(90.0, "aim met"), (60.0, "must met"), (59.0, "missed")]
)
def test_files_are_judged_against_the_relays_each_way_by_itself(per_s: float, word: str) -> None:
    relay = [passage_of(rate, up_per_s=rate) for rate in (10.0, 100.0, 400.0)]
    down, up = promises_of("file")
    for promise, other, toolbus in (
        (down, up, passage_of(per_s, up_per_s=90.0)),
        (up, down, passage_of(90.0, up_per_s=per_s)),
    ):
        assert promise.figure.legs == ("toolbus-file", "relay-file")
        results = passing(toolbus=[toolbus], relay=relay)
        assert promise.word(promise.figure.of(results, "uvloop") or 0) == word
        assert missed([down, up], results, "uvloop") == ([promise] if word == "missed" else [])
        assert other.word(other.figure.of(results, "uvloop") or 0) == "aim met"


def test_a_way_of_files_that_was_not_measured_is_missed() -> None:
    promise, _ = promises_of("file")
    results = passing(toolbus=[passage_of(90.0)], relay=[])
    assert missed([promise], results, "uvloop") == [promise]
    assert promise.is_lost(results, "uvloop")


def test_files_are_lost_only_when_even_the_kindest_passages_miss() -> None:
    promise, _ = promises_of("file")
    ours, theirs = passage_of(50.0), [passage_of(rate) for rate in (80.0, 100.0, 100.0)]
    assert promise.is_missed(passing(toolbus=[ours], relay=theirs), "uvloop")
    assert not promise.is_lost(passing(toolbus=[ours], relay=theirs), "uvloop")
    assert promise.is_lost(passing(toolbus=[passage_of(47.0)], relay=theirs), "uvloop")


@pytest.mark.parametrize(
    ("crossing", "titles"),
    [
        (crossing_of(), []),
        (crossing_of(far=35.0), []),
        (crossing_of(far=34.0), ["64 in flight, calls/s"]),
        (crossing_of(far=24.0), ["one at a time, p50", "64 in flight, calls/s"]),
        (crossing_of(shared_cpu_us=10.5), []),
        (crossing_of(shared_cpu_us=10.6), ["64 in flight, CPU per call"]),
        (crossing_of(joins=Joins([2.0], [4.1], [1.0], [1.0])), ["a join"]),
        (
            crossing_of(counts=dataclasses.replace(GOOD_COUNTS, far_publishes=2.01)),
            ["PUBLISH, for each call between nodes"],
        ),
        (
            crossing_of(counts=dataclasses.replace(GOOD_COUNTS, local=0.005)),
            ["others, for each call of any kind"],
        ),
        (
            crossing_of(counts=dataclasses.replace(GOOD_COUNTS, far_others=0.005)),
            ["others, for each call of any kind"],
        ),
        (
            crossing_of(counts=dataclasses.replace(GOOD_COUNTS, idle_in_rooms=Idle(0.7, 0.4, 2.0))),
            ["of an idle node, per second"],
        ),
    ],
)
def test_each_promise_on_nodes_is_judged_by_itself(crossing: Crossing, titles: list[str]) -> None:
    failed = missed(promises_of("nodes"), crossed(crossing), "uvloop")
    assert [promise.title for promise in failed] == titles


def test_what_is_counted_has_to_hold_in_every_round() -> None:
    bad = crossing_of(counts=dataclasses.replace(GOOD_COUNTS, far_publishes=3.0))
    good = crossing_of()
    (promise,) = missed(promises_of("nodes"), crossed(good, good, bad), "uvloop")
    assert promise.title == "PUBLISH, for each call between nodes"
    assert promise.is_lost(crossed(good, good, bad), "uvloop")


def test_a_ratio_of_nodes_is_the_median_over_bouts() -> None:
    results = crossed(crossing_of(far=30.0), crossing_of(far=40.0), crossing_of(far=90.0))
    rate = next(each for each in promises_of("nodes") if each.title == "64 in flight, calls/s")
    assert rate.figure.of(results, "uvloop") == pytest.approx(0.4)
    assert rate.figure.best(results, "uvloop") == pytest.approx(0.9)


def test_rounds_of_nodes_that_count_nothing_take_nothing_away() -> None:
    plain = crossing_of(counts=None, joins=None)
    assert missed(promises_of("nodes"), crossed(crossing_of(), plain), "uvloop") == []
    failed = missed(promises_of("nodes"), crossed(plain), "uvloop")
    assert [promise.title for promise in failed] == [
        "a join",
        "PUBLISH, for each call between nodes",
        "others, for each call of any kind",
        "of an idle node, per second",
    ]


def test_of_delays_one_in_a_hundred_is_beyond_p99() -> None:
    assert delays_of([*range(1, 1_000)]) == Delays(500, 990)


def test_a_rival_that_is_only_aimed_at_is_never_missed() -> None:
    rivals = promises_of("rivals")
    results = results_of(
        crossbar=round_of(100.0, 1_000), fastmcp=round_of(100.0, 1_000), toolbus=round_of(90.0, 2e3)
    )
    assert {promise.word(promise.figure.of(results, "uvloop") or 0) for promise in rivals} == {
        "below aim"
    }
    assert missed(rivals, results, "uvloop") == []


def test_a_miss_is_lost_only_when_even_its_kindest_rounds_miss() -> None:
    p50, _ = promises_of("relay")
    relay = [round_of(100.0, 1_000), round_of(120.0, 1_000)]
    near = results_of(relay=relay, toolbus=[round_of(170.0, 1_000), round_of(190.0, 1_000)])
    far = results_of(relay=relay, toolbus=[round_of(181.0, 1_000), round_of(190.0, 1_000)])
    assert p50.is_missed(near, "uvloop")
    assert not p50.is_lost(near, "uvloop")
    assert p50.is_lost(far, "uvloop")


def test_cpu_of_a_span_is_what_a_call_with_four_costs_more() -> None:
    results = results_of(toolbus=round_of(100.0, 1_000, cpu_us=100.0))
    results.rounds["uvloop", "toolbus-100%"] = [round_of(300.0, 1_000, cpu_us=180.0, spans=4.0)]
    assert span_cpu_us(results, "uvloop") == pytest.approx(60.0)


def test_a_row_runs_the_legs_of_its_figures() -> None:
    promises = chosen_promises(["traced"], judged=True)
    assert [leg.name for leg in legs_of(promises, printed=False)] == ["toolbus-1%"]
    printed = {leg.name for leg in legs_of(promises, printed=True)}
    assert printed == {"toolbus", "toolbus-untraced", "toolbus-1%", "toolbus-100%"}


def test_a_check_runs_no_leg_that_nothing_judges() -> None:
    legs = {leg.name for leg in legs_of(chosen_promises(None, judged=True), printed=False)}
    assert {"nats", "toolbus-1%", "toolbus-10000"} <= legs
    assert not {"crossbar", "fastmcp", "relay-batched"} & legs


def test_a_smaller_load_still_has_every_call_in_flight() -> None:
    assert Load(20_000, 64, 2_000).scaled(0.01) == Load(200, 64, 64)


def test_pips_own_error_is_the_reason() -> None:
    said = "WARNING: old\nERROR: No matching distribution found for x==1\n[notice] a new release\n"
    assert pip_error(said) == "No matching distribution found for x==1"


def test_report_shows_medians_spread_and_verdict() -> None:
    text = render(beside_relays(round_of(110.0, 30_000)), ["uvloop"], {"machine": "some"})
    row = "| toolbus / relay: one at a time, p50 | **1.10x** | 1.00x | <= 1.5x | 1.2x | aim met |"
    assert row in text
    assert "| **0.60x** | 1.00x | >= 0.65x | 0.85x | missed |" in text
    assert "| relay | **100** [100-100] |" in text


def test_report_shows_both_kinds_of_turns_and_the_quartiles_of_their_ratio() -> None:
    text = render(turning([turns_of(plain=[100] * 4, recorded=[95, 94, 93])]), ["uvloop"], {})
    assert "| **100** [100-100] | **94** [93-95] | 10000 + 10 + 10 | 10638 + 10 + 10 |" in text
    assert "| **0.94x** [0.94-0.94] |" in text
    assert "| toolbus-1% / none, turn by turn: 64 in flight, calls/s | **0.94x** | 0.94x |" in text
    assert "- `toolbus-1%`: turns without" in text


def test_report_shows_what_a_gathering_cost() -> None:
    results = Results(gatherings={"uvloop": [gathering_of(20.0), gathering_of(22.0)]})
    text = render(results, ["uvloop"], {})
    assert "| 5,000 | **21.0** [20.0-22.0] | **21.5** [20.5-22.5] | **210** [210-210] |" in text
    assert "| **21.0 KiB** | - | <= 24 KiB | 18 KiB | must met |" in text


def test_report_shows_what_went_by_and_how_long_calls_beside_took() -> None:
    delays = {QUIET: Delays(300.0, 400.0), "a file, same connection": Delays(500.0, 1_000.0)}
    items = Transfer(20_000.0, (14.0, 15.0, 16.0))
    way = Transfer(240.0, (2_000.0, 1_500.0, 1_000.0))
    passage = Passage(way, Transfer(120.0, way.cpu_us), items, delays)
    results = passing(toolbus=[passage], relay=[passage_of(200.0, cpu_us=4_000.0)])
    text = render(results, ["uvloop"], {})
    ways = "**240** [240-240] | 2000 + 1500 + 1000 | **120** [120-120] | 2000 + 1500 + 1000"
    assert f"| toolbus-file | {ways} | **20,000** [20,000-20,000] | 14 + 15 + 16 |" in text
    relay = "**200** [200-200] | 4000 + 1000 + 1000 | **100** [100-100] | 4000 + 1000 + 1000"
    assert f"| relay-file | {relay} | - | - |" in text
    beside = "a file, same connection | **500** [500-500] | **1,000** [1,000-1,000] | 2.5x"
    assert f"| {beside} |" in text
    assert "MB/s | **1.20x** | 1.78x | >= 0.6x | 0.9x | aim met |" in text
    assert "- `relay-file`: a relay on our transport that moves" in text


def test_report_shows_calls_between_nodes_and_what_redis_did_for_them() -> None:
    text = render(crossed(crossing_of()), ["uvloop"], {})
    assert "| at another node | **20,000** [20,000-20,000] | 10 + 10 + 10 + 50 + 60 |" in text
    kinds = "**0.40** [0.40-0.40] | **80** [80-80] | **100** [100-100] | **20.0** [20.0-20.0] |"
    assert f"| one at a time | {kinds}" in text
    assert "| PUBLISH for a call between nodes | 2.000 |" in text
    assert "| the first of its node, with 5,000 | **300.0** [300.0-300.0] |" in text
    assert "| between nodes / within one: 64 in flight, calls/s | **0.50x** |" in text
    assert "| **2.00** | - | <= 2 | 2 | aim met |" in text


def test_report_names_what_is_missing_and_why() -> None:
    results = beside_relays(round_of(110.0, 30_000))
    results.missing["crossbar"] = "pip: no matching distribution"
    text = render(results, ["uvloop"], {})
    assert "- not measured: crossbar: pip: no matching distribution" in text
    assert "| - | - | - | 5x | not measured: crossbar |" in text
    assert "| crossbar |" not in text
