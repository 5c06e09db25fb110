"""What is measured: legs, the groups in which they are compared, and the loads of each group."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROLES = ("router", "host", "caller")
REVISIONS = ("2026-07-28", "2025-11-25")
"""Of MCP."""
FILE_BYTES = 64 * 1024 * 1024
SPANS_PER_CALL = 4
"""Of the caller, the server, the host, and the tool."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to get a call from a caller to a host and back: a set of processes."""

    name: str
    module: str
    """Run by `python -m` with the role as its argument."""
    meaning: str
    roles: Sequence[str] = ROLES
    """In the order in which they start; each gets the facts of those before it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    is_rival: bool = False
    """Whether it runs in a virtual environment of its own, from `requirements-NAME.txt`."""
    sampled: float = 0.0
    """Share of the calls of `caller` whose spans have to arrive at the role `receiver`."""


@dataclass(frozen=True, slots=True)
class Contender:
    """What is compared: a leg, and how its caller is used."""

    leg: Leg
    label: str = ""
    """Its name, if it is not the leg's."""
    caller: str = "caller"
    """The role that calls."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """Added to the order of each load."""
    processes: Sequence[str] = ROLES
    """Whose processor time counts."""
    flushes: bool = False
    """Whether these processes send their waiting spans within the time of each part."""
    is_reported_only: bool = False
    """Whether no judged row needs it."""

    @property
    def name(self) -> str:
        return self.label or self.leg.name


@dataclass(frozen=True, slots=True)
class Load:
    """An order that callers carry out in parts, by turns with the others of their group."""

    name: str
    order: Mapping[str, Any]
    parts: int
    unit: str = "calls/s"
    is_on_one_core: bool = False
    """Whether a contender's processes share a core: if one at a time only one of them runs, the
    time to wake another core of a virtual machine would be most of what is measured."""


@dataclass(frozen=True, slots=True)
class Group:
    """Contenders that run side by side, because their ratios are promised."""

    name: str
    contenders: Sequence[Contender]
    loads: Sequence[Load]
    rounds: int
    """How often a check starts the processes and measures."""
    is_reported_only: bool = False


def _calls(name: str, seconds: float, in_flight: int, parts: int) -> Load:
    order = {"order": "call", "seconds": seconds, "in_flight": in_flight}
    return Load(name, order, parts, is_on_one_core=in_flight == 1)


ALONE = _calls("one at a time", 0.3, 1, parts=8)
IN_FLIGHT = _calls("64 in flight", 0.4, 64, parts=8)
RECORDED = _calls("64 in flight", 1.5, 64, parts=6)
DOWN = Load("64 MB down", {"order": "download", "expected": FILE_BYTES}, 4, unit="MB/s")
STARTS = Load(
    "fresh interpreters", {"order": "start", "times": 3}, 5, unit="starts/s", is_on_one_core=True
)
MADE = Load(
    "made from a file",
    {"order": "call", "seconds": 0.3, "in_flight": 1},
    3,
    unit="toolkits/s",
    is_on_one_core=True,
)
ROUNDS = _calls("one after the other", 0.3, 1, parts=3)
SEARCHES = Load(
    "one at a time, on all cores",  # as rg uses them
    {"order": "call", "seconds": 0.3, "in_flight": 1},
    4,
)
UP = Load("64 MB up", {"order": "upload", "expected": FILE_BYTES}, 4, unit="MB/s")

_UNSAMPLED = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "parentbased_always_off"}


def _sampling(share: float) -> dict[str, str]:
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
        "OTEL_BSP_MAX_QUEUE_SIZE": "100000",
    }


def _bus(name: str, meaning: str, roles: Sequence[str] = ROLES, **more: Any) -> Leg:
    return Leg(name, "bench.toolbus_leg", meaning, roles, **{"environment": _UNSAMPLED, **more})


def _in_room_of(toolkits: int) -> Contender:
    return Contender(
        _bus(
            f"toolbus-{toolkits}",
            f"the bus in a room with {toolkits:,} toolkits",
            ("router", "neighbours", "host", "caller"),
            environment={**_UNSAMPLED, "BENCH_TOOLKITS": str(toolkits)},
        )
    )


def _with_holds(count: int) -> Leg:
    return Leg(
        f"holds-{count}",
        "bench.holds_leg",
        f"the bus while {count:,} calls wait for persons at the host",
        ("router", "host", "waiting", "caller", "person"),
        {**_UNSAMPLED, "BENCH_HOLDS": str(count)},
    )


def _traced(share: float) -> tuple[Contender, Contender]:
    """Two callers at one router and one host: the calls of the first are sampled."""
    leg = _bus(
        f"toolbus-{share:.0%}",
        f"the bus with two callers: {share:.0%} of the calls of one are recorded, none of the "
        "other's; spans go to a receiver on the same cores",
        ("receiver", "router", "host", "caller", "unsampled"),
        environment=_sampling(share),
        sampled=share,
    )
    processes = ("router", "host", "unsampled")
    return (
        Contender(leg, f"{share:.0%} recorded", flushes=True),
        Contender(leg, "none recorded", "unsampled", processes=processes, flushes=True),
    )


BUS = _bus("toolbus", "the bus: grants and validation on, tracing on but unsampled")
RELAY = Leg("relay", "bench.relay", "a relay on websockets alone, nothing on top")
OWN_RELAY = Leg("own-relay", "bench.own_relay", "the same relay on the transport of the bus")
NATS = Leg(
    "nats", "bench.rivals.nats_leg", "nats-server and nats-py: request and reply", is_rival=True
)
CROSSBAR = Leg(
    "crossbar",
    "bench.rivals.crossbar_leg",
    "WAMP: a Crossbar router, autobahn at both ends, websocket and msgpack",
    is_rival=True,
)
FASTMCP = Leg(
    "fastmcp",
    "bench.rivals.fastmcp_leg",
    "MCP over streamable HTTP as FastMCP sets it up: one hop, no router. `loader` sends it raw "
    "requests, as the caller of `gateway` does",
    ("host", "caller", "loader"),
    is_rival=True,
)
NODES = Leg(
    "toolbus-nodes",
    "bench.nodes_leg",
    "the bus on two nodes with a Redis, one host at each",
    ("redis", "router", "far", "host", "caller"),
    _UNSAMPLED,
)
LOOP = Leg(
    "loop",
    "bench.loop_leg",
    "one process: a fixed loop of Python, the unit of what is compared with nothing else",
    ("caller",),
)
LOCAL = Leg(
    "local",
    "bench.local_leg",
    "one process without a room: a function, and the same as a tool, alone or in three "
    "middlewares with records in memory",
    ("caller",),
)
PERMISSIONS = Leg(
    "permissions",
    "bench.permissions_leg",
    "one process: a decision about a call, with 100 or 10,000 rules of four kinds",
    ("caller",),
)
TURN = Leg(
    "turn",
    "bench.turn_leg",
    "turns of an agent over 200 tools of others, whose definitions it has read",
    environment=_UNSAMPLED,
)
MODELS = Leg(
    "models",
    "bench.models_leg",
    "one process: a turn with 200 tools in the words of providers of models, and four uses of a "
    "reply, with or without these words",
    ("caller",),
)
SEARCH = Leg(
    "tool_search",
    "bench.search_leg",
    "`tools.search` of a turn over the tools of a room, with seven queries in turn",
    environment=_UNSAMPLED,
)
AGENTS = Leg(
    "agents",
    "bench.agents_leg",
    "one process: an agent whose model asks for a tool that does nothing, in each of 20 steps, "
    "or a turn that calls this tool",
    ("caller",),
)
APIS = ("openai-chat", "openai-responses", "anthropic", "gemini")
IMPORTS = Leg(
    "imports",
    "bench.import_leg",
    "fresh interpreters that import `RoomClient`, `Toolkit`, `Turn` and `tool`, or only the "
    "libraries of these; CPU us has the start of the interpreter too. And those that run "
    "`toolbus call`, with the server and the host in one process beside them, or do nothing",
    ("caller",),
)
MCP = Leg(
    "mcp",
    "bench.toolkits.mcp_leg",
    "a tool of an MCP server over stdio: through a room, or with the client of the MCP SDK alone",
    ("router", "host", "caller", "alone"),
    _UNSAMPLED,
)
GATEWAY = Leg(
    "gateway",
    "bench.gateway_leg",
    "the gateway before a room: raw requests of MCP over HTTP, one response for each",
    ("router", "host", "door", "caller"),
    _UNSAMPLED,
)
OPENAPI = Leg(
    "openapi",
    "bench.toolkits.openapi_leg",
    "the toolkit of an API with 1,000 operations, made from a file: plain schemas in JSON and in "
    "YAML, and bodies that each reach 50 schemas, which refer to one another",
    ("caller",),
)
SHELL = Leg(
    "shell",
    "bench.toolkits.shell_leg",
    "one process: a shell judges 32 command lines in turn, runs `true`, and ends a cancelled tree "
    "of 20 processes, one in a session of its own; or bash alone runs `true`",
    ("caller",),
)
FILES = Leg(
    "files",
    "bench.toolkits.files_leg",
    "one process: files are searched in a tree of 10,000, and a file of 100 KiB is read and "
    "changed; or rg alone, and plain functions, do the same",
    ("caller",),
)
WORKSPACE = Leg(
    "workspace",
    "bench.toolkits.workspace_leg",
    "80 tasks in the process of an agent, and hosted with a file; in that process a memory of "
    "100,000 notes, Python in a folder of 2,000 files, and a language server that answers at once; "
    "or a bare interpreter",
    environment=_UNSAMPLED,
)
PYRIGHT = Leg(
    "pyright",
    "bench.toolkits.workspace_leg",
    "one process: the same hover, by pyright",
    ("pyright",),
)
TASK_TOOLS = ("create", "get", "update", "list")
_A_LOOP = Contender(LOOP, processes=("caller",))
_NODES_PROCESSES = ("router", "host", "caller", "far", "redis")

GROUPS = (
    Group(
        "calls",
        (
            Contender(BUS),
            Contender(RELAY),
            Contender(NATS),
            Contender(OWN_RELAY, is_reported_only=True),
        ),
        (ALONE, IN_FLIGHT),
        rounds=3,
    ),
    Group("traced", _traced(0.01), (RECORDED,), rounds=2),
    Group("file", (Contender(BUS), Contender(RELAY)), (DOWN, UP), rounds=3),
    Group(
        "local",
        (
            _A_LOOP,
            *(
                Contender(LOCAL, label, order={"way": way}, processes=("caller",))
                for label, way in (
                    ("three middlewares and records", "wrapped"),
                    ("tool", "tool"),
                    ("function", "function"),
                )
            ),
        ),
        (ALONE,),
        rounds=2,
    ),
    Group(
        "permissions",
        (
            _A_LOOP,
            *(
                Contender(PERMISSIONS, label, order={"rules": rules}, processes=("caller",))
                for label, rules in (
                    ("a decision with 100 rules", 100),
                    ("with 10,000 rules", 10_000),
                    ("no decision", 0),
                )
            ),
        ),
        (ALONE,),
        rounds=2,
    ),
    Group(
        "turns",
        (
            _A_LOOP,
            Contender(TURN, "turn over 10 toolkits of 20 tools", order={"of": "ten"}),
            Contender(TURN, "turn over 200 toolkits of 1 tool", order={"of": "each"}),
        ),
        (ALONE,),
        rounds=2,
    ),
    Group(
        "models",
        (
            _A_LOOP,
            *(
                Contender(MODELS, f"{label} of {api}", "caller", order, ("caller",))
                for api in APIS
                for label, order in (
                    ("200 definitions", {"step": "definitions", "api": api}),
                    ("a reply", {"step": "reply", "api": api}),
                )
            ),
            Contender(MODELS, "its uses", "caller", {"step": "uses", "api": ""}, ("caller",)),
        ),
        (ROUNDS,),
        rounds=1,
    ),
    Group(
        "tool_search",
        (
            _A_LOOP,
            *(
                Contender(SEARCH, f"a search over {count:,} tools", order={"count": count})
                for count in (1_000, 10_000)
            ),
        ),
        (ROUNDS,),
        rounds=1,
    ),
    Group(
        "agents",
        (
            _A_LOOP,
            *(
                Contender(AGENTS, label, "caller", {"of": of}, ("caller",))
                for label, of in (("a step of an agent", "agent"), ("its call", "turn"))
            ),
        ),
        (ROUNDS,),
        rounds=1,
    ),
    Group(
        "imports",
        (
            *(
                Contender(IMPORTS, label, "caller", {"program": program}, ("caller",))
                for label, program in (
                    ("four names", "names"),
                    ("their libraries", "libraries"),
                    ("`toolbus call`", "call"),
                    ("`python -c pass`", "nothing"),
                )
            ),
        ),
        (STARTS,),
        rounds=2,
    ),
    Group(
        "mcp",
        (
            Contender(MCP, "MCP through a room"),
            Contender(MCP, "MCP client alone", "alone", processes=("alone",)),
        ),
        (ALONE, IN_FLIGHT),
        rounds=2,
    ),
    Group(
        "gateway",
        tuple(
            contender
            for revision in REVISIONS
            for contender in (
                Contender(
                    GATEWAY, f"gateway, {revision}", "caller", {"revision": revision}, ("door",)
                ),
                Contender(
                    FASTMCP, f"FastMCP, {revision}", "loader", {"revision": revision}, ("host",)
                ),
            )
        ),
        (ALONE, IN_FLIGHT),
        rounds=2,
    ),
    Group(
        "openapi",
        (
            _A_LOOP,
            *(
                Contender(OPENAPI, label, order={"file": file}, processes=("caller",))
                for label, file in (
                    ("1,000 operations in JSON", "plain.json"),
                    ("1,000 operations in YAML", "plain.yaml"),
                    ("1,000 operations with recursive schemas", "recursive.json"),
                )
            ),
        ),
        (MADE,),
        rounds=2,
    ),
    Group(
        "shell",
        (
            _A_LOOP,
            *(
                Contender(SHELL, label, "caller", {"what": what}, ("caller",))
                for label, what in (
                    ("`true` by a shell", "tool"),
                    ("by bash alone", "bare"),
                    ("a decision about a line", "decide"),
                    ("the end of a tree", "cancel"),
                )
            ),
        ),
        (ALONE,),
        rounds=2,
    ),
    Group(
        "files",
        (
            _A_LOOP,
            *(
                Contender(FILES, label, "caller", {"what": what}, ("caller",))
                for label, what in (
                    ("grep of a rare text", "grep rare"),
                    ("rg of a rare text", "rg rare"),
                    ("grep of a common text", "grep common"),
                    ("rg of a common text", "rg common"),
                    ("grep of a text that is nowhere", "grep absent"),
                    ("rg of a text that is nowhere", "rg absent"),
                    ("a read of 100 KiB", "read"),
                    ("a plain read", "bare read"),
                    ("an edit of 100 KiB", "edit"),
                    ("a plain read and write", "bare edit"),
                    ("a glob over 10,000 files", "glob"),
                )
            ),
        ),
        (SEARCHES,),
        rounds=2,
    ),
    Group(
        "workspace",
        (
            _A_LOOP,
            *(
                Contender(WORKSPACE, f"hosted tasks.{name}", order={"what": f"hosted {name}"})
                for name in TASK_TOOLS
            ),
            *(
                Contender(WORKSPACE, label, "caller", {"what": what}, ("caller",))
                for label, what in (
                    *((f"tasks.{name}", name) for name in TASK_TOOLS),
                    ("a search for words of 1,000 notes", "rare"),
                    ("a search for a word of 100,000 notes", "common"),
                    ("code in an interpreter that stays", "kept"),
                    ("code in a fresh interpreter", "fresh"),
                    ("`python -c pass`", "bare"),
                    ("a hover", "hover"),
                )
            ),
            Contender(
                PYRIGHT,
                "a hover by pyright",
                "pyright",
                {"what": "hover"},
                ("pyright",),
                is_reported_only=True,
            ),
        ),
        (ROUNDS,),
        rounds=1,
    ),
    Group("toolkits", (_in_room_of(10_000), _in_room_of(10)), (ALONE,), rounds=2),
    Group(
        "holds",
        (
            _A_LOOP,
            Contender(_with_holds(1_000), "calls beside 1,000 that wait"),
            Contender(_with_holds(0), "calls beside none"),
            Contender(
                _with_holds(0),
                "an approval until the result",
                "person",
                {"order": "approve"},
                ("router", "host", "person"),
            ),
        ),
        (ALONE,),
        rounds=2,
    ),
    Group(
        "nodes",
        (
            Contender(NODES, "between", order={"place": "far"}, processes=_NODES_PROCESSES),
            Contender(NODES, "within", order={"place": "near"}, processes=_NODES_PROCESSES),
        ),
        (ALONE, IN_FLIGHT),
        rounds=2,
    ),
    Group("spans", _traced(1.0), (ALONE,), rounds=2, is_reported_only=True),
    Group(
        "rivals",
        (
            Contender(BUS),
            Contender(CROSSBAR),
            Contender(FASTMCP, processes=("host", "caller")),
        ),
        (ALONE, IN_FLIGHT),
        rounds=2,
        is_reported_only=True,
    ),
)
