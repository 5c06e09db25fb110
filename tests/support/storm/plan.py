"""What a storm does, drawn from a seed: the calls of each lane, and the troubles. Data alone.

The same seed draws the same calls and troubles in the same order. When each of them falls, and so
what meets what, is the machine's business and does not repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = [
    "IDEMPOTENT",
    "STREAMS",
    "Fault",
    "PlannedCall",
    "connection_faults",
    "node_faults",
    "planned_calls",
    "planned_faults",
    "redis_faults",
]

IDEMPOTENT = frozenset({"again"})
"""Tools that may run more than once for one call."""
STREAMS = frozenset({"count", "count_in_thread", "echo"})
"""Tools that give their values one by one."""
_KEYS_OF_A_LANE = 10_000_000
_WEIGHTS = {
    "once": 16,
    "again": 12,
    "nest": 8,
    "thread": 2,
    "fail": 2,
    "count": 6,
    "count_in_thread": 2,
    "total": 4,
    "echo": 4,
    "keep": 2,
    "blob": 2,
}
_UNARY = frozenset({"once", "again", "nest", "thread", "fail"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, with all that its caller and its tool shall do."""

    key: int
    """Names it everywhere; the call within it, if it makes one, has the negative."""
    tool: str
    count: int = 0
    """How many values go out, or come in."""
    size: int = 0
    """Bytes of each of them, or of the file."""
    work_s: float = 0.0
    """How long the tool takes, for each value where there are some."""
    fails_at: int | None = None
    """Behind how many values the tool raises; of what takes input, the input does."""
    timeout_s: float | None = None
    """Its deadline; None is none, of streams alone."""
    gives_up_s: float | None = None
    """When its caller gives it up."""
    leaves_at: int | None = None
    """Behind how many values its caller leaves the stream."""
    reads_s: float = 0.0
    """How long its caller takes for each value."""
    progress: bool = False
    retry: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, and for how long."""

    kind: str
    target: int
    """Whom it meets, counted on and on."""
    lasts_s: float
    calm_s: float
    """How long all is well behind it."""


def planned_calls(seed: str, lane: int) -> Iterator[PlannedCall]:
    """Draw the calls of one lane, without an end."""
    random = Random(f"{seed} lane {lane}")
    tools, weights = [*_WEIGHTS], [*_WEIGHTS.values()]
    key = lane * _KEYS_OF_A_LANE
    while True:
        key += 1
        tool = random.choices(tools, weights)[0]
        yield _unary(random, key, tool) if tool in _UNARY else _long(random, key, tool)


def _maybe(random: Random, chance: float, *choices: float) -> float | None:
    return random.choice(choices) if random.random() < chance else None


def _unary(random: Random, key: int, tool: str) -> PlannedCall:
    return PlannedCall(
        key=key,
        tool=tool,
        work_s=random.choice([0.0, 0.002, 0.01, 0.1, 0.5]),
        timeout_s=random.choice([0.0, 0.005, 0.05, 0.5, 3.0, 5.0, 5.0]),
        gives_up_s=_maybe(random, 0.15, 0.0, 0.002, 0.01, 0.1),
        progress=random.random() < 0.1,
        retry=random.random() < 0.8,
    )


def _long(random: Random, key: int, tool: str) -> PlannedCall:
    is_file = tool in ("keep", "blob")
    count = 0 if is_file else random.choice([0, 1, 10, 10, 100, 400])
    sizes = [0, 1, 100_000, 300_000, 1_500_000] if is_file else [10, 10, 1_000, 20_000]
    work_s = random.choice([0.0, 0.0, 0.0, 0.002])
    endless = tool in STREAMS and random.random() < 0.3
    return PlannedCall(
        key=key,
        tool=tool,
        count=count,
        size=random.choice(sizes if count < 400 else sizes[:-1]),
        work_s=0.0 if is_file else work_s,
        fails_at=random.randrange(count + 1) if count and random.random() < 0.15 else None,
        timeout_s=None if endless else random.choice([0.02, 0.3, 3.0, 6.0, 6.0]),
        gives_up_s=_maybe(random, 0.15, 0.0, 0.01, 0.1, 0.5),
        leaves_at=random.randrange(count) if count and random.random() < 0.15 else None,
        reads_s=random.choice([0.0, 0.0, 0.0, 0.005]),
        progress=random.random() < 0.3,
        retry=random.random() < 0.8,
    )


def planned_faults(seed: str, *, server: bool) -> Iterator[Fault]:
    """Draw what happens to processes, without an end.

    Args:
        seed: The storm's.
        server: Whether it happens to the server too.
    """
    random = Random(f"{seed} processes {server}")
    of_hosts = ("kill host", "stop host", "drain host")
    of_server = ("drain server", "drain server", "kill server")
    is_servers_turn = server
    while True:
        kind = random.choice(of_server if is_servers_turn else of_hosts)
        lasts_s = random.choice([0.1, 0.5, 5.0])
        yield Fault(kind, random.randrange(1_000), lasts_s, random.uniform(0.2, 1.0))
        is_servers_turn = server and not is_servers_turn


def connection_faults(seed: str, part: int) -> Iterator[Fault]:
    """Draw what happens to lines in one part of a storm, without an end."""
    random = Random(f"{seed} lines {part}")
    kinds = ["late", "crumbs", "stall", "reset", "lose", "half open", "refuse", "slow"]
    while True:
        lasts_s = random.choice([0.1, 0.5, 1.5, 4.0])
        calm_s = random.uniform(0.2, 1.0)
        yield Fault(random.choice(kinds), random.randrange(1_000), lasts_s, calm_s)


def node_faults(seed: str) -> Iterator[Fault]:
    """Draw what happens to nodes, without an end; they may stand still for longer than a lease."""
    random = Random(f"{seed} nodes")
    while True:
        kind = random.choice(["drain server", "drain server", "kill server", "stop server"])
        lasts_s = random.choice([0.1, 0.5, 5.0])
        yield Fault(kind, random.randrange(1_000), lasts_s, random.uniform(0.2, 1.0))


def redis_faults(seed: str, part: int) -> Iterator[Fault]:
    """Draw what happens to the Redis of many nodes in one part of a storm, without an end."""
    random = Random(f"{seed} redis {part}")
    while True:
        kind = random.choice(["kill redis", "stop redis"])
        lasts_s = random.choice([0.1, 0.5, 2.0])
        yield Fault(kind, 0, lasts_s, random.uniform(1.0, 4.0))
