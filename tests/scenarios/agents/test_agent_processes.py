"""A user, an agent and a host of tools in processes of their own: the answer, and its one trace."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support.processes.command_line import SUM_TOOLS, CommandLine

HELPER = """
from toolbus import Agent, open_model

helper = Agent(
    None, open_model("scripted:model.jsonl"), name="helper", required=["sums"]
).toolkit
"""
REPLIES = [{"uses": [{"name": "sums.add", "arguments": {"a": 1, "b": 2}}]}, {"text": "It is 3."}]


def called(tool: str, depth: int) -> list[tuple[int, str, str]]:
    """Return depth, kind and name of the spans of a call: caller, server, host and tool."""
    hops = [(depth + n, kind, tool) for n, kind in enumerate(["CLIENT", "SERVER", "SERVER"])]
    return [*hops, (depth + 3, "INTERNAL", f"execute_tool {tool.partition('.')[2]}")]


def test_question_through_three_processes_is_streamed_and_one_tree(tmp_path: Path) -> None:
    (tmp_path / "sum_tools.py").write_text(SUM_TOOLS)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "model.jsonl").write_text("\n".join(map(json.dumps, REPLIES)))
    here = CommandLine(tmp_path, {"PYTHONPATH": os.pathsep.join(sys.path)})
    with here.start("trace", "--port", "0", "--count", "1", "--json") as viewer:
        assert viewer.process.stderr is not None
        endpoint = viewer.process.stderr.readline().partition("=")[2].split()[0]
        sending = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        traced = CommandLine(tmp_path, {**here.variables, **sending})
        with traced.serving() as (_, url):
            there = traced.at(url)
            with (
                there.hosting("sum_tools:sums", "--name", "station"),
                there.hosting("helper:helper", "--name", "helper"),
            ):
                asked = ("helper.ask", '{"text": "1 + 2?"}', "--participant", "helper")
                outcome = there.run("call", *asked, "--name", "ann", "--json")
                assert outcome.code == 0, outcome.err
                shown = viewer.ended()
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert [event["type"] for event in events] == ["tool_call", "tool_result", "text", "end"]
    assert (events[1]["text"], events[-1]["text"]) == ("3", "It is 3.")
    printed: dict[str, Any] = json.loads(shown.out)
    assert (printed["whole"], printed["trace_id"]) == (True, events[-1]["trace"])
    assert [(span["depth"], span["kind"], span["name"]) for span in printed["spans"]] == [
        *called("helper.ask", 0),
        (4, "INTERNAL", "invoke_agent helper"),
        (5, "CLIENT", "chat model.jsonl"),
        (5, "INTERNAL", "execute_tool add"),
        *called("sums.add", 6),
        (5, "CLIENT", "chat model.jsonl"),
    ]
