"""Shows where a call's time goes in one process: samples, or cProfile's counts with `--count`.

Samples weigh functions truly, but a line only roughly: Python looks for the signal at calls and
jumps. Counts say what is called and how often; cProfile's times make every Python function dearer
than it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pstats
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.legs import LEGS, LOOPS, ROLES, Leg
from bench.measure import Load
from bench.rounds import LOAD_TIMEOUT_S, running

OURS = ("/toolbus/", "/toolbus_server/")
WATCHED = [leg.name for leg in LEGS if leg.loads and not leg.is_rival and not leg.traced_share]


async def put_under(load: Load, leg: Leg, *, loop: str, flags: dict[str, list[str]]) -> None:
    """Run a leg under a load once, with `flags` for the role that is watched."""
    async with running(leg, loop, flags) as processes:
        await processes["caller"].tell(load.as_json())
        await processes["caller"].hear(LOAD_TIMEOUT_S)


def _sampled(file: Path, calls: int, rows: int) -> str:
    """The functions, then the lines, that take the most processor time of a call."""
    shares: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    spent_us = {place: own_s / calls * 1e6 for place, own_s in shares["own_s"].items()}
    lines = [f"{sum(spent_us.values()):.1f} us per call", "", "own us  total us  function"]
    for place in sorted(spent_us, key=spent_us.__getitem__, reverse=True)[:rows]:
        total_us = shares["total_s"][place] / calls * 1e6
        lines.append(f"{spent_us[place]:6.2f}  {total_us:8.2f}  {place}")
    lines += ["", "own us, by line"]
    dearest = sorted(shares["lines_s"].items(), key=lambda item: item[1], reverse=True)
    return "\n".join([*lines, *(f"{s / calls * 1e6:6.2f}  {at}" for at, s in dearest[:rows])])


def _counted(file: Path, calls: int, rows: int) -> str:
    """What is called most dearly, and how many of our functions and files a call enters."""
    stats: dict[Any, Any] = vars(pstats.Stats(str(file)))["stats"]
    lines = ["own us  total us   times  function (per call of the tool)"]
    dearest = sorted(stats.items(), key=lambda item: item[1][2], reverse=True)
    for (module, line, name), (_, times, own_s, total_s, _) in dearest[:rows]:
        at = name if module == "~" else f"{'/'.join(Path(module).parts[-2:])}:{line} {name}"
        figures = f"{own_s / calls * 1e6:6.2f}  {total_s / calls * 1e6:8.2f}  {times / calls:6.2f}"
        lines.append(f"{figures}  {at}")
    places = [
        (module, name)
        for (module, _, name), (_, times, *_) in stats.items()
        if times >= calls * 0.9 and any(part in module for part in OURS)
    ]
    files = sorted({Path(module).stem for module, _ in places})
    lines.append(f"ours: {len(places)} functions in {len(files)} files: {', '.join(files)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Where a call's time goes in one process.")
    parser.add_argument("--process", choices=ROLES, required=True)
    parser.add_argument("--count", action="store_true", help="count calls instead of sampling time")
    parser.add_argument("--leg", choices=WATCHED, default="toolbus")
    parser.add_argument("--loop", choices=LOOPS, default="uvloop")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--calls", type=int, default=40_000)
    parser.add_argument("--rows", type=int, default=40)
    arguments = parser.parse_args()
    leg = next(leg for leg in LEGS if leg.name == arguments.leg)
    load = Load(arguments.calls, in_flight=arguments.in_flight)
    flag = "--count" if arguments.count else "--sample"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watched"
        flags = {arguments.process: [flag, str(file)]}
        asyncio.run(put_under(load, leg, loop=arguments.loop, flags=flags))
        show = _counted if arguments.count else _sampled
        text = show(file, load.calls + load.warm_up_calls, arguments.rows)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
