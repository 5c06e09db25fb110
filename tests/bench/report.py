"""Writes what was measured as Markdown: the same text for the screen and for RESULTS.md."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.crossing_report import crossing_tables
from bench.gathering import Gathering
from bench.legs import ALONE, IN_FLIGHT, LEGS, ROLES
from bench.passages import QUIET, Passage, Transfer
from bench.promises import PROMISES
from bench.rounds import Figures, Round
from bench.shares import KINDS, OTHER
from bench.turns import TURN_S, Turn, Turns
from bench.verdict import OfCrossings, OfPassages, OfTurns, Promise, Ratio, Results, span_cpu_us

DEAREST = 12
"""Functions of each process that the report names."""
MEANINGS = {leg.name: leg.meaning for leg in LEGS}


def machine() -> str:
    """What was measured on: processor, cores, memory, system. Names and paths stay out."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{_cpu_model()}, {psutil.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def own_versions() -> dict[str, str]:
    packages = ("websockets", "uvloop", "msgpack", "pydantic", "opentelemetry-sdk")
    return {"Python": platform.python_version(), **{name: version(name) for name in packages}}


def render(results: Results, loops: Sequence[str], facts: Mapping[str, str]) -> str:
    """The whole report; `facts` are the lines above its tables."""
    missing = {f"not measured: {name}": reason for name, reason in results.missing.items()}
    lines = {**facts, **missing}
    parts = ["# What a call costs", "", *(f"- {name}: {fact}" for name, fact in lines.items()), ""]
    for loop in loops:
        tables = (
            _legs(results, loop),
            _turns(results, loop),
            _passages(results, loop),
            _delays(results, loop),
            *crossing_tables(results, loop),
            _gatherings(results, loop),
            _promises(results, loop),
            _shares(results, loop),
        )
        parts += [f"## {loop}", "", *(line for table in tables if table for line in (*table, ""))]
    return "\n".join([*parts, *_legend(results), ""])


def _legend(results: Results) -> list[str]:
    every = (*results.rounds, *results.turns, *results.passages, *results.crossings)
    legs = {leg for _, leg in every}
    return [
        "Medians over the rounds, with least and greatest; the ratio of legs that ran side by side",
        "is the median of theirs, any other one is of two medians.",
        f"{ALONE.calls:,} calls one at a time, all processes on one core (only one is ever awake);",
        f"{IN_FLIGHT.calls:,} calls with {IN_FLIGHT.in_flight} in flight, on all cores; fewer of",
        "both on legs that are slow. CPU is the processor time per call of router, host and",
        "caller: it says what the calls cost where other programs disturb the clock; musts are",
        "judged by the clock, on uvloop. Of turns, the ratio is the median over each recorded turn",
        "and its two neighbours, with its quartiles. MB are 10^6 bytes. Where the time of a call",
        "goes is sampled: functions of C count for the Python function that called them.",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in MEANINGS.items() if name in legs),
    ]


