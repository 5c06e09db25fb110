"""The command line of the bench: which rows, legs, loops and rounds; prints, writes, or judges.

A promise that is missed is given more rounds, never other ones: all of them count. One that even
its kindest rounds miss is not, as more would not mend it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.course import Course
from bench.legs import JUDGED_LOOP, LEGS, LOOPS, Leg
from bench.promises import GATHERING_ROW, MORE_LEGS, PARTICIPANTS, PROMISES, ROWS
from bench.report import machine, own_versions, render
from bench.rivals import RivalMissing, rival_python
from bench.rounds import START_TIMEOUT_S, started
from bench.shares import take_shares
from bench.verdict import Promise, missed

RESULTS_FILE = Path(__file__).resolve().parent / "RESULTS.md"
ROUNDS, CHECK_ROUNDS, QUICK_ROUNDS = 5, 5, 1
GATHERINGS, CHECK_GATHERINGS = 2, 1


def main() -> int:
    arguments = _arguments()
    return asyncio.run(_check(arguments) if arguments.check else _measure(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a call costs, beside relays and rivals.")
    parser.add_argument("--check", action="store_true", help="fail if what is judged is missed")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="one round, to see that all runs")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, or {CHECK_ROUNDS} to check")
    parser.add_argument("--max-rounds", type=int, default=9, help="where a missed check gives up")
    parser.add_argument("--row", choices=ROWS, action="append", help="default: all")
    parser.add_argument("--leg", choices=[leg.name for leg in LEGS], action="append")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="default: both")
    parser.add_argument("--participants", type=int, default=PARTICIPANTS, help="of a gathering")
    return parser.parse_args()


def chosen_promises(rows: Sequence[str] | None, *, judged: bool) -> list[Promise]:
    """The promises of these rows, or of all; only those that are judged, or all."""
    return [
        promise
        for promise in PROMISES
        if (not rows or promise.row in rows) and (promise.is_judged or not judged)
    ]


def legs_of(promises: Sequence[Promise], *, printed: bool) -> list[Leg]:
    """The legs that these promises need, and with `printed` those that are only shown."""
    names = {leg for promise in promises for leg in promise.figure.legs}
    if printed:
        names |= {leg for promise in promises for leg in MORE_LEGS.get(promise.row, ())}
    return [leg for leg in LEGS if leg.name in names]


async def _measure(arguments: argparse.Namespace) -> int:
    measured = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} by `{_command()}`"
    is_chosen = bool(arguments.leg or arguments.row or arguments.loop)
    loops = arguments.loop or LOOPS
    field = await prepare(chosen_legs(arguments.row, arguments.leg))
    gathers = GATHERING_ROW in (arguments.row or (() if arguments.leg else ROWS))
    course = Course(
        {loop: _legs_on(loop, field.legs, everywhere=is_chosen) for loop in loops},
        participants=arguments.participants if gathers else 0,
        gathering_loops=arguments.loop or [JUDGED_LOOP],
    )
    course.results.missing |= field.missing
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    await course.run(rounds, min(rounds, GATHERINGS))
    if not is_chosen or "toolbus" in (arguments.leg or ()):
        course.results.shares[JUDGED_LOOP] = await take_shares(JUDGED_LOOP)
    text = render(course.results, loops, {"measured": measured, **_facts(course, field)})
    sys.stdout.write(text)
    if arguments.write:
        RESULTS_FILE.write_text(text, encoding="utf-8")
    return 0


def chosen_legs(rows: Sequence[str] | None, names: Sequence[str] | None) -> list[Leg]:
    """The legs of these rows and these legs; all of them where none of either is named."""
    of_rows = legs_of(chosen_promises(rows, judged=False), printed=True)
    if not names:
        return of_rows
    return [leg for leg in LEGS if leg.name in names or (rows and leg in of_rows)]


def _legs_on(loop: str, legs: Sequence[Leg], *, everywhere: bool) -> list[Leg]:
    return [leg for leg in legs if everywhere or leg.on_both_loops or loop == JUDGED_LOOP]


def _facts(course: Course, field: Field) -> dict[str, str]:
    took = [f"{name} {seconds:.0f}" for name, seconds in course.took_s.items()]
    total_s = sum(course.took_s.values()) + field.took_s
    return {
        "machine": machine(),
        "versions": ", ".join(f"{name} {version}" for name, version in field.versions.items()),
        "rounds": f"{course.rounds}, interleaved; {course.contention}",
        "took": f"{total_s:.0f} s: {', '.join(took)}, environments {field.took_s:.0f}",
    }


@dataclass(frozen=True, slots=True)
class Field:
    """Who takes part."""

    legs: Sequence[Leg]
    versions: dict[str, str]
    missing: dict[str, str]
    """The rivals that cannot, and why."""
    took_s: float
    """What making environments took."""


async def prepare(legs: Sequence[Leg]) -> Field:
    """Give rivals their environments, or leave them out and say so."""
    began_s = time.monotonic()
    ready: list[Leg] = []
    missing: dict[str, str] = {}
    versions = own_versions()
    for leg in legs:
        try:
            equipped = await _with_environment(leg) if leg.is_rival else leg
            versions |= await _versions_of(equipped) if leg.is_rival else {}
        except (RivalMissing, RuntimeError, TimeoutError) as error:
            missing[leg.name] = str(error) or type(error).__name__
            sys.stderr.write(f"NOT MEASURED: {leg.name} ({missing[leg.name]})\n")
        else:
            ready.append(equipped)
    return Field(ready, versions, missing, time.monotonic() - began_s)


async def _with_environment(leg: Leg) -> Leg:
    python = await asyncio.to_thread(rival_python, leg.name)
    return dataclasses.replace(leg, python=python)


async def _versions_of(leg: Leg) -> dict[str, str]:
    async with started(leg, "versions", {}) as process:
        return await process.hear(START_TIMEOUT_S)


async def _check(arguments: argparse.Namespace) -> int:
    loop = JUDGED_LOOP
    promises = chosen_promises(arguments.row, judged=True)
    gathers = any(promise.row == GATHERING_ROW for promise in promises)
    field = await prepare(legs_of(promises, printed=False))
    course = Course(
        {loop: field.legs},
        participants=arguments.participants if gathers else 0,
        gathering_loops=[loop],
    )
    course.results.missing |= field.missing
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else CHECK_ROUNDS)
    await course.run(rounds, min(rounds, CHECK_GATHERINGS))
    await _measure_more(course, promises, arguments.max_rounds)
    sys.stdout.write(render(course.results, [loop], _facts(course, field)))
    failed = missed(promises, course.results, loop)
    for promise in failed:
        sys.stdout.write(f"MISSED: {promise.name}\n")
    return 1 if failed else 0


async def _measure_more(course: Course, promises: Sequence[Promise], max_rounds: int) -> None:
    """Measure what is missed, but within reach, until it holds or there were enough rounds."""
    while course.rounds < max_rounds:
        results = course.results
        again = [
            promise
            for promise in missed(promises, results, JUDGED_LOOP)
            if not promise.is_lost(results, JUDGED_LOOP)
        ]
        if not again:
            return
        names = ", ".join(promise.name for promise in again)
        sys.stderr.write(f"missed after {course.rounds} rounds, measuring more: {names}\n")
        legs = {leg for promise in again for leg in promise.figure.legs}
        gathers = any(promise.row == GATHERING_ROW for promise in again)
        await course.run_again(JUDGED_LOOP, legs, gathers=gathers)


def _command() -> str:
    return " ".join(["python tests/bench/bench.py", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
