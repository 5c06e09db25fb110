"""What is promised, row by row."""

from __future__ import annotations

from collections.abc import Callable

from bench.crossing import Crossing
from bench.verdict import (
    OfCrossings,
    OfGathering,
    OfPassages,
    OfTurns,
    Promise,
    Ratio,
    alone_per_s,
    down,
    in_flight_per_s,
    p50_us,
    up,
)

ALONE_P50 = "one at a time, p50"
ALONE_RATE = "one at a time, calls/s"
IN_FLIGHT_RATE = "64 in flight, calls/s"
PARTICIPANTS = 5_000


_MEASURES = {ALONE_P50: p50_us, ALONE_RATE: alone_per_s, IN_FLIGHT_RATE: in_flight_per_s}


def _promise(
    row: str, title: str, against: str, must: float | None, aim: float, *, is_judged: bool = True
) -> Promise:
    ratio = Ratio("toolbus", against, _MEASURES[title])
    return Promise(row, title, ratio, must, aim, is_judged)


def _joins(crossing: Crossing) -> list[float]:
    return [] if crossing.joins is None else [crossing.joins.ratio]


def _first_joins(crossing: Crossing) -> list[float]:
    return [] if crossing.joins is None else [crossing.joins.first_ratio]


def _far_publishes(crossing: Crossing) -> list[float]:
    return [] if crossing.counts is None else [crossing.counts.far_publishes]


def _needless(crossing: Crossing) -> list[float]:
    counts = crossing.counts
    return [] if counts is None else [counts.local, counts.far_others]


def _idle(crossing: Crossing) -> list[float]:
    counts = crossing.counts
    return [] if counts is None else [counts.idle.commands, counts.idle_in_rooms.commands]


def _counted(title: str, measure: Callable[[Crossing], list[float]], must: float) -> Promise:
    figure = OfCrossings("commands to Redis", measure, unit="", is_counted=True)
    return Promise("nodes", title, figure, must, must)


_ACROSS = "between nodes / within one"
PROMISES = (
    _promise("relay", ALONE_P50, "relay", 1.5, 1.2),
    _promise("relay", IN_FLIGHT_RATE, "relay", 0.65, 0.85),
    _promise("batched", ALONE_P50, "relay-batched", 1.5, 1.2, is_judged=False),
    _promise("batched", IN_FLIGHT_RATE, "relay-batched", 0.65, 0.85, is_judged=False),
    Promise("stock", ALONE_RATE, Ratio("relay", "stock", alone_per_s), 0.95, 1.0),
    Promise("stock", IN_FLIGHT_RATE, Ratio("relay", "stock", in_flight_per_s), 0.95, 1.0),
    _promise("nats", ALONE_RATE, "nats", 1.2, 1.4),
    _promise("nats", IN_FLIGHT_RATE, "nats", 0.8, 1.0),
    Promise("traced", IN_FLIGHT_RATE, OfTurns("toolbus-1%"), 0.9, 0.97),
    Promise("toolkits", ALONE_P50, Ratio("toolbus-10000", "toolbus-10", p50_us), 1.1, 1.0),
    Promise("file", "64 MB down, MB/s", OfPassages("toolbus-file", "relay-file", down), 0.6, 0.9),
    Promise("file", "64 MB up, MB/s", OfPassages("toolbus-file", "relay-file", up), 0.6, 0.9),
    Promise(
        "nodes",
        ALONE_P50,
        OfCrossings(_ACROSS, Crossing.p50_ratios, by_cpu=Crossing.p50_cpu_ratios),
        4.0,
        3.0,
    ),
    Promise(
        "nodes",
        IN_FLIGHT_RATE,
        OfCrossings(
            _ACROSS, Crossing.rate_ratios, less_is_better=False, by_cpu=Crossing.rate_cpu_ratios
        ),
        0.35,
        0.5,
    ),
    Promise(
        "nodes",
        "64 in flight, CPU per call",
        OfCrossings("within one of two nodes / one node, no Redis", Crossing.cpu_ratios),
        1.05,
        1.0,
    ),
    Promise("nodes", "a join", OfCrossings("5,000 toolkits elsewhere / none", _joins), 2.0, 1.2),
    Promise(
        "nodes",
        "a node's first join",
        OfCrossings("5,000 toolkits elsewhere / none", _first_joins),
        2.0,
        2.0,
        is_judged=False,
    ),
    _counted("PUBLISH, for each call between nodes", _far_publishes, 2.0),
    _counted("others, for each call of any kind", _needless, 0.0),
    _counted("of an idle node, per second", _idle, 1.0),
    Promise(
        "idle",
        "per idle participant",
        OfGathering(lambda gathering: gathering.memory_kib),
        24.0,
        18.0,
    ),
    _promise("rivals", ALONE_RATE, "crossbar", None, 5.0, is_judged=False),
    _promise("rivals", IN_FLIGHT_RATE, "crossbar", None, 5.0, is_judged=False),
    _promise("rivals", ALONE_RATE, "fastmcp", None, 40.0, is_judged=False),
    _promise("rivals", IN_FLIGHT_RATE, "fastmcp", None, 40.0, is_judged=False),
)
ROWS = tuple(dict.fromkeys(promise.row for promise in PROMISES))
GATHERING_ROW = "idle"
MORE_LEGS = {"traced": ("toolbus", "toolbus-100%", "toolbus-untraced")}
"""Legs of a row that no ratio names, for what is only printed."""
