"""The scene of the demo with a shell and files: an agent mends a small project, whose test fails.

Both toolkits are in the process of the agent. What only reads runs at once; about the rest a person
is asked, here a function that approves it, and the run of the tests from then on.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from toolbus import Agent, ApprovalDecision, ApprovalRequest, Permissions, open_model
from toolbus_toolkits.demo.processes import DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneOutput, table
from toolbus_toolkits.demo.scenes import expect
from toolbus_toolkits.files import Files
from toolbus_toolkits.shell import Shell

__all__ = ["shell_scene"]

_QUESTION = "A test fails. Mend it."
_PROJECT = {
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
_REPORT = "mean([]) divided by the length of an empty list; it is 0.0 now, and all tests pass."
_USES: list[list[tuple[str, dict[str, Any]]]] = [
    [("shell.run", {"command": "ls"}), ("shell.run", _TEST)],
    [("files.read", {"path": "totals.py"})],
    [("files.edit", _EDIT)],
    [("shell.run", _TEST)],
]
"""What the scripted model calls, reply by reply."""


def shell_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene in which an agent finds and mends the failing test of a project."""
    return Scene(
        "An agent with a shell and files",
        f'let an agent with a scripted model work in a project: "{_QUESTION}"',
        "what only reads runs at once; a person approves the tests and a change; all tests pass",
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
    approved: list[str] = []
    rows: list[tuple[str, str]] = []
    results: list[dict[str, Any]] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        name = request.use.name
        approved.append(name)
        rows.append(("asked and approved", request.assessment.message))
        for line in request.assessment.preview.splitlines()[2:]:
            rows.append(("", line))
        # These tests may run again without a question; each change is looked at.
        return ApprovalDecision.allow("state" if name == "shell.run" else "once")

    # The tests run with the Python of this process, wherever it is.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    shell = Shell(project, env={"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    async with Agent(
        None,
        open_model(f"scripted:{script}"),
        always=[shell, Files(project)],
        permissions=Permissions(),
        approve=approve,
    ) as agent:
        async for event in agent.run_stream_events(_QUESTION):
            match event:
                case {"type": "tool_call", "tool": name, "arguments": arguments}:
                    rows.append((f"tool_call: {name}", json.dumps(arguments)))
                case {"type": "tool_result", "state": state, "text": text}:
                    results.append(json.loads(text))
                    rows.append((f"tool_result: {state}", text))
                case {"type": "end", "reason": reason, "text": report}:
                    rows.append(("end", report))
    output.print_tables(table("the answer", ("event", "content"), rows, max_chars=72))
    expect(approved == ["shell.run", "files.edit"], f"a person was asked about {approved}")
    exits = [result["exit"] for result in results if "exit" in result]
    expect(exits == [0, 1, 0], f"the commands ended with {exits}")
    errors = results[1]["stderr"]
    expect("ERROR: test_mean_of_none_is_zero" in errors, f"the tests wrote {errors}")
    return f"{reason}: {len(results) - 2} calls without a question, 2 after one: {report}"
