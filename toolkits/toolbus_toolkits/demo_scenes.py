"""The scenes of the demo in which everything goes as asked: people, questions, refusals, a trace.

Those in which something is stopped or killed are in `demo_faults`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from toolbus import EventStream, Executed, RoomClient, RoomEvent, RoomException
from toolbus.semantics import SERVICE_INSTANCE_ID
from toolbus.trace_tree import SpanRecord, TraceTree, build_tree, render_lines
from toolbus.wire import ToolManifest
from toolbus_toolkits.demo_agent import AGENT, AGENT_SCOPE, ANSWER, QUESTION, working_agent
from toolbus_toolkits.demo_cast import ROOM, Cast
from toolbus_toolkits.demo_stage import Scene, SceneFailed, Stage, table
from toolbus_toolkits.inventory import build_inventory

__all__ = [
    "calm_scenes",
    "describe_error",
    "expect",
    "inventory_scene",
    "refused",
    "trace_scene",
]

_INVENTORY_S = 3.0
_HOP_KINDS = ["CLIENT", "SERVER", "SERVER", "INTERNAL"]

_LARGEST = """
    SELECT name, version, source, round(size_bytes / 1e6, 1) AS mb FROM packages
    WHERE size_bytes IS NOT NULL ORDER BY size_bytes DESC LIMIT 5
"""
_LICENCES = """
    SELECT coalesce(licence, 'says none') AS licence, count(*) AS packages FROM packages
    WHERE source = 'python' GROUP BY licence ORDER BY packages DESC, licence LIMIT 5
"""
_MOST_NEEDED = """
    SELECT requires AS package, count(DISTINCT package) AS needed_by FROM dependencies
    WHERE extra IS NULL AND source = ? GROUP BY requires ORDER BY needed_by DESC, requires LIMIT 5
"""
_NEEDED_BY_TOOLBUS = """
    WITH RECURSIVE needed(name, steps) AS (
        SELECT 'toolbus', 0
        UNION
        SELECT d.requires, steps + 1 FROM needed JOIN dependencies AS d ON d.package = needed.name
        WHERE d.extra IS NULL AND d.source = 'python' AND steps < 9
    )
    SELECT steps, count(*) AS packages, round(sum(size_bytes) / 1e6, 1) AS mb
    FROM (SELECT name, min(steps) AS steps FROM needed GROUP BY name)
    JOIN packages USING (name) WHERE source = 'python' GROUP BY steps ORDER BY steps
