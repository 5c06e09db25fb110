"""Bouts: legs that are compared run side by side, a part of one's calls, then of the next one's.

From one minute to the next the same machine may be half as fast again, and from one start of its
processes to the next a leg may be too. So legs whose ratio is promised live at the same time, each
with processes of its own, and take turns with short loads: what the machine does, it does to all of
them. Who is not measured has nothing to do meanwhile but to answer a ping now and then.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.legs import Leg
from bench.measure import Load, Sample
from bench.rounds import Figures, Process, Round, figures_of, running

__all__ = ["PARTS", "LegFailed", "run_bout"]

PARTS = 8
"""Of each leg's calls; one more goes before them and does not count."""


class LegFailed(RuntimeError):
    """One leg of a bout could not be measured; what it is called stands in `leg`."""

    def __init__(self, leg: Leg, reason: str) -> None:
        super().__init__(reason)
        self.leg = leg


async def run_bout(legs: Sequence[Leg], loop: str, number: int) -> dict[str, Round]:
    """Measure the loads of all these legs once, part by part.

    Args:
        legs: Who takes part, in the order of their parts.
        loop: On what event loop.
        number: Which bout it is, so that its rounds are found together.

    Raises:
        LegFailed: A leg's process did not start, or ended early.
    """
    began_s = time.monotonic()
    figures: dict[str, dict[Load, Figures]] = {leg.name: {} for leg in legs}
    async with AsyncExitStack() as stack:
        processes: dict[str, dict[str, Process]] = {}
        for leg in legs:
            try:
                processes[leg.name] = await stack.enter_async_context(running(leg, loop))
            except (RuntimeError, TimeoutError) as error:
                raise LegFailed(leg, str(error) or type(error).__name__) from error
        for load in dict.fromkeys(load for leg in legs for load in leg.loads):
            for name, parts in (await _parts_of(load, legs, processes)).items():
                figures[name][load] = _whole(parts)
    took_s = (time.monotonic() - began_s) / len(legs)
    return {
        leg.name: Round(*_by_load(figures[leg.name]), took_s=took_s, bout=number) for leg in legs
    }


async def _parts_of(
    load: Load, legs: Sequence[Leg], processes: dict[str, dict[str, Process]]
) -> dict[str, list[Figures]]:
    """Let each leg that has this load take its parts, by turns."""
    taking = [leg for leg in legs if load in leg.loads]
    parts: dict[str, list[Figures]] = {leg.name: [] for leg in taking}
    for _ in range(PARTS + 1):
        for leg in taking:
            part = load.scaled(leg.share / PARTS)
            try:
                parts[leg.name].append(await figures_of(processes[leg.name], part))
            except (RuntimeError, TimeoutError) as error:
                raise LegFailed(leg, str(error) or type(error).__name__) from error
    return {name: taken[1:] for name, taken in parts.items()}


def _whole(parts: Sequence[Figures]) -> Figures:
    """Put parts of equally many calls together."""
    rate = statistics.harmonic_mean([part.sample.per_s for part in parts])
    p50_us = statistics.median(part.sample.p50_us for part in parts)
    by_process = zip(*(part.cpu_us for part in parts), strict=True)
    return Figures(Sample(rate, p50_us), tuple(map(statistics.mean, by_process)))


def _by_load(figures: dict[Load, Figures]) -> tuple[Figures | None, Figures | None]:
    alone = next((each for load, each in figures.items() if load.in_flight == 1), None)
    in_flight = next((each for load, each in figures.items() if load.in_flight > 1), None)
    return alone, in_flight
