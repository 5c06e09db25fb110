"""Writes results as Markdown: a table of rows and a table of legs."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from bench.legs import Group, Load
from bench.rounds import IDLE, Results, whole
from bench.verdict import Row, span_cpu_us

OWN_PACKAGES = ("websockets", "uvloop", "msgpack", "pydantic", "opentelemetry-sdk", "redis")
_EXPLANATION = """\
A ratio is the median over the rounds of the median of parts that ran next to each other; beside it
the least and the greatest of the rounds. By CPU: the ratio of the processor time of all processes
(p50), or of the rate that processor time allows (the rest). Musts are judged by the clock. CPU us
is the processor time per call or MB of each process."""


def render(
    results: Results, groups: Sequence[Group], rows: Sequence[Row], facts: Mapping[str, str]
) -> str:
    """Write everything that was measured."""
    lines = ["# What a call costs", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += [f"- not measured: {leg} ({why})" for leg, why in results.missing.items()]
    lines += ["", *_rows_table(results, rows), "", *_legs_table(results, groups), ""]
    lines += [_EXPLANATION, "", *_meanings(groups)]
    return "\n".join(lines) + "\n"


def _rows_table(results: Results, rows: Sequence[Row]) -> Iterable[str]:
    yield "| row | ratio | by CPU | must | aim | verdict |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        sign = "<=" if row.is_less_better else ">="
        cpu = row.value(results, by_cpu=True)
        yield _line(
            row.title,
            _ratio(row, results),
            "-" if cpu is None else f"{cpu:.2f}{row.unit}",
            "-" if row.must is None else f"{sign} {row.must:g}{row.unit}",
            "-" if row.aim is None else f"{row.aim:g}{row.unit}",
            row.verdict(results),
        )
    span_us = span_cpu_us(results)
    if span_us is not None:
        yield _line(
            "CPU for each recorded and exported span", f"**{span_us:.0f} us**", *"---", "reported"
        )


def _ratio(row: Row, results: Results) -> str:
    values = row.values(results)
    if not values:
        return "-"
    places = 2 if row.load is not None else 1
    spread = f"{min(values):.{places}f}-{max(values):.{places}f}"
    return f"**{statistics.median(values):.{places}f}{row.unit}** [{spread}]"


def _legs_table(results: Results, groups: Sequence[Group]) -> Iterable[str]:
    yield "| group | leg | load | rate | p50, us | CPU us |"
    yield "|---|---|---|---|---|---|"
    for group in groups:
        for load in group.loads:
            for contender in group.contenders:
                cells = _leg_cells(results, group, load, contender.name)
                if cells:
                    yield _line(group.name, contender.name, load.name, *cells)
    for idle in results.idle:
        yield _line(
            IDLE,
            f"{idle.participants:,} participants",
            "joins",
            f"{idle.joins_per_s:,.0f} joins/s",
            "-",
            f"{idle.join_cpu_us:,.0f}",
        )


def _leg_cells(results: Results, group: Group, load: Load, name: str) -> tuple[str, ...]:
    rounds = results.rounds.get((group.name, load.name), ())
    parts = [whole(each[name]) for each in rounds if name in each]
    if not parts:
        return ()
    rate = statistics.median(part.per_s for part in parts)
    p50_us = statistics.median(part.p50_us for part in parts)
    by_process = zip(*(part.cpu_us for part in parts), strict=True)
    cpu = " + ".join(f"{statistics.median(values):,.0f}" for values in by_process)
    return f"{rate:,.0f} {load.unit}", f"{p50_us:,.0f}" if p50_us else "-", cpu


def _meanings(groups: Sequence[Group]) -> Iterable[str]:
    legs = {each.leg.name: each.leg for group in groups for each in group.contenders}
    return (f"- `{name}`: {leg.meaning}" for name, leg in legs.items())


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """Describe the processor, its cores, memory and system."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"


def own_versions() -> dict[str, str]:
    """Return the versions of Python and of what the bus runs on."""
    return {
        "Python": platform.python_version(),
        **{name: version(name) for name in OWN_PACKAGES},
    }
