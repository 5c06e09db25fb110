"""Where the microseconds of a call go: what its three processes do meanwhile, by kind of work.

From samples of processor time, with many calls in flight. What C code does counts for the Python
function that called it, or that it calls next: so reading from the socket, and all that the event
loop does between two messages, stand with the function that takes what was read.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.legs import LEGS, ROLES
from bench.measure import Load
from bench.rounds import LOAD_TIMEOUT_S, running

__all__ = ["KINDS", "Shares", "kind_of", "take_shares"]

LOAD = Load(calls=40_000, in_flight=64)
KINDS: Mapping[str, tuple[str, ...]] = {
    "sockets, event loop, tasks": ("toolbus/transport.py", "asyncio/", "python3", "uvloop/"),
    "websocket frames": ("toolbus/message_frames.py", "websockets/"),
    "the protocol's frames, packing": ("wire/", "msgpack/", "toolbus/lines.py"),
    "routing": ("toolbus_server/",),
    "the caller's side": (
        *("toolbus/room.py", "toolbus/calls.py", "toolbus/call_table.py", "toolbus/link.py"),
        *("toolbus/deadlines.py", "toolbus/retries.py", "toolbus/affinities.py"),
    ),
    "the host's side": (
        *("toolbus/runner.py", "toolbus/hosted_call.py", "toolbus/toolkit.py", "toolbus/tool.py"),
        *("toolbus/signature.py", "toolbus/plain_json.py", "toolbus/chunks.py"),
        *("toolbus/context.py", "toolbus/hosted_toolkit.py"),
    ),
    "tracing, unsampled": (
        *("toolbus/telemetry.py", "toolbus/trace_context.py", "toolbus/root_sampling.py"),
        *("context/", "trace/", "propagation/"),
    ),
    "the bench and its tool": ("bench/",),
}
"""Kinds of work, and how the places begin that do it."""
OTHER = "other"
_START_UP = ("<frozen ", "<string>")


@dataclass(slots=True)
class Shares:
    """What the processes of a call did, in microseconds of processor time per call."""

    kinds: dict[str, dict[str, float]] = field(default_factory=dict)
    """By process, by kind of work."""
    functions: dict[str, dict[str, float]] = field(default_factory=dict)
    """By process, by place: a file with a function."""


def kind_of(place: str) -> str:
    """Say what kind of work a place does."""
    starts = ((kind, start) for kind, starts in KINDS.items() for start in starts)
    return next((kind for kind, start in starts if place.startswith(start)), OTHER)


async def take_shares(loop: str) -> Shares:
    """Watch each process of the leg `toolbus` in a run of its own.

    Raises:
        RuntimeError: A process ended early.
    """
    leg = next(leg for leg in LEGS if leg.name == "toolbus")
    shares = Shares()
    for role in ROLES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "samples"
            async with running(leg, loop, {role: ["--sample", str(file)]}) as processes:
                await processes["caller"].tell(LOAD.as_json())
                await processes["caller"].hear(LOAD_TIMEOUT_S)
            samples = json.loads(file.read_text(encoding="utf-8"))["own_s"]
        shares.functions[role] = _per_call(samples)
        kinds: defaultdict[str, float] = defaultdict(float)
        for place, own_us in shares.functions[role].items():
            kinds[kind_of(place)] += own_us
        shares.kinds[role] = dict(kinds)
    return shares


def _per_call(samples: Mapping[str, float]) -> dict[str, float]:
    """Spread what was sampled over the calls, without what is imported before the first."""
    calls = LOAD.calls + LOAD.warm_up_calls
    return {
        place: own_s / calls * 1e6
        for place, own_s in samples.items()
        if not place.startswith(_START_UP) and not place.endswith("<module>")
    }
