"""The scene of the demo with a shell: an agent finds the test that fails in a small project.

The shell is in the process of the agent. What only reads runs at once; about the rest a person is
asked, here a function that approves it.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from toolbus import Agent, Answer, Permissions, Question, open_model
from toolbus_toolkits.demo.processes import DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneOutput, table
from toolbus_toolkits.demo.scenes import expect
from toolbus_toolkits.shell import Shell

__all__ = ["shell_scene"]

_QUESTION = "Which test fails, and why?"
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
_LOOK = ("ls", "grep -n def *.py", "sed -n 1,9p totals.py")
_TEST = f"{Path(sys.executable).name} -m unittest"
_REPORT = "test_mean_of_none_is_zero fails: mean([]) divides by the length of an empty list."


def shell_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene in which an agent looks for the failing test of a project."""
    return Scene(
        "An agent with a shell",
        f'let an agent with a scripted model look around in a project: "{_QUESTION}"',
        "what only reads runs at once; a person approves the run of the tests; one test fails",
        partial(_find_failing_test, processes, output),
    )


async def _find_failing_test(processes: DemoProcesses, output: SceneOutput) -> str:
    project = processes.folder / "project"
    project.mkdir()
    for name, text in _PROJECT.items():
        (project / name).write_text(text.lstrip(), encoding="utf-8")
    looks = [{"name": "shell.run", "arguments": {"command": command}} for command in _LOOK]
    test = {"name": "shell.run", "arguments": {"command": _TEST}}
    replies: list[dict[str, Any]] = [{"uses": looks}, {"uses": [test]}, {"text": _REPORT}]
    script = processes.folder / "shell_replies.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies), encoding="utf-8")
    approved: list[str] = []
    happened: list[tuple[str, str]] = []
    results: list[dict[str, Any]] = []

    async def approve(question: Question) -> Answer:
        approved.append(question.arguments["command"])
        happened.append(("asked and approved", question.permit.reason))
        return Answer.allow()

    # The tests run with the Python of this process, wherever it is.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    async with Agent(
        None,
        open_model(f"scripted:{script}"),
        always=[Shell(project, env={"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"})],
        permissions=Permissions(),
        ask=approve,
    ) as agent:
        async for event in agent.answer(_QUESTION):
            match event:
                case {"type": "tool_call", "arguments": {"command": command}}:
                    happened.append(("tool_call", command))
                case {"type": "tool_result", "state": state, "text": text}:
                    results.append(json.loads(text))
                    happened.append((f"tool_result: {state}", text))
                case {"type": "end", "reason": reason, "text": report}:
                    happened.append(("end", report))
    output.print_tables(table("the answer", ("event", "content"), happened, max_chars=72))
    expect(approved == [_TEST], f"a person was asked about {approved}")
    expect([result["exit"] for result in results] == [0, 0, 0, 1], f"the results are {results}")
    errors = results[-1]["stderr"]
    expect("ERROR: test_mean_of_none_is_zero" in errors, f"the tests wrote {errors}")
    return f"{reason}: {len(_LOOK)} commands without a question, {len(approved)} with one: {report}"