"""
_QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("largest packages", _LARGEST, ()),
    ("Python licences", _LICENCES, ()),
    ("most needed in Python", _MOST_NEEDED, ("python",)),
    ("what toolbus needs", _NEEDED_BY_TOOLBUS, ()),
)
_ASKED: tuple[list[dict[str, Any]], ...] = (
    [{"name": "largest", "source": "python", "count": 2}],
    [{"name": "greeting", "word": "good day"}],
    [{"name": "diary"}],
)
_ANSWERED = (
    ("largest.packages", "of python, for visitor: "),
    ("greeting.say", "good day, visitor"),
)


def expect(truth: bool, otherwise: str) -> None:
    """Hold a scene to its word. Raises SceneFailed."""
    if not truth:
        raise SceneFailed(otherwise)


async def refused(call: Awaitable[Any], code: str, executed: Executed) -> RoomException:
    """Make a call that must fail in this way, and return its error.

    Raises:
        SceneFailed: It succeeded, or failed in another way.
    """
    try:
        value = await call
    except RoomException as error:
        expect((error.code, error.executed) == (code, executed), describe_error(error))
        return error
    raise SceneFailed(f"the call succeeded: {value!r:.200}")


def describe_error(error: RoomException) -> str:
    """Say what an error says: code, whether the tool ran, whether to try again, and its words."""
    retryable = "yes" if error.retryable else "no"
    words = f"{error.code}, executed: {error.executed}, retryable: {retryable}"
    return f"{words}: {error.message}"


def inventory_scene(cast: Cast) -> Scene:
    """Write the scene that makes the file of which everybody asks."""
    return Scene(
        "Real data",
        "write the packages installed on this machine into a SQLite file",
        "a file with this machine's packages",
        partial(_write_inventory, cast),
    )


def calm_scenes(cast: Cast, stage: Stage) -> list[Scene]:
    """Write the scenes that set the stage, ask, and are refused."""
    return [
        inventory_scene(cast),
        Scene(
            "A server and three hosts",
            "start a room server, sql twice and clock, each a process of its own with a token",
            "the room's events tell of 2 hosts of sql and 1 of clock",
            partial(_start_everybody, cast),
        ),
        Scene(
            "What is there",
            "join as a visitor from this process, list the toolkits and inspect sql",
            "sql with its tools and rules; of clock only the tool that the visitor's grant covers",
            partial(_look_around, cast, stage),
        ),
        Scene(
            "Questions",
            f"ask {len(_QUESTIONS)} questions of the packages at once, through sql.query",
            "rows for each of them",
            partial(_ask, cast, stage),
        ),
        *_refusals(cast),
        Scene(
            "An agent, with other tools for each message",
            "send an agent without a model three messages, each with another array of tools",
            "each turn sees sql without sql.describe, and what its message asked for; or a refusal",
            partial(_ask_agent, cast, stage),
        ),
    ]


def _refusals(cast: Cast) -> list[Scene]:
    return [
        Scene(
            "A call that the grant lacks",
            "call clock.convert with a token that allows sql and clock.now",
            "permission_denied, executed: no",
            partial(_call_without_grant, cast),
        ),
        Scene(
            "A bad argument",
            'call sql.query with max_rows="ten"',
            "invalid_arguments with the path /max_rows, executed: no",
            partial(_send_bad_argument, cast),
        ),
        Scene(
            "A statement that writes",
            "call sql.query with DROP TABLE packages",
            "tool_failed in SQLite's own words, executed: yes; and the table is still there",
            partial(_try_to_write, cast),
        ),
    ]


def trace_scene(cast: Cast, stage: Stage) -> Scene:
    """Write the scene that shows one call as a tree."""
    return Scene(
        "One call, one tree",
        "call sql.query once more, and wait for its spans over OTLP",
        "CLIENT > SERVER > SERVER > INTERNAL, from three processes: caller, server, host",
        partial(_show_trace, cast, stage),
    )


async def _write_inventory(cast: Cast) -> str:
    count = await asyncio.to_thread(build_inventory, cast.database, time_s=_INVENTORY_S)
    expect(count > 0, "no package was found")
    return f"{count} packages, {cast.database.stat().st_size / 1e3:,.0f} kB in {cast.database}"


async def _start_everybody(cast: Cast) -> str:
    await cast.open_room()
    for label, toolkit in (("sql-1", "sql"), ("sql-2", "sql"), ("clock-1", "clock")):
        await cast.host(label, toolkit)
    await cast.until_hosted(sql=2, clock=1)
    pids = ", ".join(f"{label} is pid {actor.pid}" for label, actor in cast.actors.items())
    return f"{pids}; the server listens on {cast.url}"


async def _look_around(cast: Cast, stage: Stage) -> str:
    listed = {info.name: info async for info in cast.room.toolkits()}
    rows = [
        (each.name, each.owner, each.hosts, ", ".join(each.tools), each.description)
        for each in listed.values()
    ]
    columns = ("toolkit", "owner", "hosts", "tools you see", "description")
    stage.tables(table("toolkits", columns, rows, max_chars=60))
    sql = await cast.room.toolkit("sql")
    tools = [_row_of(tool) for tool in sql.manifest.tools]
    stage.tables(table("tools of sql", ("tool", "arguments", "says"), tools, max_chars=60))
    stage.points("rules of sql", sql.manifest.rules)
    expect(sorted(listed) == ["clock", "sql"], f"the list has {sorted(listed)}")
    expect(listed["clock"].tools == ("now",), f"of clock it shows {listed['clock'].tools}")
    expect(listed["sql"].hosts == 2, f"sql has {listed['sql'].hosts} hosts")
    expect(bool(sql.manifest.rules), "sql has no rules")
    return f"sql has {len(tools)} tools on 2 hosts, of clock the visitor sees only clock.now"


def _row_of(tool: ToolManifest) -> tuple[str, str, str]:
    required = tool.input_schema.get("required", [])
    names = tool.input_schema.get("properties", {})
    arguments = ", ".join(name if name in required else f"[{name}]" for name in names)
    return tool.name, arguments, tool.description.partition("\n")[0]


async def _ask(cast: Cast, stage: Stage) -> str:
    sql = await cast.room.toolkit("sql")
    began = time.monotonic()
    answers = await asyncio.gather(
        *(sql.query(sql=text, parameters=list(values)) for _, text, values in _QUESTIONS)
    )
    took_ms = (time.monotonic() - began) * 1000
    shown = [
        table(title, answer["columns"], answer["rows"], max_chars=22)
        for (title, _, _), answer in zip(_QUESTIONS, answers, strict=True)
    ]
    stage.tables(*shown[:2])
    stage.tables(*shown[2:])
    for (title, _, _), answer in zip(_QUESTIONS, answers, strict=True):
        expect(bool(answer["rows"]), f"no rows came for: {title}")
    return f"{len(answers)} answers within {took_ms:.0f} ms"


async def _call_without_grant(cast: Cast) -> str:
    arguments = {"time": "2026-03-01T12:00:00Z", "to": "Europe/Oslo"}
    call = cast.room.invoke("clock", "convert", arguments)
    return describe_error(await refused(call, "permission_denied", "no"))


async def _send_bad_argument(cast: Cast) -> str:
    call = cast.room.invoke("sql", "query", {"sql": "SELECT 1", "max_rows": "ten"})
    error = await refused(call, "invalid_arguments", "no")
    path = error.details.get("path")
    expect(path == "/max_rows", f"the path is {path!r}")
    return f"{describe_error(error)} (details: path {path})"


async def _try_to_write(cast: Cast) -> str:
    call = cast.room.invoke("sql", "query", {"sql": "DROP TABLE packages"})
    error = await refused(call, "tool_failed", "yes")
    answer = await cast.room.call("sql.query", sql="SELECT count(*) FROM packages")
    return f"{describe_error(error)}; the table has its {answer['rows'][0][0]} rows"


async def _ask_agent(cast: Cast, stage: Stage) -> str:
    agent = RoomClient(cast.url, room=ROOM, token=cast.token(AGENT, AGENT_SCOPE))
    async with agent, working_agent(agent), cast.room.events(["messages"]) as events:
        offered = [each.name for each in await cast.room.list_builders(AGENT)]
        answers = [await _answer_to(cast, events, tools) for tools in _ASKED]
    rows = [_turn_row(tools, answer) for tools, answer in zip(_ASKED, answers, strict=True)]
    columns = ("its message asked for", "the turn saw", "and said")
    stage.tables(table("turns", columns, rows, max_chars=60))
    expect(offered == ["largest", "greeting"], f"the visitor is offered {offered}")
    for answer, (own, said) in zip(answers, _ANSWERED, strict=False):
        seen = ["sql.list_tables", "sql.query", own]
        expect(sorted(answer.get("tools", ())) == sorted(seen), f"a turn answers {answer}")
        expect(said in answer["said"][0], f"its tool said {answer['said']}")
    refusal = answers[-1]
    expect(refusal.get("refused") == "permission_denied", f"the third turn answers {refusal}")
    own_tools = " and ".join(own for own, _ in _ANSWERED)
    return f"two turns saw {own_tools}, and the third: {refusal['message']}"


def _turn_row(tools: list[dict[str, Any]], answer: dict[str, Any]) -> tuple[str, str, str]:
    asked = " ".join(f"{name}={value}" for each in tools for name, value in each.items())
    seen = " ".join(answer.get("tools", ["-"]))
    return asked, seen, " ".join(answer.get("said", [str(answer.get("refused"))]))


async def _answer_to(
    cast: Cast, events: EventStream[RoomEvent], tools: list[dict[str, Any]]
) -> dict[str, Any]:
    await cast.room.send(AGENT, QUESTION, {"tools": tools})
    async for event in events:
        message = event.message
        if message is not None and (message.name, message.sender.name) == (ANSWER, AGENT):
            return dict(message.body)
    raise SceneFailed("the room ended before the agent answered")


async def _show_trace(cast: Cast, stage: Stage) -> str:
    began_ns = time.time_ns()

    def is_this_call(spans: Sequence[SpanRecord]) -> bool:
        tree = build_tree(spans)
        return tree.whole and tree.start_ns >= began_ns

    await cast.room.call("sql.query", sql=_LARGEST)
    tree = build_tree(await cast.trace(is_this_call))
    stage.verbatim(line.removeprefix("  ") for line in render_lines(tree))
    _check_tree(tree)
    instances = [str(node.span.resource[SERVICE_INSTANCE_ID]) for node in tree.nodes]
    processes = list(dict.fromkeys(instances))
    expect(len(processes) == 3, f"the spans come from {processes}")
    pids = {label: actor.pid for label, actor in cast.actors.items()}
    named = ", ".join(f"{each} (pid {pids.get(each, os.getpid())})" for each in processes)
    return f"{len(tree.nodes)} spans from {len(processes)} instances: {named}"


def _check_tree(tree: TraceTree) -> None:
    kinds = [node.span.kind for node in tree.nodes]
    expect(kinds == _HOP_KINDS, f"the spans are {kinds}")
    depths = [node.depth for node in tree.nodes]
    expect(depths == [0, 1, 2, 3], f"they lie {depths} deep")
    names = [node.span.name for node in tree.nodes]
    expected = ["sql.query"] * 3 + ["execute_tool query"]
    expect(names == expected, f"their names are {names}")
