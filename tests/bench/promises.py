"""What is promised, row by row."""

from __future__ import annotations

from bench.verdict import (
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
