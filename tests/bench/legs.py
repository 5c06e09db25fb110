"""The legs: over what a call of `demo.add` is measured, and under which loads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.measure import Load

ROLES = ("router", "host", "caller")
"""The processes of a call, whose processor time is counted."""
ALONE = Load(calls=4_000)
IN_FLIGHT = Load(calls=20_000, in_flight=64)
LOOPS = ("uvloop", "asyncio")
JUDGED_LOOP = "uvloop"
SPANS_PER_CALL = 4
"""The caller's, the server's, the host's, and one around the tool's run."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to get a call from a caller to a host and back."""

    name: str
    module: str
    """What `python -m` runs with the role as its argument."""
    meaning: str
    """What it is, in half a sentence."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ROLES
    """The processes, in the order in which they start; the first says where the others go."""
    loads: tuple[Load, ...] = (ALONE, IN_FLIGHT)
    share: float = 1.0
    """Of the calls of each load: less for who is so slow that fewer tell as much."""
    traced_share: float = 0.0
    """Of its calls, how many are recorded and sent to a receiver of spans."""
    takes_turns: bool = False
    """Whether it is measured by turns, instead of by loads."""
    moves_files: bool = False
    """Whether it is measured by passages, instead of by loads."""
    bout: str = ""
    """Legs of one bout are measured side by side, as their ratios are promised."""
    crosses_nodes: bool = False
    """Whether it is measured by crossings, instead of by loads."""
    is_rival: bool = False
    """Whether it runs in an environment of its own, from `requirements-NAME.txt`."""
    on_both_loops: bool = True
    """Whether it is measured on plain asyncio too, where nobody asks for it by name."""


def _sampling(share: float, **more: str) -> dict[str, str]:
    """Set tracing up as a program's environment does; without a receiver nothing is sampled."""
    return {
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio" if share else "parentbased_always_off",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        **more,
    }


def _among(toolkits: int) -> Leg:
    """The bus in a room that has so many toolkits, ours among them."""
    return Leg(
        f"toolbus-{toolkits}",
        "bench.neighbours_leg",
        f"toolbus in a room with {toolkits:,} toolkits",
        environment={**_sampling(0), "BENCH_TOOLKITS": str(toolkits)},
        roles=("router", "neighbours", "host", "caller"),
        loads=(ALONE,),
        bout="toolkits",
        on_both_loops=False,
    )


LEGS = (
    Leg(
        "stock",
        "bench.stock_relay",
        "a relay on stock websockets, `async for` and `await send`",
        bout="calls",
    ),
    Leg(
        "relay",
        "bench.relay",
        "a relay on our transport, nothing on top, each message written at once",
        bout="calls",
    ),
    Leg(
        "relay-batched",
        "bench.relay",
        "the same with the batched writes that the bus turns on",
        environment={"BENCH_BATCHES": "1"},
        bout="calls",
        on_both_loops=False,
    ),
    Leg(
        "nats",
        "bench.nats_leg",
        "nats-server and nats-py, request and reply; checks nothing",
        bout="calls",
        is_rival=True,
    ),
    Leg(
        "crossbar",
        "bench.crossbar_leg",
        "WAMP: a Crossbar router, autobahn at both ends, websocket and msgpack",
        share=0.25,
        is_rival=True,
        on_both_loops=False,
    ),
    Leg(
        "fastmcp",
        "bench.fastmcp_leg",
        "MCP over streamable HTTP as FastMCP sets it up; one hop, no router",
        roles=("host", "caller"),
        share=0.03,
        is_rival=True,
        on_both_loops=False,
    ),
    Leg(
        "toolbus",
        "bench.toolbus_leg",
        "grants and validation on, tracing on but unsampled",
        environment=_sampling(0),
        bout="calls",
    ),
    Leg(
        "toolbus-untraced",
        "bench.toolbus_leg",
        "the same without tracing set up",
        environment={"OTEL_SDK_DISABLED": "true"},
        bout="calls",
        on_both_loops=False,
    ),
    Leg(
        "toolbus-1%",
        "bench.turns_leg",
        "turns without a recorded call, and turns in which 1 % of calls are recorded and sent "
        "to a receiver on the same cores",
        environment=_sampling(0.01),
        loads=(),
        takes_turns=True,
        traced_share=0.01,
        on_both_loops=False,
    ),
    Leg(
        "toolbus-100%",
        "bench.toolbus_leg",
        "every call recorded and sent",
        environment=_sampling(1, OTEL_BSP_MAX_QUEUE_SIZE="100000"),
        loads=(ALONE,),
        share=0.5,
        traced_share=1.0,
        on_both_loops=False,
    ),
    _among(10),
    _among(10_000),
    Leg(
        "relay-file",
        "bench.file_relay",
        "a relay on our transport that moves a file of 64 MiB in frames of 256 KiB, nothing on top",
        loads=(),
        moves_files=True,
        on_both_loops=False,
    ),
    Leg(
        "toolbus-file",
        "bench.file_leg",
        "a file of 64 MiB as result and as attachment, items of 100 bytes, small calls beside",
        environment=_sampling(0),
        roles=(*ROLES, "other"),
        loads=(),
        moves_files=True,
        on_both_loops=False,
    ),
    Leg(
        "toolbus-nodes",
        "bench.crossing_leg",
        "one caller beside a host at its own node, at another one, and at a node without Redis",
        environment=_sampling(0),
        roles=("router", "far", "host", "caller"),
        loads=(),
        crosses_nodes=True,
        on_both_loops=False,
    ),
)
