"""Turns: what recording costs, told by the same processes from one moment to the next.

From one start of its processes to the next, the same leg makes half as many calls again, or as few:
two legs do not show a difference of a tenth. Turns do: neighbours have everything in common but
whether calls are recorded. Each turn of recorded calls is compared with the mean of the turns
before and after it, so that what changes over seconds falls out.

Exporters run as they do in use, while calls are made, and at the end of a turn all processes send
what is left, within the turn's time: no turn pays for the spans of another. So recorded turns pay
for more, smaller requests than recording takes in use, never for fewer. The other turns go through
the same, with nothing to send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.legs import IN_FLIGHT, ROLES, Leg
from bench.rounds import (
    LOAD_TIMEOUT_S,
    START_TIMEOUT_S,
    Process,
    cpu_s,
    process_tree,
    rate_by_cpu,
    receiver_of,
    running,
    spans_per_call_of,
)

TURN_S = 2.0
"""Four times as long as a process keeps spans before it sends them: nearly all go out as in use."""
RECORDED_TURNS = 6
"""Of one round."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn came to."""

    calls: int
    took_s: float
    """Until the last span had been sent."""
    cpu_us: tuple[float, ...]
    """Processor time per call of router, host and caller, in microseconds."""

    @property
    def per_s(self) -> float:
        """Calls per second."""
        return self.calls / self.took_s

    @property
    def cpu_per_s(self) -> float:
        """Calls per second that the processor time would allow."""
        return rate_by_cpu(self.cpu_us)


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one round, in the order in which they were taken: plain ones at both ends."""

    plain: Sequence[Turn]
    """Nothing is recorded; one more than there are recorded ones."""
    recorded: Sequence[Turn]
    """So many calls are recorded as the leg says."""
    took_s: float = 0.0

    def ratios(self, measure: Callable[[Turn], float]) -> list[float]:
        """Compare each recorded turn with the mean of its two neighbours."""
        return by_neighbours(self.plain, self.recorded, measure)


def by_neighbours(
    plain: Sequence[T], others: Sequence[T], measure: Callable[[T], float]
) -> list[float]:
    """Compare each of the others with the mean of the plain ones before and after it."""
    return [
        2 * measure(turn) / (measure(before) + measure(after))
        for before, turn, after in zip(plain, others, plain[1:], strict=False)
    ]


async def run_turns(leg: Leg, loop: str) -> Turns:
    """Take one round's turns, on processes that live for this round alone.

    Raises:
        RuntimeError: A process ended early, or the spans that were to be recorded were not.
    """
    began_s = time.monotonic()
    async with receiver_of(leg) as (leg, receiver):
        assert receiver is not None, "a leg that takes turns records some of its calls"
        async with running(leg, loop) as processes:
            await _take(processes, recorded=False)
            warm_up = await _take(processes, recorded=True)
            plain, recorded = [await _take(processes, recorded=False)], []
            for _ in range(RECORDED_TURNS):
                recorded.append(await _take(processes, recorded=True))
                plain.append(await _take(processes, recorded=False))
            calls = sum(turn.calls for turn in (warm_up, *recorded))
            await spans_per_call_of(leg, receiver, calls)
    return Turns(plain, recorded, time.monotonic() - began_s)


async def _take(processes: Mapping[str, Process], *, recorded: bool) -> Turn:
    """Let the caller call for a while, then let all send their spans, and see what it took."""
    trees = [process_tree(processes[role].pid) for role in ROLES]
    before_s = [cpu_s(tree) for tree in trees]
    began_s = time.perf_counter()
    turn = {"seconds": TURN_S, "recorded": recorded, "in_flight": IN_FLIGHT.in_flight}
    await processes["caller"].tell(turn)
    calls = (await processes["caller"].hear(LOAD_TIMEOUT_S))["calls"]
    await asyncio.gather(*(_send_spans(processes[role]) for role in ROLES))
    took_s = time.perf_counter() - began_s
    spent_s = zip(before_s, map(cpu_s, trees), strict=True)
    return Turn(calls, took_s, tuple((after - before) / calls * 1e6 for before, after in spent_s))


async def _send_spans(process: Process) -> None:
    await process.tell({})
    await process.hear(START_TIMEOUT_S)
