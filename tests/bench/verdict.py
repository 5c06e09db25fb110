"""The promises: which figure of a run, what must hold, and what is aimed at."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol, TypeAlias

from bench.crossing import Crossing
from bench.gathering import Gathering
from bench.passages import Passage, Transfer
from bench.rounds import Figures, Round, rate_by_cpu
from bench.shares import Shares
from bench.turns import Turns

Measure: TypeAlias = Callable[[Round], float]
"""Takes one number out of a round."""


@dataclass(slots=True)
class Results:
    """Everything that was measured in one run."""

    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)
    """By loop and leg."""
    turns: dict[tuple[str, str], list[Turns]] = field(default_factory=dict)
    """By loop and leg, of those that take turns."""
    passages: dict[tuple[str, str], list[Passage]] = field(default_factory=dict)
    """By loop and leg, of those that move files."""
    crossings: dict[tuple[str, str], list[Crossing]] = field(default_factory=dict)
    """By loop and leg, of those that go from node to node."""
    gatherings: dict[str, list[Gathering]] = field(default_factory=dict)
    """By loop."""
    shares: dict[str, Shares] = field(default_factory=dict)
    """By loop."""
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why."""

    def of(self, loop: str, leg: str) -> Sequence[Round]:
        return self.rounds.get((loop, leg), ())


def _alone(round_: Round) -> Figures:
    assert round_.alone is not None, "a leg is asked for a load that is not its own"
    return round_.alone


def _in_flight(round_: Round) -> Figures:
    assert round_.in_flight is not None, "a leg is asked for a load that is not its own"
    return round_.in_flight


def p50_us(round_: Round) -> float:
    return _alone(round_).sample.p50_us


def alone_per_s(round_: Round) -> float:
    return _alone(round_).sample.per_s


def in_flight_per_s(round_: Round) -> float:
    return _in_flight(round_).sample.per_s


def alone_cpu_us(round_: Round) -> float:
    """Processor time of one call at a time, over all processes."""
    return sum(_alone(round_).cpu_us)


def alone_cpu_per_s(round_: Round) -> float:
    """Calls per second, one at a time, if there were nothing but processor time."""
    return 1e6 / alone_cpu_us(round_)


def in_flight_cpu_per_s(round_: Round) -> float:
    """Calls per second that the processor time would allow: the busiest process, or all cores."""
    return rate_by_cpu(_in_flight(round_).cpu_us)


BY_CPU: Mapping[Measure, Measure] = {
    p50_us: alone_cpu_us,
    alone_per_s: alone_cpu_per_s,
    in_flight_per_s: in_flight_cpu_per_s,
}
"""What to compare instead where other programs disturb the clock on the wall."""


class Figure(Protocol):
    """One number of a run, from all its rounds."""

    @property
    def name(self) -> str:
        """Of what it is a number."""

    @property
    def unit(self) -> str:
        """What stands behind the number."""

    @property
    def legs(self) -> tuple[str, ...]:
        """The legs that must be measured for it."""

    @property
    def less_is_better(self) -> bool:
        """Whether bounds are ceilings."""

    def of(self, results: Results, loop: str) -> float | None:
        """The number, by medians over the rounds; None where it was not measured."""

    def best(self, results: Results, loop: str) -> float | None:
        """What the number would be if only its kindest rounds counted."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two legs in one run: the median over bouts, else of their medians."""

    leg: str
    against: str
    measure: Measure
    unit: str = "x"

    @property
    def name(self) -> str:
        return f"{self.leg} / {self.against}"

    @property
    def legs(self) -> tuple[str, ...]:
        return (self.leg, self.against)

    @property
    def less_is_better(self) -> bool:
        return self.measure is p50_us

    def of(self, results: Results, loop: str, *, by_cpu: bool = False) -> float | None:
        measure = BY_CPU[self.measure] if by_cpu else self.measure
        return self._ratio(results, loop, measure, statistics.median, statistics.median)

    def best(self, results: Results, loop: str) -> float | None:
        kindest, harshest = (min, max) if self.less_is_better else (max, min)
        return self._ratio(results, loop, self.measure, kindest, harshest)

    def _ratio(
        self,
        results: Results,
        loop: str,
        measure: Measure,
        of_leg: Callable[[Iterable[float]], float],
        of_other: Callable[[Iterable[float]], float],
    ) -> float | None:
        leg, against = results.of(loop, self.leg), results.of(loop, self.against)
        if not leg or not against:
            return None
        beside = {round_.bout: round_ for round_ in against if round_.bout}
        pairs = [(each, beside[each.bout]) for each in leg if each.bout in beside]
        if pairs:
            return of_leg(measure(ours) / measure(theirs) for ours, theirs in pairs)
        return of_leg(map(measure, leg)) / of_other(map(measure, against))


@dataclass(frozen=True, slots=True)
class OfTurns:
    """What is left of the calls per second when some are recorded, turn by turn."""

    leg: str
    less_is_better: bool = False
    unit: str = "x"

    @property
    def name(self) -> str:
        return f"{self.leg} / none, turn by turn"

    @property
    def legs(self) -> tuple[str, ...]:
        return (self.leg,)

    def of(self, results: Results, loop: str, *, by_cpu: bool = False) -> float | None:
        rounds = self._ratios(results, loop, by_cpu=by_cpu)
        return statistics.median(itertools.chain(*rounds)) if rounds else None

    def best(self, results: Results, loop: str) -> float | None:
        rounds = self._ratios(results, loop)
        return max(map(statistics.median, rounds)) if rounds else None

    def _ratios(self, results: Results, loop: str, *, by_cpu: bool = False) -> list[list[float]]:
        measure = attrgetter("cpu_per_s" if by_cpu else "per_s")
        return [turns.ratios(measure) for turns in results.turns.get((loop, self.leg), ())]


