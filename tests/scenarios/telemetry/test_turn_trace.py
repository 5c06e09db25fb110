"""One turn over toolkits of each kind, in processes of their own: its trace is one tree."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support.processes.command_line import CommandLine

AGENT = "support.telemetry.turn_agent"
LOCAL, REMOTE = ("first", "second", "third"), ("one", "two", "three")


def expected() -> list[tuple[int, str, str]]:
    """Return depth, kind and name of each span."""
    lines = [(0, "INTERNAL", "invoke_agent helper")]

    def call(tool: str, depth: int) -> list[tuple[int, str, str]]:
        hops = [(depth, "CLIENT", tool), (depth + 1, "SERVER", tool), (depth + 2, "SERVER", tool)]
        return [*hops, (depth + 3, "INTERNAL", f"execute_tool {tool.partition('.')[2]}")]

    for _ in LOCAL:
        lines.append((1, "INTERNAL", "execute_tool say"))
    for tool in (*(f"{name}.say" for name in REMOTE), "tides.rise", "files.size"):
        lines += [(1, "INTERNAL", f"execute_tool {tool.partition('.')[2]}"), *call(tool, 2)]
    lines += [(1, "INTERNAL", "execute_tool ask"), *call("one.say", 2)]
    return lines


def test_turn_over_toolkits_of_each_kind_is_one_tree(tmp_path: Path) -> None:
    here = CommandLine(tmp_path, {"PYTHONPATH": os.pathsep.join(sys.path)})
    with here.start("trace", "--port", "0", "--count", "1", "--json") as viewer:
        assert viewer.process.stderr is not None
        endpoint = viewer.process.stderr.readline().partition("=")[2].split()[0]
        sending = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        traced = CommandLine(tmp_path, {**here.variables, **sending})
        hosted = [f"{AGENT}:{name}" for name in (*REMOTE, "tides", "files")]
        with traced.serving() as (_, url), traced.at(url).hosting(*hosted, "--name", "station"):
            with traced.at(url).running("-m", AGENT) as agent:
                outcome = agent.ended()
                assert outcome.code == 0, outcome.err
            shown = viewer.ended()
    assert json.loads(outcome.out) == [
        *([f"{name}.say", "ok", f"{name} for helper"] for name in (*LOCAL, *REMOTE)),
        ["tides.rise", "ok", [0, 1, 2]],
        ["files.size", "ok", 100_000],
        ["built.ask", "ok", "one for helper"],
    ]
    printed: dict[str, Any] = json.loads(shown.out)
    assert printed["whole"] is True
    spans = [(span["depth"], span["kind"], span["name"]) for span in printed["spans"]]
    assert sorted(spans) == sorted(expected())
    assert [span[2] for span in spans if span[0] == 1] == [
        *["execute_tool say"] * 6,
        "execute_tool rise",
        "execute_tool size",
        "execute_tool ask",
    ]
    turn, *below = printed["spans"]
    assert turn["attributes"] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "toolbus.room": "main",
    }
    calls = [span["attributes"] for span in below if span["depth"] == 1]
    assert calls[0] == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "say",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "use-0",
        "toolbus.toolkit": "first",
        "toolbus.executed": "yes",
    }
    assert len({call["gen_ai.tool.call.id"] for call in calls}) == 9
