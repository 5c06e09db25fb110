"""The command line of the bench: which legs, loops and rounds; prints, writes, or judges.

Rounds are interleaved: each runs every leg once, the order turns from round to round, and processes
live for one round. A verdict that misses is given more rounds, never other ones: all of them count.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.contention import Contention
from bench.report import machine, own_versions, render
from bench.rivals import RivalsMissing, rivals_python
from bench.rounds import START_TIMEOUT_S, Figures, Leg, run_round, started
from bench.verdict import LOADS, missed

RESULTS_FILE = Path(__file__).resolve().parent / "RESULTS.md"
LOOPS = ("uvloop", "asyncio")
CHECK_LEGS = ("stock", "relay", "toolbus")
UNSAMPLED = {
    "OTEL_SDK_DISABLED": "false",
    "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
}
LEGS = (
    Leg("stock", "bench.stock_relay"),
    Leg("relay", "bench.relay"),
    Leg("relay-batched", "bench.relay", environment={"BENCH_BATCHES": "1"}),
    Leg("nats", "bench.nats_leg"),
    Leg("toolbus", "bench.toolbus_leg", environment=UNSAMPLED),
    Leg("toolbus-untraced", "bench.toolbus_leg", environment={"OTEL_SDK_DISABLED": "true"}),
)


class Bench:
    """Measures legs on loops, round after round, and keeps every figure."""

    def __init__(self, legs: Sequence[Leg], loops: Sequence[str]) -> None:
        self._legs = legs
        self._loops = loops
        self.rounds = 0
        self.contention = Contention()
        self.results: dict[tuple[str, str], list[list[Figures]]] = {
            (loop, leg.name): [] for loop in loops for leg in legs
        }

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            first = self.rounds % len(self._legs)
            for loop in self._loops:
                for leg in (*self._legs[first:], *self._legs[:first]):
                    sys.stderr.write(f"\r\033[Kround {self.rounds + 1}: {leg.name} on {loop}")
                    self.results[loop, leg.name].append(await run_round(leg, loop, LOADS))
            self.rounds += 1
        sys.stderr.write("\r\033[K")


def main() -> int:
    arguments = _arguments()
    return asyncio.run(_check(arguments) if arguments.check else _measure(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a call costs, beside relays and NATS.")
    parser.add_argument("--check", action="store_true", help="fail if a judged ratio is missed")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--rounds", type=int, help="how many rounds (default 7, or 5 to check)")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="default: both")
    parser.add_argument("--leg", choices=[leg.name for leg in LEGS], action="append")
    parser.add_argument("--max-rounds", type=int, default=15, help="where a missed check gives up")
    return parser.parse_args()


async def _measure(arguments: argparse.Namespace) -> int:
    names = arguments.leg or [leg.name for leg in LEGS]
    facts = {
        "measured": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} by `{_command()}`",
        "machine": machine(),
        "versions": "",
    }
    versions = own_versions()
    legs = [leg for leg in LEGS if leg.name in names]
    if "nats" in names:
        legs, nats = await _with_rivals(legs)
        versions |= nats
    bench = Bench(legs, arguments.loop or LOOPS)
    await bench.run(arguments.rounds or (3 if arguments.quick else 7))
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["rounds"] = f"{bench.rounds}, interleaved; {bench.contention}"
    text = render(bench.results, arguments.loop or LOOPS, facts)
    sys.stdout.write(text)
    if arguments.write:
        RESULTS_FILE.write_text(text, encoding="utf-8")
    return 0


async def _with_rivals(legs: Sequence[Leg]) -> tuple[list[Leg], dict[str, str]]:
    """Give NATS its environment, or leave it out and say so."""
    others = [leg for leg in legs if leg.name != "nats"]
    try:
        nats = Leg("nats", "bench.nats_leg", python=await asyncio.to_thread(rivals_python))
        async with started(nats, "versions", {}) as process:
            versions = await process.hear(START_TIMEOUT_S)
    except (RivalsMissing, RuntimeError) as error:
        sys.stderr.write(f"NOT MEASURED: nats ({error})\n")
        return others, {}
    return [nats if leg.name == "nats" else leg for leg in legs], versions


async def _check(arguments: argparse.Namespace) -> int:
    loop = "uvloop"
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    bench = Bench([leg for leg in LEGS if leg.name in CHECK_LEGS], [loop])
    await bench.run(rounds)
    while missed(bench.results, loop) and bench.rounds < arguments.max_rounds:
        sys.stderr.write(f"missed after {bench.rounds} rounds; measuring more, all count\n")
        await bench.run(min(rounds, arguments.max_rounds - bench.rounds))
    versions = ", ".join(f"{name} {version}" for name, version in own_versions().items())
    rounds_run = f"{bench.rounds}, interleaved; {bench.contention}"
    facts = {"machine": machine(), "versions": versions, "rounds": rounds_run}
    sys.stdout.write(render(bench.results, [loop], facts))
    failed = missed(bench.results, loop)
    for promise in failed:
        sys.stdout.write(f"MISSED: {promise.leg} / {promise.against}: {promise.title}\n")
    return 1 if failed else 0


def _command() -> str:
    return " ".join(["python tests/bench/bench.py", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