def down(passage: Passage) -> Transfer:
    """Files from host to caller."""
    return passage.download


def up(passage: Passage) -> Transfer:
    """Files from caller to host."""
    return passage.upload


@dataclass(frozen=True, slots=True)
class OfPassages:
    """A ratio of what two legs moved per second, by medians."""

    leg: str
    against: str
    way: Callable[[Passage], Transfer]
    less_is_better: bool = False
    unit: str = "x"

    @property
    def name(self) -> str:
        return f"{self.leg} / {self.against}"

    @property
    def legs(self) -> tuple[str, ...]:
        return (self.leg, self.against)

    def of(self, results: Results, loop: str, *, by_cpu: bool = False) -> float | None:
        rates = [self._rates(results, loop, leg, by_cpu=by_cpu) for leg in self.legs]
        return statistics.median(rates[0]) / statistics.median(rates[1]) if all(rates) else None

    def best(self, results: Results, loop: str) -> float | None:
        ours, theirs = (self._rates(results, loop, leg) for leg in self.legs)
        return max(ours) / min(theirs) if ours and theirs else None

    def _rates(self, results: Results, loop: str, leg: str, *, by_cpu: bool = False) -> list[float]:
        transfers = [self.way(each) for each in results.passages.get((loop, leg), ())]
        return [rate_by_cpu(each.cpu_us) if by_cpu else each.per_s for each in transfers]


@dataclass(frozen=True, slots=True)
class OfCrossings:
    """What nodes that share a Redis cost: the median over bouts of their turns, or counted."""

    name: str
    measure: Callable[[Crossing], Sequence[float]]
    """The numbers of one round; none where it did not measure them."""
    unit: str = "x"
    less_is_better: bool = True
    is_counted: bool = False
    """Whether every number has to hold, not only the one in the middle."""
    by_cpu: Callable[[Crossing], Sequence[float]] | None = None
    """The same by processor time, where that is another figure."""
    legs: tuple[str, ...] = ("toolbus-nodes",)

    def of(self, results: Results, loop: str, *, by_cpu: bool = False) -> float | None:
        measure = self.by_cpu if by_cpu else self.measure
        if measure is None:
            return None
        rounds = self._rounds(results, loop, measure)
        if not rounds:
            return None
        if self.is_counted:
            return self._worst(list(itertools.chain(*rounds)))
        return statistics.median(map(statistics.median, rounds))

    def best(self, results: Results, loop: str) -> float | None:
        if self.is_counted:
            return self.of(results, loop)
        rounds = self._rounds(results, loop, self.measure)
        kindest = min if self.less_is_better else max
        return kindest(map(statistics.median, rounds)) if rounds else None

    def _worst(self, numbers: Sequence[float]) -> float:
        return max(numbers) if self.less_is_better else min(numbers)

    def _rounds(
        self, results: Results, loop: str, measure: Callable[[Crossing], Sequence[float]]
    ) -> list[Sequence[float]]:
        (leg,) = self.legs
        rounds = (measure(each) for each in results.crossings.get((loop, leg), ()))
        return [each for each in rounds if each]


@dataclass(frozen=True, slots=True)
class OfGathering:
    """What thousands who only stay cost, each."""

    measure: Callable[[Gathering], float]
    name: str = "server memory"
    unit: str = " KiB"
    legs: tuple[str, ...] = ()
    less_is_better: bool = True

    def of(self, results: Results, loop: str) -> float | None:
        return self._chosen(results, loop, statistics.median)

    def best(self, results: Results, loop: str) -> float | None:
        return self._chosen(results, loop, min)

    def _chosen(
        self, results: Results, loop: str, choose: Callable[[Iterable[float]], float]
    ) -> float | None:
        gatherings = results.gatherings.get(loop)
        return choose(map(self.measure, gatherings)) if gatherings else None


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure and its bounds."""

    row: str
    """What it belongs to; `--row` chooses by it."""
    title: str
    figure: Figure
    must: float | None
    """None where something is only aimed at."""
    aim: float
    is_judged: bool = True
    """Whether `--check` fails on it; others are printed."""

    @property
    def name(self) -> str:
        return f"{self.figure.name}: {self.title}"

    def word(self, value: float) -> str:
        """How a value stands: "aim met", "must met" or "missed"; without a must "below aim"."""
        for bound, word in ((self.aim, "aim met"), (self.must, "must met")):
            if bound is not None and (
                value <= bound if self.figure.less_is_better else value >= bound
            ):
                return word
        return "below aim" if self.must is None else "missed"

    def is_missed(self, results: Results, loop: str) -> bool:
        """Whether it does not hold, or was not measured."""
        value = self.figure.of(results, loop)
        return value is None or self.word(value) == "missed"

    def is_lost(self, results: Results, loop: str) -> bool:
        """Whether even its kindest rounds miss it, so that more of them would hardly mend it."""
        best = self.figure.best(results, loop)
        return best is None or self.word(best) == "missed"


def missed(promises: Iterable[Promise], results: Results, loop: str) -> list[Promise]:
    """The judged promises that do not hold on this loop, or were not measured."""
    return [each for each in promises if each.is_judged and each.is_missed(results, loop)]


def span_cpu_us(results: Results, loop: str) -> float | None:
    """Processor time of recording, sending and being asked for one span, over all processes.

    What a call costs more where all are recorded than where none is, by its spans.
    """
    none, every = results.of(loop, "toolbus"), results.of(loop, "toolbus-100%")
    if not none or not every:
        return None
    spans = statistics.median(each.spans_per_call for each in every)
    more_us = statistics.median(map(alone_cpu_us, every)) - statistics.median(
        map(alone_cpu_us, none)
    )
    return more_us / spans
