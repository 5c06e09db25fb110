"""The scenes of the demo with an agent, whose model is scripted, so that no provider is needed.

In one the agent is a participant of its own in this process: from one message to the tools that
answer it. In the other it mends a small project, whose test fails, with files and a confined shell
in its process. What stays in the project runs at once. A person, here a function, is asked about
the rest: a file with a password, and where the sandbox does not keep that from the tests, those.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from toolbus import (
    Agent,
    AgentsGrant,
    ApiScope,
    ApprovalDecision,
    ApprovalRequest,
    Permissions,
    RoomClient,
    Toolkit,
    builder_of,
    open_model,
)
from toolbus.telemetry.viewer.trace_tree import SpanRecord, build_tree, render_lines
from toolbus_toolkits.clock import clock
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneOutput, table
from toolbus_toolkits.demo.scenes import expect, expect_refusal
from toolbus_toolkits.files import Files
from toolbus_toolkits.sandbox import SandboxConfig, SandboxUnavailable, would_protect
from toolbus_toolkits.shell import Shell

__all__ = ["agent_scene", "shell_scene"]

_AGENT = "agent"
_SCOPE = ApiScope(
    agents=AgentsGrant(
        register_private_toolkit=True, use_tools=True, call=True, deny=("sql.describe",)
    ),
    trace=True,
)
"""The agent needs no right to call for others: it calls within the calls of its askers."""
_QUESTION = "How many packages are there, and what time is it in Oslo?"
_TOOLS = [{"name": "clock", "timezone": "Europe/Oslo"}]
_COUNT = {"sql": "SELECT count(*) AS packages FROM packages"}
_REPLIES: tuple[dict[str, Any], ...] = (
    {"uses": [{"name": "sql.query", "arguments": _COUNT}, {"name": "clock.now"}]},
    {"text": "I have counted them and looked at the clock."},
)
_EXPECTED_TOOLS = ["clock.convert", "clock.now", "sql.list_tables", "sql.query"]


def agent_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene that asks an agent, answers its question, and prints the trace of both."""
    return Scene(
        "An agent with other tools for each message",
        "ask an agent with a scripted model, and give it a clock for this message; approve its "
        "call of sql, which is another's; then ask for its diary",
        "tools of sql but sql.describe, and the clock; one trace from the message to both calls; "
        "permission_denied for the diary",
        partial(_ask_agent, processes, output),
    )


async def _ask_agent(processes: DemoProcesses, output: SceneOutput) -> str:
    script = processes.folder / "replies.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in _REPLIES), encoding="utf-8")
    token = processes.token(_AGENT, _SCOPE)
    rows: list[tuple[str, str, str]] = []
    ended: dict[str, Any] = {}

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        rows.append(("approved", request.tool.name, request.decision.reason))
        return ApprovalDecision.allow()

    async with (
        RoomClient(processes.url, room=ROOM, token=token) as room,
        Agent(
            room,
            open_model(f"scripted:{script}"),
            name=_AGENT,
            required=["sql"],
            builders=[builder_of(clock), Toolkit("diary", description="The agent's own notes.")],
            permissions=Permissions(),
            approve=approve,
            available=False,
        ),
    ):
        agent = await processes.room.toolkit(_AGENT, participant=_AGENT)
        about = await agent.about(tools=_TOOLS)
        async with agent.ask(text=_QUESTION, tools=_TOOLS) as chunks:
            async for chunk in chunks:
                ended = chunk.value
                if ended["type"] != "text":  # the end has all of it
                    name = ": ".join(ended[key] for key in ("type", "state") if key in ended)
                    content = str(ended.get("arguments", ended.get("text", "")))
                    rows.append((name, ended.get("tool", ""), content))
        diary = agent.about(tools=[{"name": "diary"}])
        refusal = await expect_refusal(diary, "permission_denied", "no")
    output.print_tables(table("the answer", ("event", "tool", "content"), rows, max_chars=60))
    names = sorted(tool["name"] for tool in about["tools"])
    expect(names == _EXPECTED_TOOLS, f"the agent has {names}")
    events = [(event, tool) for event, tool, _ in rows]
    expect(("approved", "sql.query") in events, f"no person was asked: {events}")
    results = sorted(tool for event, tool in events if event == "tool_result: ok")
    expect(results == ["clock.now", "sql.query"], f"of the calls {results} ended well")
    tree = build_tree(await processes.trace(partial(_is_whole, ended["trace"])))
    # Without the bars, and who has approved: in so deep a tree they would be beyond the columns.
    output.verbatim(re.sub(r"^  |  \|.*\||  by=.*", "", line) for line in render_lines(tree))
    return (
        f"{ended['reason']} after {ended['steps']} replies; for the diary {refusal.code}, "
        f"executed: {refusal.executed}: {refusal.message}"
    )


