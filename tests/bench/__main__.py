"""The program: `PYTHONPATH=tests python -m bench --help`."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.legs import GROUPS, Contender, Group, Leg
from bench.processes import Contention, LegFailed, started
from bench.report import machine, own_versions, render
from bench.rivals.environments import RivalMissing, rival_python
from bench.rounds import IDLE, Results, run_groups, run_idle, run_round, without_reported
from bench.verdict import Row, missed, rows_of

RESULTS_FILE = Path(__file__).with_name("RESULTS.md")
PARTICIPANTS = 5_000
EXTRA_ROUNDS = 3
EXTRA_UNTIL_S = 300.0
"""A check begins no extra round after so long."""


def main() -> int:
    """Measure what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only judged rows; fail on a miss")
    parser.add_argument(
        "--write", action="store_true", help="write RESULTS.md if no --row is given"
    )
    names = [*(group.name for group in GROUPS), IDLE]
    parser.add_argument("--row", action="append", choices=names, help="only these groups of rows")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--times", type=float, default=1.0, help="how many times as many rounds")
    return asyncio.run(_run(parser.parse_args()))


async def _run(arguments: argparse.Namespace) -> int:
    began_s, contention, results = time.monotonic(), Contention(), Results()
    chosen = arguments.row or [*(group.name for group in GROUPS), IDLE]
    groups = [group for group in GROUPS if group.name in chosen]
    groups = without_reported(groups) if arguments.check else groups
    rows = rows_of(chosen, is_judged_only=arguments.check)
    groups, versions = await _prepared(groups, results)
    participants = PARTICIPANTS if IDLE in chosen else 0
    await run_groups(groups, results, arguments.loop, times=arguments.times, idle=participants)
    if arguments.check:
        await _run_extra(groups, rows, results, arguments.loop, began_s)
    facts = {
        "measured": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, on {arguments.loop}",
        "machine": f"{machine()}; {contention}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "took": f"{time.monotonic() - began_s:.0f} s: rounds and seconds: {_times(results)}",
    }
    text = render(results, groups, rows, facts)
    sys.stdout.write(text)
    if arguments.write and not arguments.row:
        RESULTS_FILE.write_text(text, encoding="utf-8")
    failed = missed(rows, results)
    sys.stdout.writelines(f"MISSED: {row.title}\n" for row in failed)
    return 1 if arguments.check and failed else 0


async def _run_extra(
    groups: Sequence[Group], rows: Sequence[Row], results: Results, loop: str, began_s: float
) -> None:
    """Measure groups again whose rows are missed by little; all rounds count."""
    for _ in range(EXTRA_ROUNDS):
        close = {row.group for row in rows if row.is_close(results)}
        for name in close:
            if time.monotonic() - began_s > EXTRA_UNTIL_S:
                return
            if name == IDLE:
                await run_idle(PARTICIPANTS, results, loop)
        for group in groups:
            if group.name in close and time.monotonic() - began_s < EXTRA_UNTIL_S:
                await run_round(group, results, loop)


async def _prepared(
    groups: Sequence[Group], results: Results
) -> tuple[list[Group], dict[str, str]]:
    """Give rivals their virtual environments; a rival without one is missing."""
    versions, ready = own_versions(), dict[str, Leg]()
    for leg in {each.leg.name: each.leg for group in groups for each in group.contenders}.values():
        if leg.is_rival:
            try:
                python = await asyncio.to_thread(rival_python, leg.name)
                ready[leg.name] = replace(leg, python=python)
                async with started(ready[leg.name], "versions", {}) as process:
                    versions |= await process.read()
            except (RivalMissing, LegFailed) as error:
                results.miss(leg.name, str(error))

    def prepared(contender: Contender) -> Contender:
        return replace(contender, leg=ready.get(contender.leg.name, contender.leg))

    return [
        replace(group, contenders=[prepared(each) for each in group.contenders]) for group in groups
    ], versions


def _times(results: Results) -> str:
    took_s = results.took_s.items()
    return ", ".join(f"{name} {results.count(name)} in {each:.0f}" for name, each in took_s)


if __name__ == "__main__":
    sys.exit(main())
