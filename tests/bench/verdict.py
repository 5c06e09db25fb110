"""The promised ratios: which leg by which, what must hold, and what is aimed at."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench.measure import Load
from bench.rounds import Figures

ALONE = Load(calls=4_000)
IN_FLIGHT = Load(calls=20_000, in_flight=64)
LOADS = (ALONE, IN_FLIGHT)

Round: TypeAlias = Sequence[Figures]
"""What one leg did in one round under each of `LOADS`."""

Results: TypeAlias = Mapping[tuple[str, str], Sequence[Round]]
"""All rounds by loop and leg."""

Measure: TypeAlias = Callable[[Round], float]
"""Takes one number out of a round."""


def p50_us(round_: Round) -> float:
    return round_[0].sample.p50_us


def alone_per_s(round_: Round) -> float:
    return round_[0].sample.per_s


def in_flight_per_s(round_: Round) -> float:
    return round_[1].sample.per_s


def alone_cpu_us(round_: Round) -> float:
    """Processor time of one call at a time, over all three processes."""
    return sum(round_[0].cpu_us)


def alone_cpu_per_s(round_: Round) -> float:
    """Calls per second, one at a time, if there were nothing but processor time."""
    return 1e6 / alone_cpu_us(round_)


def in_flight_cpu_per_s(round_: Round) -> float:
    """Calls per second that the processor time would allow: the busiest process, or all cores."""
    cpu_us = round_[1].cpu_us
    return 1e6 / max(*cpu_us, sum(cpu_us) / (os.cpu_count() or 1))


BY_CPU: Mapping[Measure, Measure] = {
    p50_us: alone_cpu_us,
    alone_per_s: alone_cpu_per_s,
    in_flight_per_s: in_flight_cpu_per_s,
}
"""What to compare instead where other programs disturb the clock on the wall."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A ratio of two legs' medians in one run, and its bounds."""

    title: str
    leg: str
    against: str
    measure: Measure
    must: float
    aim: float
    is_judged: bool = True
    """Whether `--check` fails on it; others are printed."""

    @property
    def less_is_better(self) -> bool:
        return self.measure is p50_us

    def ratio(self, results: Results, loop: str, *, by_cpu: bool = False) -> float | None:
        """The measured ratio; None if one of the legs was not measured."""
        leg, against = results.get((loop, self.leg)), results.get((loop, self.against))
        if not leg or not against:
            return None
        measure = BY_CPU[self.measure] if by_cpu else self.measure
        return median_of(leg, measure) / median_of(against, measure)

    def word(self, ratio: float) -> str:
        """How the ratio stands: "aim met", "must met" or "missed"."""
        for bound, word in ((self.aim, "aim met"), (self.must, "must met")):
            if (ratio <= bound) if self.less_is_better else (ratio >= bound):
                return word
        return "missed"


PROMISES = (
    Promise("one at a time, p50", "toolbus", "relay", p50_us, must=1.5, aim=1.2),
    Promise("64 in flight, calls/s", "toolbus", "relay", in_flight_per_s, must=0.65, aim=0.85),
    Promise("one at a time, p50", "toolbus", "relay-batched", p50_us, 1.5, 1.2, is_judged=False),
    Promise(
        "64 in flight, calls/s",
        "toolbus",
        "relay-batched",
        in_flight_per_s,
        0.65,
        0.85,
        is_judged=False,
    ),
    Promise("one at a time, calls/s", "relay", "stock", alone_per_s, must=0.95, aim=1.0),
    Promise("64 in flight, calls/s", "relay", "stock", in_flight_per_s, must=0.95, aim=1.0),
    Promise("one at a time, calls/s", "toolbus", "nats", alone_per_s, 1.2, 1.4, is_judged=False),
    Promise("64 in flight, calls/s", "toolbus", "nats", in_flight_per_s, 0.8, 1.0, is_judged=False),
)


def median_of(rounds: Sequence[Round], measure: Measure) -> float:
    return statistics.median(measure(each) for each in rounds)


def missed(results: Results, loop: str) -> list[Promise]:
    """The judged promises that do not hold on this loop, or were not measured."""
    ratios = {each: each.ratio(results, loop) for each in PROMISES if each.is_judged}
    return [each for each, ratio in ratios.items() if ratio is None or each.word(ratio) == "missed"]
