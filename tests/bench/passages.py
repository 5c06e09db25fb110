"""A passage: files go down and up, small items stream, small calls are made beside all that.

One round of the legs that move files, on processes that live for this round alone.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.legs import ROLES, Leg
from bench.rounds import LOAD_TIMEOUT_S, Process, cpu_s, process_tree, running

FILES = 4
"""Each way, behind one to warm up."""
CALLS = 1_000
"""Of which delays are told, in each setting."""
QUIET = "nothing"
SETTINGS: Mapping[str, tuple[str, str] | None] = {
    QUIET: None,
    "another caller's 64 in flight": ("other", "flood"),
    "a file, same connection": ("caller", "download"),
    "a file, another caller's": ("other", "download"),
}
"""What goes on beside small calls: whose it is, and what."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Files, or items, that went one way."""

    per_s: float
    """MB (10^6 bytes) per second; or items."""
    cpu_us: tuple[float, ...]
    """Processor time per MB of router, host and caller, in microseconds; or per item."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long one caller's small calls took, one at a time, while other things went on."""

    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class Passage:
    """What one leg did in one round."""

    download: Transfer
    """From host to caller."""
    upload: Transfer
    """From caller to host."""
    items: Transfer | None = None
    """A stream of small ones; None where a leg has no items, as with the delays."""
    delays: Mapping[str, Delays] = field(default_factory=dict)
    """By what went on beside."""
    took_s: float = 0.0


async def run_passage(leg: Leg, loop: str) -> Passage:
    """Take one round's figures.

    Raises:
        RuntimeError: A process ended early, or not all of a file came.
    """
    began_s = time.monotonic()
    async with running(leg, loop) as processes:
        down = await _transfer(processes, "download", unit=1e6, times=FILES)
        up = await _transfer(processes, "upload", unit=1e6, times=FILES)
        items: Transfer | None = None
        delays: dict[str, Delays] = {}
        if "other" in processes:
            items = await _transfer(processes, "items", unit=1, times=1)
            for setting, beside in SETTINGS.items():
                async with _going_on(processes, beside):
                    delays[setting] = await _delays(processes["caller"])
    return Passage(down, up, items, delays, time.monotonic() - began_s)


async def _transfer(
    processes: Mapping[str, Process], name: str, *, unit: float, times: int
) -> Transfer:
    trees = [process_tree(processes[role].pid) for role in ROLES]
    await _order(processes["caller"], name=name)
    before_s = [cpu_s(tree) for tree in trees]
    said = [await _order(processes["caller"], name=name) for _ in range(times)]
    spent_s = zip(before_s, map(cpu_s, trees), strict=True)
    amount = sum(each["amount"] for each in said) / unit
    rates = [each["amount"] / unit / each["took_s"] for each in said]
    cpu_us = tuple((after - before) / amount * 1e6 for before, after in spent_s)
    return Transfer(statistics.median(rates), cpu_us)


async def _order(process: Process, **order: Any) -> dict[str, Any]:
    await process.tell(order)
    return await process.hear(LOAD_TIMEOUT_S)


@contextlib.asynccontextmanager
async def _going_on(
    processes: Mapping[str, Process], beside: tuple[str, str] | None
) -> AsyncIterator[None]:
    if beside is None:
        yield
        return
    role, name = beside
    await _order(processes[role], name=name, goes_on=True)
    yield
    await _order(processes[role], name="end")


async def _delays(caller: Process) -> Delays:
    said = await _order(caller, name="delays", calls=CALLS)
    return delays_of(said["delays_us"])


def delays_of(delays_us: Sequence[float]) -> Delays:
    """The median of some delays, and what 1 % of them exceed."""
    return Delays(statistics.median(delays_us), statistics.quantiles(delays_us, n=100)[98])
