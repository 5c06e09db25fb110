"""What a large bus is said to cost, from what a small one did, and how near that came. Pure.

Everything is taken to grow as the number of things does, processor time too. The two buses have the
same load at each node, and their processor times are of the same minutes, and the median of several
rounds: see `simulation.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from statistics import median_low

ROUND = ("join", "register", "change", "leave")
"""What a bus lives through, in order, as often as it is told to; at its end nothing is left."""
PHASES = ("join", "register", "change", "death", "leave")
NAME_BYTES = 37
"""Of a node, in the list of those that live."""
WITHIN = 0.25
_BEING_THERE = "it is mostly what the others' being there costs while leases end"
UNJUDGED = {
    ("death", "redis_cpu_us"): _BEING_THERE,
    ("death", "node_cpu_us"): _BEING_THERE,
}
"""What is said, and need not come true, with the reason."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a bus is."""

    nodes: int
    rooms: int
    processes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What something cost: all of it, or for each time it happened."""

    scripts: float
    """That nodes had Redis run; each is one command that was sent."""
    commands: float
    """All that Redis ran, within scripts too."""
    publishes: float
    bytes_in: float
    """To Redis."""
    bytes_out: float
    redis_cpu_us: float
    node_cpu_us: float
    """Of all nodes."""
    redis_bytes: float
    """Memory."""
    node_bytes: float
    """Memory of all nodes."""

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """Add another cost so many times."""
        sums = (mine + times * its for mine, its in zip(_values(self), _values(other), strict=True))
        return Cost(*sums)

    def times(self, factor: float) -> Cost:
        """Give the cost of so many."""
        return Cost(*(value * factor for value in _values(self)))

    def with_times_of(self, other: Cost) -> Cost:
        """Give this with the processor times of another."""
        return dataclasses.replace(
            self, redis_cpu_us=other.redis_cpu_us, node_cpu_us=other.node_cpu_us
        )


def _values(cost: Cost) -> list[float]:
    return [getattr(cost, name) for name in MEASURES]


MEASURES = tuple(each.name for each in fields(Cost))
GROWS = ("join", "register")
"""What memory is asked of: what is kept when it is done."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that was done many times."""

    events: int
    took_s: float
    cost: Cost

    def unit(self, idle: Cost) -> Cost:
        """What one of them cost, without what the bus costs anyway."""
        return self.cost.plus(idle, -self.took_s).times(1 / self.events)

    def plus(self, other: Phase) -> Phase:
        """Give both together."""
        return Phase(
            self.events + other.events, self.took_s + other.took_s, self.cost.plus(other.cost)
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What one bus came to."""

    shape: Shape
    idle: Cost
    """Of the whole bus, each second."""
    rounds: Sequence[Mapping[str, Phase]]
    """Of a large bus: those that are judged. Of a small one: a first one, in which its memory grows
    and everything is done for the first time, and for each of the large bus's one before its joins,
    and one after each of its phases."""
    death: Phase | None
    delays_ms: Sequence[float]
    """From a change to a participant at whatever node who is told of it."""
    dead_nodes: int
    forgotten_s: float
    """From the moment that nodes were killed until no room anywhere had their participants."""

    @property
    def living(self) -> int:
        """Nodes that nobody killed."""
        return self.shape.nodes - self.dead_nodes

    @property
    def phases(self) -> Mapping[str, Phase]:
        """Everything, when it was done for the first time."""
        death = {} if self.death is None else {"death": self.death}
        done = {**self.rounds[0], **death}
        return {what: done[what] for what in PHASES if what in done}

    def unit(self, what: str) -> Cost:
        """What one of something cost; processor time over all rounds but the first, if it can."""
        first = self.phases[what].unit(self.idle)
        if what == "death" or len(self.rounds) == 1:
            return first
        return first.with_times_of(self._over(what, self.rounds[1:]))

    def unit_beside(self, what: str, number: int) -> Cost:
        """What one of something cost around the time that the large bus did it in that round."""
        at = ROUND.index(what) + 1 + number * (len(ROUND) + 1)
        first = self.phases[what].unit(self.idle)
        return first.with_times_of(self._over(what, self.rounds[at : at + 2] or self.rounds))

    def _over(self, what: str, rounds: Sequence[Mapping[str, Phase]]) -> Cost:
        return reduce(Phase.plus, (each[what] for each in rounds)).unit(self.idle)


def predict(small: Run, large: Run, what: str, number: int = 0) -> Cost:
    """Say from what things cost on a small bus what all of a phase of a large one comes to."""
    is_death = what == "death"
    phase = large.phases[what] if is_death else large.rounds[number][what]
    unit = small.unit(what) if is_death else small.unit_beside(what, number)
    idle = small.idle.times(large.shape.nodes / small.shape.nodes)
    cost = unit.times(phase.events).plus(idle, phase.took_s)
    if not is_death:
        return cost
    # All who are left read who is left, at least once, which grows with the square of their number.
    share = phase.events / small.phases[what].events
    lists = large.living**2 - small.living**2 * share
    return dataclasses.replace(cost, bytes_out=cost.bytes_out + NAME_BYTES * lists)


@dataclass(frozen=True, slots=True)
class Deviation:
    """One measure of one phase: what was said, and what came."""

    what: str
    measure: str
    predicted: float
    measured: float
    spread: float = 0.0
    """How much more than was said it may be, as that is left to chance."""

    @property
    def share(self) -> float:
        """How far off it was; 0.1 where a tenth more came than was said."""
        most = self.predicted + self.spread
        if most <= 0:
            return math.inf
        return self.measured / min(max(self.measured, self.predicted), most) - 1.0

    @property
    def is_near(self) -> bool:
        """Whether it was near enough."""
        return abs(self.share) <= WITHIN

    @property
    def is_judged(self) -> bool:
        """Whether it has to be near; `UNJUDGED` says why it has not."""
        return (self.what, self.measure) not in UNJUDGED


def deviations(small: Run, large: Run) -> list[Deviation]:
    """Compare a large run with what a small one says of it."""
    return [
        _deviation(small, large, what, measure)
        for what in large.phases
        for measure in MEASURES
        if what in GROWS or not measure.endswith("_bytes")
    ]


def _deviation(small: Run, large: Run, what: str, measure: str) -> Deviation:
    """Compare one measure: of processor time the round that is neither the best nor the worst."""
    is_time = what != "death" and measure.endswith("_cpu_us")
    rounds = range(len(large.rounds)) if is_time else range(1)
    pairs = [
        (getattr(predict(small, large, what, number), measure), getattr(phase.cost, measure))
        for number in rounds
        for phase in (large.rounds[number][what] if is_time else large.phases[what],)
    ]
    off = [measured / predicted if predicted > 0 else math.inf for predicted, measured in pairs]
    predicted, measured = pairs[off.index(median_low(off))]
    return Deviation(what, measure, predicted, measured, _spread(large, what, measure))


def _spread(large: Run, what: str, measure: str) -> float:
    """Who is left is read by all once more where the dead nodes' leases end between their beats."""
    is_left_to_chance = (what, measure) == ("death", "bytes_out")
    return NAME_BYTES * large.living**2 if is_left_to_chance else 0.0


def all_near(judged: Sequence[Deviation]) -> bool:
    """Whether everything that has to be near is."""
    return all(each.is_near for each in judged if each.is_judged)
