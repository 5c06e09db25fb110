"""Writes what was measured as Markdown: the same text for the screen and for RESULTS.md."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.verdict import (
    ALONE,
    IN_FLIGHT,
    PROMISES,
    Measure,
    Promise,
    Results,
    Round,
    alone_per_s,
    in_flight_per_s,
    median_of,
    p50_us,
)

MEANINGS = {
    "stock": "a relay on stock websockets, `async for` and `await send`",
    "relay": "a relay on our transport, nothing on top, each message written at once",
    "relay-batched": "the same with the batched writes that the bus turns on",
    "nats": "nats-server and nats-py, request and reply; checks nothing",
    "toolbus": "grants and validation on, tracing on but unsampled",
    "toolbus-untraced": "the same without tracing set up",
}


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
    parts = ["# What a call costs", "", *(f"- {name}: {fact}" for name, fact in facts.items()), ""]
    for loop in loops:
        parts += [f"## {loop}", "", *_measured_table(results, loop), ""]
        parts += [*_ratio_table(results, loop), ""]
    return "\n".join([*parts, *_legend(results), ""])


def _legend(results: Results) -> list[str]:
    legs = {leg for _, leg in results}
    return [
        "Medians over the rounds, with least and greatest; each ratio is one of two medians.",
        f"{ALONE.calls:,} calls one at a time, all processes on one core (only one is ever awake);",
        f"{IN_FLIGHT.calls:,} calls with {IN_FLIGHT.in_flight} in flight, on all cores. CPU is the",
        "processor time per call of router, host and caller: it says what the calls cost where",
        "other programs disturb the clock; musts are judged by the clock, on uvloop.",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in MEANINGS.items() if name in legs),
    ]


def _measured_table(results: Results, loop: str) -> list[str]:
    rows = [
        "| leg | p50 us, alone | calls/s, alone | CPU us, alone "
        "| calls/s, 64 in flight | CPU us, 64 in flight |",
        "|---|---|---|---|---|---|",
    ]
    for (ran_on, name), rounds in results.items():
        if ran_on == loop:
            alone = (_spread(rounds, p50_us), _spread(rounds, alone_per_s), _cpu(rounds, 0))
            in_flight = (_spread(rounds, in_flight_per_s), _cpu(rounds, 1))
            rows.append(f"| {' | '.join((name, *alone, *in_flight))} |")
    return rows


def _spread(rounds: Sequence[Round], measure: Measure) -> str:
    values = [measure(each) for each in rounds]
    return f"**{median_of(rounds, measure):,.0f}** [{min(values):,.0f}-{max(values):,.0f}]"


def _cpu(rounds: Sequence[Round], load: int) -> str:
    by_role = zip(*(each[load].cpu_us for each in rounds), strict=True)
    return " + ".join(f"{statistics.median(values):.0f}" for values in by_role)


def _ratio_table(results: Results, loop: str) -> list[str]:
    rows = ["| ratio | measured | by CPU | must | aim | verdict |", "|---|---|---|---|---|---|"]
    for promise in PROMISES:
        ratio = promise.ratio(results, loop)
        by_cpu = promise.ratio(results, loop, by_cpu=True)
        if ratio is not None and by_cpu is not None:
            rows.append(_ratio_row(promise, ratio, by_cpu))
    return rows


def _ratio_row(promise: Promise, ratio: float, by_cpu: float) -> str:
    sign = "<=" if promise.less_is_better else ">="
    word = promise.word(ratio) if promise.is_judged else f"{promise.word(ratio)} (not judged)"
    bounds = f"{sign} {promise.must:g}x | {promise.aim:g}x"
    name = f"{promise.leg} / {promise.against}: {promise.title}"
    return f"| {name} | **{ratio:.2f}x** | {by_cpu:.2f}x | {bounds} | {word} |"
