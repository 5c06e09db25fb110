"""A toolkit whose calls wait for a person, as a process hosts it; and callers of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Running

_TOOLS = """
from fnmatch import fnmatchcase
from toolbus import Assessment, ExternalTool, Rule, Tool, ToolContext, Toolkit, tool

TEXT = {"type": "string"}

class Write(Tool):
    name = "write"
    approval = True
    input_schema = {
        "properties": {"path": TEXT, "text": TEXT, "times": {"type": "integer"}},
        "required": ["path"],
    }

    async def assess(self, context, arguments):
        path = arguments["path"]
        rules = (Rule(behavior="allow", tool="files.write", match=path + "*"),)
        preview = "@@ -1 +1 @@\\n-old\\x1b[2J\\n+new\\u202e\\n"
        return Assessment("pass", message="it writes\\u202e", preview=preview, suggestions=rules)

    def match_rule(self, pattern, arguments):
        return fnmatchcase(arguments["path"], pattern)

    async def execute(self, context, /, path, text="b", times=1):
        return [path, text, times]

class Pay(Write):
    name = "pay"
    approvers = ("others",)

NUMBER = {"type": "integer", "minimum": 2}
QUESTIONS = {
    "text": {},
    "choice": {"options": ["red\x1b[2J", "blue"]},
    "number": {"schema": NUMBER},
    "object": {"schema": {"type": "object", "properties": {"size": NUMBER, "name": TEXT}}},
}

@tool
async def ask(context: ToolContext, path: str) -> list[object]:
    return [await context.ask("How much\x1b[2J?", **QUESTIONS[path])]

@tool(approval=True)
async def stop(path: str) -> str:
    return path

review = ExternalTool("review", {"properties": {"path": TEXT}})
files = Toolkit("files", [Write(), Pay(), ask, stop, review])
"""

_MANY = """
import asyncio, sys
from toolbus import RoomClient

async def main():
    def show(held):
        print(held.id, flush=True)

    async with RoomClient(name="ann") as room:
        calls = [
            room.invoke("files.write", {"path": "a"}, on_held=show)
            for _ in range(int(sys.argv[1]))
        ]
        await asyncio.gather(*calls, return_exceptions=True)

asyncio.run(main())
"""


@contextmanager
def hosted_files(folder: Path) -> Iterator[CommandLine]:
    """Run a server in a folder, and bob, who hosts the toolkit `files`."""
    (folder / "held_tools.py").write_text(_TOOLS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("held_tools:files", "--name", "bob"):
            yield there


class Callers:
    """Calls of `files.write` by processes, each of which waits for a person."""

    def __init__(self, toolbus: CommandLine) -> None:
        self._toolbus = toolbus
        self._left = ExitStack()
        self._started: list[Running] = []

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        # By Ctrl-C, which cancels the calls: that of a caller that is killed is listed on.
        for running in self._started:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGINT)
        for running in self._started:
            running.process.wait(PATIENCE_S)
        self._left.close()

    def call(
        self, path: str, *options: str, name: str = "ann", tool: str = "files.write"
    ) -> tuple[Running, str]:
        """Begin a call; return it with what it said once it waited."""
        typed = ("call", tool, f"path={path}", "--name", name, *options)
        running = self._left.enter_context(self._toolbus.start(*typed))
        self._started.append(running)
        assert running.process.stderr is not None
        return running, running.process.stderr.readline()

    def held(self, path: str, *options: str, name: str = "ann") -> tuple[Running, str]:
        """Begin a call that its caller may approve; return it with the id of its approval."""
        running, line = self.call(path, *options, name=name)
        begin, _, hold_id = line.rstrip().rpartition(" ")
        assert begin == "waiting for a person to approve files.write: toolbus approvals approve"
        return running, hold_id

    def asking(self, path: str, tool: str = "files.ask") -> tuple[Running, str]:
        """Begin a call that asks its caller; return it with the id of the question."""
        running, line = self.call(path, tool=tool)
        begin, _, hold_id = line.rstrip().rpartition(" ")
        assert begin == f"waiting for an answer to {tool}: toolbus approvals answer"
        return running, hold_id

    def many(self, count: int) -> list[str]:
        """Begin calls in one process; return the ids of their approvals."""
        running = self._left.enter_context(self._toolbus.running("-c", _MANY, str(count)))
        self._started.append(running)
        return [running.line().strip() for _ in range(count)]

    def lists(self, *options: str, name: str = "ann") -> list[dict[str, object]]:
        """Return what `toolbus approvals --once` lists."""
        listed = self._toolbus.value_here("approvals", "--once", "--json", "--name", name, *options)
        assert isinstance(listed, list)
        return listed
