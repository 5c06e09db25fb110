"""The tables of crossings: calls by where their host is, joins, and what Redis did for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from bench.crossing import ROOMS, TOOLKITS, Counts, Crossing, Joins, Leap
from bench.verdict import Results

PLACES: Mapping[str, tuple[Callable[[Crossing], Sequence[Leap]], ...]] = {
    "at a node without Redis": (lambda each: each.single,),
    "at the caller's node": (lambda each: [*each.near, *each.shared], lambda each: each.near_alone),
    "at another node": (lambda each: each.far, lambda each: each.far_alone),
}
"""Turns by where the host is: 64 in flight, and one call at a time where that was measured."""
KINDS: Mapping[str, Callable[[Crossing], Sequence[Leap]]] = {
    "one at a time": lambda each: each.far_alone,
    "64 in flight": lambda each: each.far,
}
JOIN_TIMES: Mapping[str, Callable[[Joins], Sequence[float]]] = {
    "a room without toolkits": lambda each: each.empty_ms,
    f"a room with {TOOLKITS:,}": lambda each: each.full_ms,
    "the first of its node, without": lambda each: each.first_empty_ms,
    f"the first of its node, with {TOOLKITS:,}": lambda each: each.first_full_ms,
}
COUNTED: Mapping[str, Callable[[Counts], float]] = {
    "PUBLISH for a call between nodes": lambda each: each.far_publishes,
    "other commands for it": lambda each: each.far_others,
    "commands for a call within a node": lambda each: each.local,
    "commands of an idle node, per second": lambda each: each.idle.sent,
    "messages that its scripts publish": lambda each: each.idle.published,
    "all that Redis runs for it, within scripts too": lambda each: each.idle.run,
    f"commands of an idle node in {ROOMS} rooms more": lambda each: each.idle_in_rooms.sent,
    "messages that its scripts publish there": lambda each: each.idle_in_rooms.published,
}


def crossing_tables(results: Results, loop: str) -> list[list[str]]:
    """The tables of all crossings on a loop, empty ones where there were none."""
    crossings = [each for (on, _), all_ in results.crossings.items() if on == loop for each in all_]
    if not crossings:
        return []
    return [_calls(crossings), _redis(crossings), _counts(crossings), _joins(crossings)]


def _calls(crossings: Sequence[Crossing]) -> list[str]:
    rows = []
    for place, (of_many, *of_one) in PLACES.items():
        alone = [leap for chosen in of_one for each in crossings for leap in chosen(each)]
        many = [leap for each in crossings for leap in of_many(each)]
        p50 = _middle([leap.p50_us for leap in alone], 0)
        rate = _middle([leap.per_s for leap in many], 0)
        rows.append(f"| {place} | {p50} | {_cpu(alone)} | {rate} | {_cpu(many)} |")
    head = [
        "| host | p50 us, alone | CPU us of caller's node + host + caller + other node + Redis "
        "| calls/s, 64 in flight | CPU us |",
        "|---|---|---|---|---|",
    ]
    return [*head, *rows]


def _redis(crossings: Sequence[Crossing]) -> list[str]:
    measures: tuple[tuple[Callable[[Leap], float], int], ...] = (
        (lambda leap: leap.redis.publishes / leap.calls, 2),
        (lambda leap: leap.redis.bytes_in / leap.calls, 0),
        (lambda leap: leap.redis.bytes_out / leap.calls, 0),
        (lambda leap: leap.redis.cpu_s / leap.calls * 1e6, 1),
    )
    rows = []
    for kind, chosen in KINDS.items():
        leaps = [leap for each in crossings for leap in chosen(each)]
        cells = [_middle(map(measure, leaps), places) for measure, places in measures]
        rows.append(f"| {' | '.join((kind, *cells))} |")
    head = [
        "| Redis, for a call between nodes | PUBLISH | bytes in | bytes out | CPU us |",
        "|---|---|---|---|---|",
    ]
    return [*head, *rows]


def _counts(crossings: Sequence[Crossing]) -> list[str]:
    counts = [each.counts for each in crossings if each.counts is not None]
    rows = [
        f"| {name} | {', '.join(f'{measure(each):.3f}' for each in counts)} |"
        for name, measure in COUNTED.items()
    ]
    return ["| commands to Redis | counted |", "|---|---|", *rows] if counts else []


def _joins(crossings: Sequence[Crossing]) -> list[str]:
    joins = [each.joins for each in crossings if each.joins is not None]
    rows = []
    for name, chosen in JOIN_TIMES.items():
        times = [time for each in joins for time in chosen(each)]
        rows.append(f"| {name} | {_middle(times, 1)} |")
    head = ["| a join to | ms |", "|---|---|"]
    return [*head, *rows] if joins else []


def _middle(numbers: Iterable[float], places: int) -> str:
    values = list(numbers)
    if not values:
        return "-"
    low, middle, high = (
        f"{each:,.{places}f}" for each in (min(values), median(values), max(values))
    )
    return f"**{middle}** [{low}-{high}]"


def _cpu(leaps: Sequence[Leap]) -> str:
    by_role = zip(*(leap.cpu_us for leap in leaps), strict=True)
    return " + ".join(f"{median(values):.0f}" for values in by_role) or "-"
