"""`toolbus call --trace`: the tree of a call, from a server and hosts in separate processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine, Outcome
from toolbus.cli import call_trace
from toolbus.room.calls import CallReport
from toolbus.telemetry.viewer.receiver import SpanReceiver

KITS = '''
import asyncio
import os
import signal
from collections.abc import AsyncIterator

from toolbus import RoomException, ToolContext, ToolFailed, Toolkit, tool

@tool
async def count(text: str) -> int:
    return len(text.split())

@tool
async def lines() -> AsyncIterator[int]:
    for number in range(3):
        yield number

@tool
async def wait(path: str) -> None:
    with open(path, "w") as pipe:
        pipe.write("entered")
    await asyncio.sleep(600)

words = Toolkit("words", [count, lines, wait])

@tool
async def plan(context: ToolContext, to: str) -> int:
    """Make two calls at a time, and one that fails."""
    found = await asyncio.gather(
        *(context.room.call("words.count", text=to) for _ in range(2)),
        context.room.call("words.missing"),
        return_exceptions=True,
    )
    return found[0] + found[1]

@tool
async def boom() -> None:
    raise ToolFailed("no seats")

trips = Toolkit("trips", [plan, boom])

@tool(idempotent=True)
async def die(path: str) -> str:
    """Kill the first host that runs it."""
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"

mortal = Toolkit("mortal", [die])
'''


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A server, bob who hosts words and records its calls, and carol who hosts trips."""
    folder = tmp_path_factory.mktemp("call_trace")
    (folder / "traced_kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder, {"TOOLBUS_NAME": "ann"})
    with here.serving() as (_, url):
        there = here.at(url)
        with (
            there.hosting("traced_kits:words", "--name", "bob", "--records"),
            there.hosting("traced_kits:trips", "--name", "carol"),
        ):
            while not (folder / "home/records.db-wal").exists():  # until the first record
                assert there.run_here("call", "words.count", "text=a").code == 0
            yield there


def tree_of(outcome: Outcome) -> dict[str, Any]:
    """Read the tree, which is the first line of JSON on stderr."""
    found: dict[str, Any] = json.loads(outcome.err.splitlines()[0])["trace"]
    return found


def shape(tree: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("depth", "part", "tool", "who", "executed", "code")
    return [tuple(line[name] for name in names) for line in tree["lines"]]


def test_tree_has_the_hosts_nested_calls_and_errors_and_stdout_only_the_value(
    toolbus: CommandLine,
) -> None:
    outcome = toolbus.run_here("call", "trips.plan", "to=a b", "--trace", "--json")
    assert (outcome.code, outcome.value) == (0, 4)
    tree = tree_of(outcome)
    count = [(3, "server", "words.count", "", "yes", None)]
    count.append((4, "host", "words.count", "bob", "yes", None))
    first, *rest = shape(tree)
    assert first == (0, "caller", "trips.plan", "ann", "yes", None)
    assert rest[:2] == [
        (1, "server", "trips.plan", "", "yes", None),
        (2, "host", "trips.plan", "carol", None, None),
    ]
    assert sorted(rest[2:], key=str) == sorted(
        [*count, *count, (3, "server", "words.missing", "", "no", "not_found")], key=str
    )
    took = {(line["part"], line["who"]): line["duration_ms"] for line in tree["lines"]}
    assert took["host", "bob"] > 0
    assert took["host", "carol"] is None
    assert tree["duration_ms"] == took["caller", "ann"] >= took["server", ""]
    assert tree["trace_id"] == tree["call_id"]
    assert tree["room"] == "main"
    assert len(tree["notes"]) == 1
    assert "toolbus host --records" in tree["notes"][0]


def test_failed_call_shows_its_tree_above_its_error(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "trips.boom", "--trace")
    assert (outcome.code, outcome.out) == (1, "")
    title, caller, server, host, note, error, _ = outcome.err.splitlines()
    assert title.startswith("trace ")
    assert title.endswith(" ms")
    assert caller.split()[:3] == ["trips.boom", "caller", "ann"]
    assert caller.endswith("|  executed=yes  error=tool_failed")
    assert server.split()[1:5] == ["trips.boom", "server", "room", "main"]
    assert host.split()[1:3] == ["trips.boom", "host"]
    assert host.split()[3].startswith("carol[")
    assert host.endswith(" -")
    assert "records" in note
    assert error.startswith("toolbus: tool_failed: no seats")


def test_values_of_a_stream_stay_alone_on_stdout(toolbus: CommandLine) -> None:
    outcome = toolbus.run_here("call", "words.lines", "--trace")
    assert outcome.out == "0\n1\n2\n"
    assert [line.split()[:2] for line in outcome.err.splitlines()[1:3]] == [
        ["words.lines", "caller"],
        ["└─", "words.lines"],
    ]


def test_each_attempt_has_a_line_with_the_host_that_took_it(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    with (
        toolbus.hosting("traced_kits:mortal", "--name", "dora"),
        toolbus.hosting("traced_kits:mortal", "--name", "dora"),
    ):
        outcome = toolbus.run_here(
            "call", "mortal.die", f"path={tmp_path / 'died'}", "--trace", "--json"
        )
    assert outcome.value == "lives"
    tree = tree_of(outcome)
    assert shape(tree) == [
        (0, "caller", "mortal.die", "ann", "yes", None),
        (1, "server", "mortal.die", "", "maybe", "host_lost"),
        (2, "host", "mortal.die", "dora", None, None),
        (1, "server", "mortal.die", "", "yes", None),
        (2, "host", "mortal.die", "dora", None, None),
    ]
    assert [line["attempt"] for line in tree["lines"]] == [None, 1, None, 2, None]
    assert len({line["connection"] for line in tree["lines"]} - {""}) == 2
    assert "those of a host that was lost may be lost with it" in tree["notes"][-1]


def test_waits_for_a_host_are_one_line_with_their_number(toolbus: CommandLine) -> None:
    with toolbus.hosting("traced_kits:mortal", "--name", "dora") as host:
        host.end(signal.SIGKILL)
    outcome = toolbus.run_here(
        *("call", "mortal.die", "path=x", "--wait-for-host", "0.5", "--trace", "--json")
    )
    assert outcome.code == 6
    tree = tree_of(outcome)
    assert shape(tree)[1:] == [(1, "server", "mortal.die", "", "no", "no_host")]
    waited = tree["lines"][1]
    assert waited["refusals"] > 1
    assert 0 < waited["duration_ms"] <= tree["duration_ms"]


def test_interrupted_call_shows_how_far_it_came(toolbus: CommandLine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with toolbus.start("call", "words.wait", f"path={pipe}", "--trace", "--json") as running:
        assert pipe.read_text() == "entered"
        outcome = running.end(signal.SIGINT)
    assert outcome.code == 5
    assert [line[1:] for line in shape(tree_of(outcome))] == [
        ("caller", "words.wait", "ann", "maybe", "cancelled"),
        ("server", "words.wait", "", "maybe", "cancelled"),
        ("host", "words.wait", "bob", "yes", "cancelled"),
    ]


@pytest.mark.parametrize(
    ("grants", "parts", "note"),
    [
        (["--preset", "agent"], ["caller", "host"], "no grant to subscribe to calls (observe)"),
        (
            ["--grant", "agents.call", "--grant", "agents.use_tools", "--grant", "observe"],
            ["caller", "server", "host"],
            "no grant to continue a trace (trace)",
        ),
    ],
)
def test_what_a_token_does_not_cover_is_named(
    toolbus: CommandLine, tmp_path: Path, grants: list[str], parts: list[str], note: str
) -> None:
    token = tmp_path / "zoe.jwt"
    token.write_text(toolbus.run_here("token", "create", "--name", "zoe", *grants).out)
    token.chmod(0o600)
    outcome = toolbus.run_here(
        *("call", "words.count", "text=a", "--token", f"@{token}", "--trace", "--json"),
        TOOLBUS_NAME="",
    )
    assert outcome.code == 0, outcome.err
    tree = tree_of(outcome)
    assert [line["part"] for line in tree["lines"]] == parts
    assert tree["lines"][-1]["who"] == "bob"
    assert tree["lines"][-1]["duration_ms"] > 0
    assert note in " ".join(tree["notes"])


@pytest.mark.parametrize("flag", ["--explain", "--assess"])
def test_nothing_is_traced_where_no_call_is_made(toolbus: CommandLine, flag: str) -> None:
    outcome = toolbus.run_here("call", "words.count", "text=a", "--trace", flag)
    assert outcome.code == 2
    assert "--trace is for a call: --explain and --assess make none" in outcome.err
    wrong = toolbus.run_here("call", "words.count", "text", "--trace")
    assert wrong.code == 2
    assert "trace" not in wrong.err


async def test_tree_is_of_the_trace_whose_spans_the_variables_ask_for(toolbus: CommandLine) -> None:
    async with SpanReceiver(port=0) as receiver:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        typed = ("call", "trips.plan", "to=a", "--trace", "--json")
        with toolbus.start(*typed, **variables) as running:
            outcome = await asyncio.to_thread(running.ended)
        (span,) = await receiver.wait_for(bool, timeout_s=60)
    tree = tree_of(outcome)
    assert tree["trace_id"] == span.trace_id != tree["call_id"]
    assert span.kind == "CLIENT"
    assert len(shape(tree)) == 8


def notes_of(outcome: Outcome) -> str:
    return " ".join(tree_of(outcome)["notes"])


def test_nested_calls_beyond_the_bound_are_counted(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_trace, "_MAX_CALLS", 1)
    outcome = toolbus.run_here("call", "trips.plan", "to=a", "--trace", "--json")
    assert "2 more nested calls are not shown" in notes_of(outcome)
    assert [line["tool"] for line in tree_of(outcome)["lines"]].count("trips.plan") == 3


@pytest.mark.parametrize(
    ("lost", "notes"),
    [
        ({"has_gap": True}, ["gaps: calls may be missing"]),
        ({"calls": ()}, ["gaps: calls may be missing", "has not reported the end of this call"]),
    ],
)
def test_what_the_reports_of_the_server_lack_is_named(
    toolbus: CommandLine, lost: dict[str, Any], notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CallReport.from_wire
    monkeypatch.setattr(CallReport, "from_wire", lambda data: replace(whole(data), **lost))
    monkeypatch.setattr(call_trace, "_REPORT_S", 60.0 if "has_gap" in lost else 0.5)
    outcome = toolbus.run_here("call", "words.count", "text=a", "--trace", "--json")
    assert outcome.value == 1
    for note in notes:
        assert note in notes_of(outcome)


def test_records_that_cannot_be_read_are_named(toolbus: CommandLine, tmp_path: Path) -> None:
    token = toolbus.run_here("token", "create", "--name", "zoe", "--preset", "agent").out.strip()
    (tmp_path / "records.db").write_bytes(b"no database" * 99)
    outcome = toolbus.run_here(
        *("call", "words.count", "text=a", "--token", token, "--trace", "--json"),
        TOOLBUS_HOME=str(tmp_path),
        TOOLBUS_NAME="",
    )
    assert outcome.value == 1
    assert "records.db cannot be used: file is not a database" in notes_of(outcome)
    assert [line["part"] for line in tree_of(outcome)["lines"]] == ["caller"]
