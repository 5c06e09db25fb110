"""What a storm does, drawn from a seed: the calls of each caller, and the faults. Data alone.

The same seed draws the same calls and faults in the same order. When each of them happens, and so
what coincides, depends on the machine and does not repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = [
    "CALLERS",
    "HELD",
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
"""Tools that yield values one by one."""
_KEYS_PER_CALLER = 10_000_000
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
    "large": 4,
    "approved": 12,
    "nest_approved": 4,
}
HELD = frozenset({"approved", "nest_approved"})
"""Tools that wait for a person, or call one that does: one call in five."""
_UNARY = frozenset({"once", "again", "nest", "thread", "fail", "large"}) | HELD
CALLERS = 4
"""The number of callers; their names are `caller-0` and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, with all that its caller and its tool are to do."""

    key: int
    """Identifies the call everywhere; the nested call, if it makes one, has the negative."""
    tool: str
    count: int = 0
    """The number of values of its output or input."""
    size: int = 0
    """Bytes of each value, or of the file."""
    work_s: float = 0.0
    """Seconds that the tool takes, for each value if there are any."""
    fails_at: int | None = None
    """The number of values after which the tool raises; if it takes input, the input raises."""
    timeout_s: float | None = None
    """Its deadline; None is no deadline, only for streams."""
    gives_up_s: float | None = None
    """Seconds after which its caller cancels it."""
    leaves_at: int | None = None
    """The number of values after which its caller leaves the stream."""
    reads_s: float = 0.0
    """Seconds that its caller takes for each value."""
    progress: bool = False
    retry: bool = True
    approval_timeout_s: float | None = None
    """How long it waits for a person, if it is of `HELD`."""
    on_behalf_of: str | None = None
    """The name of the caller for whom it is made, and a nested call within it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and how long it lasts."""

    kind: str
    target: int
    """The number of the process or connection; numbers wrap around."""
    lasts_s: float
    calm_s: float
    """Seconds without a fault after it."""


def planned_calls(seed: str, caller: int) -> Iterator[PlannedCall]:
    """Draw the calls of one caller, endlessly."""
    random = Random(f"{seed} caller {caller}")
    tools, weights = [*_WEIGHTS], [*_WEIGHTS.values()]
    key = caller * _KEYS_PER_CALLER
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
        approval_timeout_s=random.choice([0.0, 0.05, 2.0, 2.0]) if tool in HELD else None,
        on_behalf_of=_principal(random, 0.4 if tool in ("nest", "nest_approved") else 0.05),
        size=random.choice([70_000, 70_000, 150_000, 600_000]) if tool == "large" else 0,
    )


def _principal(random: Random, chance: float) -> str | None:
    return f"caller-{random.randrange(CALLERS)}" if random.random() < chance else None


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
    """Draw the faults of hosts and of the person who approves, and of servers, endlessly.

    Args:
        seed: The storm's.
        server: Whether servers fail too.
    """
    random = Random(f"{seed} processes {server}")
    of_hosts = ("kill host", "stop host", "drain host", "supersede host", "kill approver")
    of_server = ("drain server", "drain server", "kill server")
    is_servers_turn = server
    while True:
        kind = random.choice(of_server if is_servers_turn else of_hosts)
        lasts_s = random.choice([0.1, 0.5, 5.0])
        yield Fault(kind, random.randrange(1_000), lasts_s, random.uniform(0.2, 1.0))
        is_servers_turn = server and not is_servers_turn


def connection_faults(seed: str, part: int) -> Iterator[Fault]:
    """Draw the faults of connections in one part of a storm, endlessly."""
    random = Random(f"{seed} lines {part}")
    kinds = ["late", "crumbs", "stall", "reset", "lose", "half open", "refuse", "slow"]
    while True:
        lasts_s = random.choice([0.1, 0.5, 1.5, 4.0])
        calm_s = random.uniform(0.2, 1.0)
        yield Fault(random.choice(kinds), random.randrange(1_000), lasts_s, calm_s)


def node_faults(seed: str) -> Iterator[Fault]:
    """Draw the faults of nodes, endlessly; a node may be suspended for longer than a lease."""
    random = Random(f"{seed} nodes")
    while True:
        kind = random.choice(["drain server", "drain server", "kill server", "stop server"])
        lasts_s = random.choice([0.1, 0.5, 5.0])
        yield Fault(kind, random.randrange(1_000), lasts_s, random.uniform(0.2, 1.0))


def redis_faults(seed: str, part: int) -> Iterator[Fault]:
    """Draw the faults of the Redis of many nodes in one part of a storm, endlessly."""
    random = Random(f"{seed} redis {part}")
    while True:
        kind = random.choice(["kill redis", "stop redis"])
        lasts_s = random.choice([0.1, 0.5, 2.0])
        yield Fault(kind, 0, lasts_s, random.uniform(1.0, 4.0))
