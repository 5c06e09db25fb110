"""The course of a run: which legs in which order, round after round, and how long each took.

Rounds are interleaved: each runs every leg once, the order turns from round to round, and processes
live for one round. Gatherings come after a round's legs, and in the first rounds only: their
figures spread little.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

from bench.bouts import LegFailed, run_bout
from bench.contention import Contention
from bench.crossing import run_crossing
from bench.gathering import GatheringRefused, gather
from bench.legs import Leg
from bench.passages import run_passage
from bench.redis_watch import RedisMissing
from bench.rounds import run_round
from bench.turns import run_turns
from bench.verdict import Results

GATHERING = "gathering"
T = TypeVar("T")


class Course:
    """Measures legs on loops, and keeps every figure.

    Args:
        legs: What to run on each loop.
        participants: How many come to a gathering; 0 for none.
        gathering_loops: On which loops they gather.
    """

    def __init__(
        self,
        legs: dict[str, Sequence[Leg]],
        *,
        participants: int = 0,
        gathering_loops: Sequence[str] = (),
    ) -> None:
        self._legs = legs
        self._participants = participants
        self._gathering_loops = gathering_loops if participants else ()
        self._is_again = False
        self.rounds = 0
        self._bouts = 0
        self.contention = Contention()
        self.results = Results()
        self.took_s: defaultdict[str, float] = defaultdict(float)
        """By leg, over all rounds and loops."""

    async def run(self, rounds: int, gatherings: int = 0) -> None:
        """Run so many rounds more of every leg, with a gathering in the first ones."""
        for number in range(rounds):
            for loop, legs in self._legs.items():
                await self._run_legs(loop, legs)
            if number < gatherings:
                for loop in self._gathering_loops:
                    await self._gather(loop)
            self.rounds += 1
        sys.stderr.write("\r\033[K")

    async def run_again(self, loop: str, names: set[str], *, gathers: bool) -> None:
        """Run one round more of some legs, and a gathering where its figure is among them."""
        self._is_again = True
        await self._run_legs(loop, [leg for leg in self._legs[loop] if leg.name in names])
        if gathers and loop in self._gathering_loops:
            await self._gather(loop)
        self.rounds += 1
        sys.stderr.write("\r\033[K")

    async def _run_legs(self, loop: str, legs: Sequence[Leg]) -> None:
        bouts: defaultdict[str, list[Leg]] = defaultdict(list)
        for leg in legs:
            bouts[leg.bout or leg.name].append(leg)
        for bout in _turned(list(bouts.values()), self.rounds):
            there = [leg for leg in bout if leg.name not in self.results.missing]
            if len(there) > 1:
                await self._run_bout(_turned(there, self.rounds), loop)
            elif there:
                await self._run_alone(there[0], loop)

    async def _run_bout(self, legs: Sequence[Leg], loop: str) -> None:
        """Measure legs side by side; where a rival fails, without it."""
        self._say(" beside ".join(leg.name for leg in legs), loop)
        self._bouts += 1
        try:
            rounds = await run_bout(legs, loop, self._bouts)
        except LegFailed as failure:
            if not failure.leg.is_rival:
                raise
            self._miss(failure.leg.name, str(failure))
            others = [leg for leg in legs if leg is not failure.leg]
            await self._run_bout(others, loop)
            return
        for name, round_ in rounds.items():
            self.results.rounds.setdefault((loop, name), []).append(round_)
            self.took_s[name] += round_.took_s

    async def _run_alone(self, leg: Leg, loop: str) -> None:
        self._say(leg.name, loop)
        try:
            self.took_s[leg.name] += await self._run_leg(leg, loop)
        except RedisMissing as missing:
            self._miss(leg.name, str(missing))
        except (RuntimeError, TimeoutError) as error:
            if not leg.is_rival:
                raise
            # What is not ours may fail to run here without failing the run.
            self._miss(leg.name, str(error) or type(error).__name__)

    async def _run_leg(self, leg: Leg, loop: str) -> float:
        """Measure a leg once, keep what it came to, and return what that took, in seconds."""
        if leg.takes_turns:
            turns = await run_turns(leg, loop)
            self.results.turns.setdefault((loop, leg.name), []).append(turns)
            return turns.took_s
        if leg.moves_files:
            passage = await run_passage(leg, loop)
            self.results.passages.setdefault((loop, leg.name), []).append(passage)
            return passage.took_s
        if leg.crosses_nodes:
            crossings = self.results.crossings.setdefault((loop, leg.name), [])
            # What is counted, and joins, spread little: once, and wherever something was missed.
            is_whole = not crossings or self._is_again
            crossings.append(await run_crossing(leg, loop, is_whole=is_whole))
            return crossings[-1].took_s
        round_ = await run_round(leg, loop)
        self.results.rounds.setdefault((loop, leg.name), []).append(round_)
        return round_.took_s

    def _miss(self, what: str, reason: str) -> None:
        self.results.missing[what] = reason
        sys.stderr.write(f"\nNOT MEASURED: {what} ({reason})\n")

    async def _gather(self, loop: str) -> None:
        self._say(GATHERING, loop)
        began_s = time.monotonic()
        try:
            gathering = await gather(self._participants, loop)
        except GatheringRefused as refusal:
            self._miss(GATHERING, str(refusal))
            return
        self.results.gatherings.setdefault(loop, []).append(gathering)
        self.took_s[GATHERING] += time.monotonic() - began_s

    def _say(self, what: str, loop: str) -> None:
        sys.stderr.write(f"\r\033[Kround {self.rounds + 1}: {what} on {loop}")


def _turned(items: Sequence[T], times: int) -> Sequence[T]:
    """Begin with another one each time."""
    first = times % len(items) if items else 0
    return (*items[first:], *items[:first])