def _is_whole(trace: str, spans: Sequence[SpanRecord]) -> bool:
    names = {span.name for span in spans}
    has_all = {"agent.ask", "execute_tool query", "execute_tool now"} <= names
    return has_all and spans[0].trace_id == trace and build_tree(spans).whole


_TASK = "A test fails. Mend it."
_PROJECT = {
    ".env": "PASSWORD=secret\n",
    "totals.py": """
def total(prices: list[float], discount: float = 0.0) -> float:
    return sum(prices) - discount


def mean(prices: list[float]) -> float:
    return total(prices) / len(prices)
""",
    "test_totals.py": """
import unittest

from totals import mean, total


class Totals(unittest.TestCase):
    def test_total_with_a_discount(self) -> None:
        self.assertEqual(total([2.0, 3.0], 1.0), 4.0)

    def test_mean_of_several(self) -> None:
        self.assertEqual(mean([2.0, 4.0]), 3.0)

    def test_mean_of_none_is_zero(self) -> None:
        self.assertEqual(mean([]), 0.0)
""",
}
_TEST = {"command": f"{Path(sys.executable).name} -m unittest"}
_EDIT = {
    "path": "totals.py",
    "old_text": "return total(prices) / len(prices)",
    "new_text": "return total(prices) / len(prices) if prices else 0.0",
}
_SECRET = {"command": "cat .env"}
_REPORT = "mean([]) divided by the length of an empty list; it is 0.0 now, and all tests pass."
_USES: list[list[tuple[str, dict[str, Any]]]] = [
    [("shell.run", {"command": "ls"}), ("shell.run", _TEST)],
    [("files.read", {"path": "totals.py"})],
    [("files.edit", _EDIT)],
    [("shell.run", _TEST), ("shell.run", _SECRET)],
]
"""What the scripted model calls, reply by reply."""


def shell_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene in which an agent finds and mends the failing test of a project."""
    return Scene(
        "An agent with a confined shell and files",
        f'let an agent with a scripted model and mode accept_edits work in a project: "{_TASK}"',
        "what stays in the project runs at once; a person denies a password; all tests pass",
        partial(_mend_project, processes, output),
    )


async def _mend_project(processes: DemoProcesses, output: SceneOutput) -> str:
    project = processes.folder / "project"
    project.mkdir()
    for name, text in _PROJECT.items():
        (project / name).write_text(text.lstrip(), encoding="utf-8")
    replies: list[dict[str, Any]] = [
        {"uses": [{"name": name, "arguments": arguments} for name, arguments in uses]}
        for uses in _USES
    ]
    replies.append({"text": _REPORT})
    script = processes.folder / "shell_replies.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies), encoding="utf-8")
    asked: list[str] = []
    rows: list[tuple[str, str]] = []
    results: list[str] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request.arguments["command"])
        rows.append(("asked", request.assessment.message))
        if request.arguments == _SECRET:
            return ApprovalDecision.deny("the tests need no password")
        return ApprovalDecision.allow("state")  # they may run again without a question

    # The tests run with the Python of this process, wherever it is.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    sandbox, is_protected = _sandbox(project)
    variables = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    shell = Shell(project, env=variables, sandbox=sandbox)
    async with Agent(
        None,
        open_model(f"scripted:{script}"),
        always=[shell, Files(project)],
        permissions=Permissions("accept_edits"),
        approve=approve,
    ) as agent:
        async for event in agent.run_stream_events(_TASK):
            match event:
                case {"type": "tool_call", "tool": name, "arguments": arguments}:
                    rows.append((f"tool_call: {name}", json.dumps(arguments)))
                case {"type": "tool_result", "state": state, "text": text}:
                    results.append(text)
                    rows.append((f"tool_result: {state}", text))
                case {"type": "end", "reason": reason, "text": report}:
                    rows.append(("end", report))
    output.print_tables(table("the answer", ("event", "content"), rows, max_chars=72))
    questions = [_SECRET["command"]] if is_protected else [_TEST["command"], _SECRET["command"]]
    expect(asked == questions, f"a person was asked about {asked}")
    tests = [json.loads(results[index]) for index in (1, 4)]
    exits = [result["exit"] for result in tests]
    expect(exits == [1, 0], f"the tests ended with {exits}")
    errors = tests[0]["stderr"]
    expect("ERROR: test_mean_of_none_is_zero" in errors, f"the tests wrote {errors}")
    confined = f"confined by {tests[0]['sandbox']}" if sandbox else "not confined"
    return f"{reason}: {confined}, {len(asked)} of {len(results)} calls were asked about: {report}"


def _sandbox(project: Path) -> tuple[SandboxConfig | None, bool]:
    """Return what confines here, and whether it keeps secrets in the project from programs."""
    config = SandboxConfig()
    try:
        return config, would_protect(config.with_roots([project]))
    except SandboxUnavailable:
        return None, False