def _legs(results: Results, loop: str) -> list[str]:
    rows = [
        _leg_row(name, rounds)
        for (ran_on, name), rounds in results.rounds.items()
        if ran_on == loop and rounds
    ]
    head = [
        "| leg | p50 us, alone | calls/s, alone | CPU us, alone "
        "| calls/s, 64 in flight | CPU us, 64 in flight |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *rows] if rows else []


def _leg_row(name: str, rounds: Sequence[Round]) -> str:
    alone = [each.alone for each in rounds if each.alone is not None]
    in_flight = [each.in_flight for each in rounds if each.in_flight is not None]
    cells = (
        _spread(each.sample.p50_us for each in alone),
        _spread(each.sample.per_s for each in alone),
        _cpu(alone),
        _spread(each.sample.per_s for each in in_flight),
        _cpu(in_flight),
    )
    return f"| {' | '.join((name, *cells))} |"


def _spread(numbers: Iterable[float]) -> str:
    values = list(numbers)
    if not values:
        return "-"
    return f"**{statistics.median(values):,.0f}** [{min(values):,.0f}-{max(values):,.0f}]"


def _cpu(figures: Sequence[Figures] | Sequence[Turn] | Sequence[Transfer]) -> str:
    by_role = zip(*(each.cpu_us for each in figures), strict=True)
    return " + ".join(f"{statistics.median(values):.0f}" for values in by_role) or "-"


def _turns(results: Results, loop: str) -> list[str]:
    rows = [
        _turns_row(name, rounds)
        for (ran_on, name), rounds in results.turns.items()
        if ran_on == loop and rounds
    ]
    head = [
        "| turns | calls/s, none recorded | calls/s, recorded "
        "| CPU us, none recorded | CPU us, recorded | ratio of neighbours |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *rows] if rows else []


def _turns_row(name: str, rounds: Sequence[Turns]) -> str:
    plain = [turn for each in rounds for turn in each.plain]
    recorded = [turn for each in rounds for turn in each.recorded]
    ratios = [ratio for each in rounds for ratio in each.ratios(lambda turn: turn.per_s)]
    cells = (
        f"{name}, {len(recorded)} of {TURN_S:g} s",
        _spread(turn.per_s for turn in plain),
        _spread(turn.per_s for turn in recorded),
        _cpu(plain),
        _cpu(recorded),
        _quartiles(ratios),
    )
    return f"| {' | '.join(cells)} |"


def _quartiles(ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"**{middle:.2f}x** [{low:.2f}-{high:.2f}]"


def _passages(results: Results, loop: str) -> list[str]:
    rows = [
        _passage_row(name, passages)
        for (ran_on, name), passages in results.passages.items()
        if ran_on == loop and passages
    ]
    head = [
        "| files | MB/s, down | CPU us per MB, down | MB/s, up | CPU us per MB, up "
        "| items/s | CPU us per item |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*head, *rows] if rows else []


def _passage_row(name: str, passages: Sequence[Passage]) -> str:
    items = [each.items for each in passages if each.items is not None]
    ways = ([each.download for each in passages], [each.upload for each in passages], items)
    cells = [cell for way in ways for cell in (_spread(each.per_s for each in way), _cpu(way))]
    return f"| {' | '.join((name, *cells))} |"


def _delays(results: Results, loop: str) -> list[str]:
    passages = [
        passage
        for (ran_on, _), every in results.passages.items()
        if ran_on == loop
        for passage in every
        if passage.delays
    ]
    if not passages:
        return []
    quiet_us = statistics.median(each.delays[QUIET].p99_us for each in passages)
    rows = []
    for beside in passages[0].delays:
        p99_us = [each.delays[beside].p99_us for each in passages]
        times = f"{statistics.median(p99_us) / quiet_us:.1f}x"
        cells = (_spread(each.delays[beside].p50_us for each in passages), _spread(p99_us), times)
        rows.append(f"| {' | '.join((beside, *cells))} |")
    head = [
        "| one caller's small calls beside | p50 us | p99 us | p99 by quiet |",
        "|---|---|---|---|",
    ]
    return [*head, *rows]


def _shares(results: Results, loop: str) -> list[str]:
    """Where the time goes in each process, by kind of work, then by function."""
    shares = results.shares.get(loop)
    if shares is None:
        return []
    kinds = [
        f"| {kind} | {' | '.join(f'{shares.kinds[role].get(kind, 0.0):.1f}' for role in ROLES)} |"
        for kind in (*KINDS, OTHER)
    ]
    sums = (f"**{sum(shares.kinds[role].values()):.1f}**" for role in ROLES)
    return [
        f"| CPU us per call, {IN_FLIGHT.in_flight} in flight | {' | '.join(ROLES)} |",
        "|---" * (len(ROLES) + 1) + "|",
        *kinds,
        f"| all | {' | '.join(sums)} |",
        "",
        *(f"- {role}: {_dearest(shares.functions[role])}" for role in ROLES),
    ]


def _dearest(functions: Mapping[str, float]) -> str:
    dearest = sorted(functions, key=functions.__getitem__, reverse=True)[:DEAREST]
    return ", ".join(f"`{place}` {functions[place]:.1f}" for place in dearest)


GATHERING_FIGURES: Mapping[str, Callable[[Gathering], float]] = {
    "memory, KiB each": lambda gathering: gathering.memory_kib,
    "resident, KiB each": lambda gathering: gathering.resident_kib,
    "joins/s": lambda gathering: gathering.joins_per_s,
    "server's CPU us per join": lambda gathering: gathering.join_cpu_us,
}


def _gatherings(results: Results, loop: str) -> list[str]:
    gatherings = results.gatherings.get(loop)
    if not gatherings:
        return []
    cells = [_spread_fine(map(measure, gatherings)) for measure in GATHERING_FIGURES.values()]
    return [
        f"| idle participants | {' | '.join(GATHERING_FIGURES)} |",
        "|---" * (len(cells) + 1) + "|",
        f"| {gatherings[0].participants:,} | {' | '.join(cells)} |",
    ]


def _spread_fine(numbers: Iterable[float]) -> str:
    values = list(numbers)
    places = 1 if max(values) < 100 else 0
    least, greatest = min(values), max(values)
    return (
        f"**{statistics.median(values):,.{places}f}** [{least:,.{places}f}-{greatest:,.{places}f}]"
    )


def _promises(results: Results, loop: str) -> list[str]:
    rows = [row for promise in PROMISES if (row := _promise_row(promise, results, loop))]
    head = ["| figure | measured | by CPU | must | aim | verdict |", "|---|---|---|---|---|---|"]
    cost_us = span_cpu_us(results, loop)
    if cost_us is not None:
        rows.append(f"| CPU per recorded span | **{cost_us:.0f} us** | - | - | - | not judged |")
    return [*head, *rows] if rows else []


def _promise_row(promise: Promise, results: Results, loop: str) -> str:
    figure = promise.figure
    value = figure.of(results, loop)
    if value is None:
        return _missing_row(promise, results)
    by_cpu = (
        figure.of(results, loop, by_cpu=True)
        if isinstance(figure, Ratio | OfTurns | OfPassages | OfCrossings)
        else None
    )
    cells = (
        promise.name,
        f"**{_number(value, figure.unit)}**",
        "-" if by_cpu is None else _number(by_cpu, figure.unit),
        *_bounds(promise),
        promise.word(value) if promise.is_judged else f"{promise.word(value)} (not judged)",
    )
    return f"| {' | '.join(cells)} |"


def _missing_row(promise: Promise, results: Results) -> str:
    """A row for what was asked for and could not be measured; none for what nobody asked for."""
    missing = [leg for leg in promise.figure.legs or ("gathering",) if leg in results.missing]
    if not missing:
        return ""
    cells = (promise.name, "-", "-", *_bounds(promise), f"not measured: {missing[0]}")
    return f"| {' | '.join(cells)} |"


def _bounds(promise: Promise) -> tuple[str, str]:
    sign = "<=" if promise.figure.less_is_better else ">="
    unit = promise.figure.unit
    must = "-" if promise.must is None else f"{sign} {promise.must:g}{unit}"
    return must, f"{promise.aim:g}{unit}"


def _number(value: float, unit: str) -> str:
    return f"{value:.2f}{unit}" if unit in ("x", "") else f"{value:.1f}{unit}"
