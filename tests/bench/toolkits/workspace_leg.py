"""The toolkits `tasks`, `memory`, `python` and `lsp` in the process of an agent, and hosted tasks.

The language server of `lsp` is one that answers at once, so that a hover has the time of the
toolkit alone. In a process of its own, pyright answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from bench.role import Call, Facts, keep_calling, run_role, serve_orders
from bench.toolbus_leg import ROOM, route, set_up_tracing
from support.lsp import scripted_server
from toolbus import RoomClient, Turn
from toolbus_toolkits.lsp import Lsp
from toolbus_toolkits.memory import Memory
from toolbus_toolkits.notes import Task, Tasks
from toolbus_toolkits.python import Python

CallTool: TypeAlias = Callable[..., Awaitable[Any]]
"""`Turn.call`, or `RoomClient.call`."""

TASKS = 80
DESCRIPTION = "What is to be done here. " * 8
NOTES = 100_000
RARE_WORDS = "topic7 topic13 topic42 topic77"
"""Each stands in 1,000 notes."""
COMMON_WORD = "remember"
"""All notes have it."""
NOTES_AT_A_TIME = 100
"""The index is made of parts, as it is after many appends."""
FILES = 2_000


def tasks() -> list[Task]:
    """Return tasks, each of which waits for the one before."""
    waits_for = [[], *([str(number)] for number in range(1, TASKS))]
    return [Task(subject="A step", description=DESCRIPTION, blocked_by=ids) for ids in waits_for]


def call_of(
    call_tool: CallTool, tool: str, is_right: Callable[[Any], bool], **arguments: Any
) -> Call:
    """Make the call of a tool, whose result is checked."""

    async def call(*_: int) -> Any:
        result = await call_tool(tool, arguments)
        if not is_right(result):
            raise AssertionError(f"{tool} returns {result!r}")

    return call


def task_calls(call_tool: CallTool) -> dict[str, Call]:
    """Make the calls of each tool of tasks, by its name."""
    more: list[str] = []

    async def create(*_: int) -> Any:
        made = await call_tool("tasks.create", subject="A step", description=DESCRIPTION)
        more.append(made["id"])
        if len(more) == 10:  # so rarely that the median is that of `create` alone
            for task_id in more:
                await call_tool("tasks.update", task_id=task_id, status="deleted")
            more.clear()

    def waits(task: Any) -> bool:
        return bool(task["blocked_by"] == ["39"])

    return {
        "create": create,
        "get": call_of(call_tool, "tasks.get", waits, task_id="40"),
        "update": call_of(call_tool, "tasks.update", waits, task_id="40", status="pending"),
        "list": call_of(call_tool, "tasks.list", lambda found: len(found) == TASKS + len(more)),
    }


def other_calls(call_tool: CallTool) -> dict[str, Call]:
    """Make the calls of the other toolkits, by what they do."""

    def search(query: str) -> Call:
        return call_of(call_tool, "memory.search", lambda notes: len(notes) == 5, query=query)

    def run(keep: bool) -> Call:
        return call_of(
            call_tool, "python.run", lambda done: done["value"] == "2", code="1 + 1", keep=keep
        )

    async def bare(*_: int) -> Any:
        # It blocks, as in `shell_leg`: that is the fastest way.
        subprocess.run([sys.executable, "-c", "pass"], check=True)  # noqa: ASYNC221

    return {
        "rare": search(RARE_WORDS),
        "common": search(COMMON_WORD),
        "kept": run(keep=True),
        "fresh": run(keep=False),
        "bare": bare,
    }


def hover(call_tool: CallTool, file: Path) -> Call:
    """Write a file, and make the call of a hover over the name in its second line."""
    file.write_text("doubled = 2\nprint(doubled)\n", encoding="utf-8")
    return call_of(
        call_tool,
        "lsp.hover",
        lambda found: "doubled" in found["text"],
        path=file.name,
        line=2,
        column=8,
    )


def fill_memory(file: Path) -> None:
    """Store further notes beside one that was appended: an append of each would take minutes."""
    chance = random.Random(1)
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous = OFF")
    ((base,),) = connection.execute("SELECT rowid FROM notes").fetchall()
    statement = "INSERT INTO notes (rowid, text, tags, time) VALUES (?, ?, '[]', '2026-01-01')"

    def row(number: int) -> tuple[int, str]:
        words = " ".join(f"word{chance.randrange(10_000)}" for _ in range(12))
        return base + number, f"{COMMON_WORD} topic{number % 100}: {words}"

    for first in range(1, NOTES, NOTES_AT_A_TIME):
        with connection:
            connection.executemany(statement, map(row, range(first, first + NOTES_AT_A_TIME)))
    connection.close()


async def serve(calls: dict[str, Call]) -> None:
    """Call again and again what an order names."""

    async def call(what: str, seconds: float, in_flight: int) -> Facts:
        return await keep_calling(calls[what], seconds, in_flight)

    await serve_orders({"call": call}, ready=True)


async def host(facts: Facts) -> None:
    """Host tasks, with a file on the disk."""
    set_up_tracing("host", facts)
    client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["host"])
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        kit = Tasks(initial=tasks(), file=Path(folder) / "notes.db")
        async with client as room, room.host(kit):
            await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    """Call over the room, and by a turn in this process."""
    set_up_tracing("caller", facts)
    client = RoomClient(facts["url"], room=ROOM, token=facts["tokens"]["caller"])
    # Its log is nowhere: with a longer one it answers more slowly.
    server = [sys.executable, "-S", scripted_server.__file__, "plain", os.devnull]
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        file, workdir = Path(folder) / "memory.db", Path(folder) / "workdir"
        for number in range(FILES):
            path = workdir / f"area{number % 50}" / f"file{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        servers = Lsp(workdir, servers={".x": shlex.join(server)})
        kits = (Tasks(initial=tasks()), Memory(file), Python(workdir), servers)
        async with client as room, Turn(None, always=kits) as turn:
            await turn.call("memory.append", text=COMMON_WORD)
            await asyncio.to_thread(fill_memory, file)
            calls = {f"hosted {name}": call for name, call in task_calls(room.call).items()}
            calls |= task_calls(turn.call) | other_calls(turn.call)
            await serve({**calls, "hover": hover(turn.call, workdir / "use.x")})


async def pyright(_facts: Facts) -> None:
    """Hover with pyright, in a process of its own: without it the others are still measured."""
    with tempfile.TemporaryDirectory(prefix="toolbus-bench-") as folder:
        async with Turn(None, always=[Lsp(folder)]) as turn:
            await serve({"hover": hover(turn.call, Path(folder) / "use.py")})


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller, "pyright": pyright})
