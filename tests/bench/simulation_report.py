"""The command of simulations: a small bus beside a large one, and what both cost as tables."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.contention import Contention
from bench.forecast import (
    UNJUDGED,
    WITHIN,
    Cost,
    Deviation,
    Run,
    Shape,
    all_near,
    deviations,
)
from bench.passages import delays_of
from bench.redis_watch import RedisMissing
from bench.report import machine, own_versions
from bench.simulation import FULL, LIMIT_S, SMALL, WORDS, run_beside


def report(runs: Sequence[Run]) -> str:
    """Write down what each run came to, and how near the first came to what it says of others."""
    parts = [line for each in runs for line in (*_costs(each), "")]
    for large in runs[1:]:
        parts += [*_comparison(runs[0], large), ""]
    return "\n".join(parts)


_COLUMNS: Mapping[str, Callable[[Cost], float]] = {
    "scripts": lambda cost: cost.scripts,
    "commands run": lambda cost: cost.commands,
    "PUBLISH": lambda cost: cost.publishes,
    "bytes to Redis": lambda cost: cost.bytes_in,
    "bytes from it": lambda cost: cost.bytes_out,
    "CPU us of Redis": lambda cost: cost.redis_cpu_us,
    "CPU us of nodes": lambda cost: cost.node_cpu_us,
    "bytes in Redis": lambda cost: cost.redis_bytes,
    "bytes in nodes": lambda cost: cost.node_bytes,
}


def _costs(run_: Run) -> list[str]:
    shape = run_.shape
    units = {
        f"{WORDS[what]} ({_times(run_, what)}, {phase.events / phase.took_s:,.0f}/s)": run_.unit(
            what
        )
        for what, phase in run_.phases.items()
    }
    rows = {"a node, each second": run_.idle.times(1 / shape.nodes), **units}
    return [
        f"## {shape.nodes:,} nodes, {shape.rooms:,} rooms",
        "",
        f"| cost of | {' | '.join(_COLUMNS)} |",
        "|---" * (len(_COLUMNS) + 1) + "|",
        *(f"| {name} | {' | '.join(_cells(cost))} |" for name, cost in rows.items()),
        "",
        *_moments(run_),
    ]


def _times(run_: Run, what: str) -> str:
    events = f"{run_.phases[what].events:,} times"
    again = 1 if what == "death" else len(run_.rounds)
    return events if again == 1 else f"{again} x {events}"


def _moments(run_: Run) -> Iterable[str]:
    if run_.delays_ms:
        delays = delays_of(run_.delays_ms)
        yield (
            f"A change is told at other nodes after {delays.p50_us:.1f} ms, 1 % later than "
            f"{delays.p99_us:.1f} ms; for 20 ms of that it is held back."
        )
    if run_.dead_nodes:
        yield (
            f"{run_.dead_nodes} nodes that are killed are forgotten everywhere after "
            f"{run_.forgotten_s:.1f} s."
        )


def _cells(cost: Cost) -> Iterable[str]:
    values = (measure(cost) for measure in _COLUMNS.values())
    return (f"{value:,.2f}" if abs(value) < 10 else f"{value:,.0f}" for value in values)


def _verdict(deviation: Deviation) -> str:
    if not deviation.is_judged:
        return "not judged"
    return "near" if deviation.is_near else "OFF"


def _said(deviation: Deviation) -> str:
    least, most = deviation.predicted, deviation.predicted + deviation.spread
    return f"{least:,.0f}" if most == least else f"{least:,.0f} to {most:,.0f}"


def _comparison(small: Run, large: Run) -> list[str]:
    found = deviations(small, large)
    rows = [
        f"| {WORDS[each.what]} | {each.measure} | {_said(each)} | {each.measured:,.0f} "
        f"| {each.share:+.0%} | {_verdict(each)} |"
        for each in found
    ]
    verdict = "everything" if all_near(found) else "NOT everything"
    return [
        f"## From {small.shape.nodes:,} nodes to {large.shape.nodes:,}",
        "",
        "| all times that | measure | predicted | measured | off by | |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *(
            f"- not judged: {measure} where {WORDS[what]}, as {why}"
            for (what, measure), why in UNJUDGED.items()
        ),
        "",
        f"Within {WITHIN:.0%} is {verdict} that is judged.",
    ]


def main() -> int:
    """Run what the command line says; 1 where something was off, or could not be measured."""
    parser = argparse.ArgumentParser(description="Many nodes on one Redis, without connections.")
    parser.add_argument("--nodes", type=int, default=FULL.nodes)
    parser.add_argument("--rooms", type=int, default=FULL.rooms)
    parser.add_argument("--small-nodes", type=int, default=SMALL.nodes)
    parser.add_argument("--small-rooms", type=int, default=SMALL.rooms)
    parser.add_argument("--processes", type=int, default=4, help="2 or more")
    given = parser.parse_args()
    small = Shape(given.small_nodes, given.small_rooms, given.processes)
    large = Shape(given.nodes, given.rooms, given.processes)
    return asyncio.run(_measure(small, large))


async def _measure(small: Shape, large: Shape) -> int:
    contention = Contention()
    try:
        runs = await run_beside(small, large)
        sys.stderr.write("\r\033[K")
    except (RedisMissing, RuntimeError, TimeoutError) as error:
        reason = str(error) or f"it takes more than {LIMIT_S:.0f} s"
        sys.stdout.write(f"NOT MEASURED: {reason}\n")
        return 1
    versions = ", ".join(f"{name} {version}" for name, version in own_versions().items())
    sys.stdout.write(f"- machine: {machine()}\n- versions: {versions}\n- {contention}\n\n")
    sys.stdout.write(report(runs))
    return 0 if all_near(deviations(*runs)) else 1


if __name__ == "__main__":
    sys.exit(main())
