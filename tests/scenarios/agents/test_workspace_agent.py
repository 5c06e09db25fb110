"""An agent that works on a project, is killed in the middle, and goes on with the same plan.

It plans by `tasks`, finds a name by `lsp`, edits by `files`, tests by `python`, and remembers the
outcome by `memory` in its next conversation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S
from support.processes.launch import clean_environment

MODULE = "def doubled(number: int) -> int:\n    return 3 * number\n"
TEST = "import module\n\nassert module.doubled(2) == 4, module.doubled(2)\n'passed'"
WORK: list[list[tuple[str, dict[str, Any]]]] = [
    [("tasks.create", {"subject": "Mend doubled"})],
    [("tasks.create", {"subject": "Test it", "blocked_by": ["1"]})],
    [("tasks.update", {"task_id": "1", "status": "in_progress"})],
    [("kit.wait", {})],  # here it is killed
    [("tasks.list", {})],
    [("lsp.symbols", {"query": "doubled"})],
    [("files.read", {"path": "module.py"})],
    [("files.edit", {"path": "module.py", "old_text": "3 *", "new_text": "2 *"})],
    [("lsp.diagnostics", {"path": "module.py"}), ("python.run", {"code": TEST})],
    [("tasks.update", {"task_id": each, "status": "completed"}) for each in ("1", "2")],
    [("memory.append", {"text": "The function doubled was mended, and its test passed."})],
]
LATER: list[list[tuple[str, dict[str, Any]]]] = [
    [("memory.search", {"query": "doubled test"}), ("tasks.list", {})]
]
AGENT = """
import asyncio, json, sys
from pathlib import Path
from toolbus import Agent, SqliteStateStore, Toolkit, open_model, tool
from toolbus_toolkits.files import Files
from toolbus_toolkits.lsp import Lsp
from toolbus_toolkits.memory import Memory
from toolbus_toolkits.notes import Tasks
from toolbus_toolkits.python import Python

class Reporting(SqliteStateStore):
    async def save(self, key: str, text: str) -> None:
        await super().save(key, text)
        if "kit.wait" in text and not Path("killed").exists():
            print("stored", flush=True)

@tool(read_only=True)
async def wait() -> None:
    if not Path("killed").exists():
        await asyncio.Event().wait()

async def main(script: str, conversation: str) -> None:
    kits = [Tasks(), Lsp("project"), Files("project"), Python("project"), Memory("memory.db"),
            Toolkit("kit", [wait])]
    async with (
        Reporting("states.db") as store,
        Agent(None, open_model(f"scripted:{script}"), name="helper", always=kits, store=store,
              max_steps=30) as agent,
    ):
        result = await agent.run("Mend the function doubled.", conversation=conversation)
        for each in result.results:
            print(json.dumps([each.tool, each.state, each.value]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def _write(file: Path, steps: Iterable[list[tuple[str, dict[str, Any]]]]) -> None:
    replies: list[Any] = [
        {"uses": [{"name": name, "arguments": arguments} for name, arguments in step]}
        for step in steps
    ]
    file.write_text("\n".join(map(json.dumps, [*replies, {"text": "Done."}])))


async def test_an_agent_that_is_killed_goes_on_with_its_plan(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "module.py").write_text(MODULE)
    _write(tmp_path / "work.jsonl", WORK)
    _write(tmp_path / "later.jsonl", LATER)

    async def agent(*words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", AGENT, *words),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
        )

    async def results(*words: str) -> dict[str, Any]:
        process = await agent(*words)
        output, _ = await process.communicate()
        assert process.returncode == 0
        lines = map(json.loads, output.splitlines())
        found = {}
        for name, state, value in lines:
            assert state == "ok", (name, state, value)
            found[name] = value
        return found

    async with asyncio.timeout(PATIENCE_S):
        first = await agent("work.jsonl", "now")
        assert first.stdout is not None
        assert await first.stdout.readline() == b"stored\n"
        first.kill()
        await first.wait()
        (tmp_path / "killed").touch()

        found = await results("work.jsonl", "now")
        assert [(task["id"], task["subject"], task["status"]) for task in found["tasks.list"]] == [
            ("1", "Mend doubled", "in_progress"),
            ("2", "Test it", "pending"),
        ]
        (symbol,) = found["lsp.symbols"]["symbols"]
        assert (symbol["path"], symbol["line"]) == ("module.py", 1)
        assert "+    return 2 * number" in found["files.edit"]["diff"]
        assert found["lsp.diagnostics"] == {"diagnostics": [], "truncated": False}
        assert (found["python.run"]["value"], found["python.run"]["error"]) == ("'passed'", None)

        later = await results("later.jsonl", "later")
        assert [note["text"] for note in later["memory.search"]] == [
            "The function doubled was mended, and its test passed."
        ]
        assert later["tasks.list"] == []
