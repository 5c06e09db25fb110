"""Notes of callers over a room: in one SQLite file, by asker, and what happens to bad files."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from toolbus import DeadlineExceeded, RoomClient, ToolFailed, Toolkit, sqlite_files
from toolbus_server.testing import TestServer, running_server
from toolbus_toolkits.notes import NotesConfig, Scratchpad, Tasks, Todo, tasks
from toolbus_toolkits.notes.notes import FILE, NotesUnavailable

KILLED = """
import asyncio, json, os, signal, sys
from toolbus import ToolContext, ToolFailed
from toolbus_toolkits.notes import Tasks

async def write(pipe):
    tasks = Tasks(file=sys.argv[1])
    async def call(name, **arguments):
        while True:
            try:
                return (await tasks.execute(ToolContext(), name, arguments)).value
            except ToolFailed as error:
                if not error.retryable:  # the other one may have the lock for long
                    raise
    former = None
    while True:
        made = await call("create", subject="x" * 2_000)
        os.write(pipe, made["id"].encode() + b"\\n")
        if former is not None:
            await call("update", task_id=former, status="deleted")
        former = made["id"]

ids = []
for _ in range(20):
    hosts = []
    for _ in range(2):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                asyncio.run(write(writing))
            finally:
                os._exit(1)
        os.close(writing)
        hosts.append((pid, os.fdopen(reading)))
    try:
        for _, lines in hosts:
            ids += [next(lines).strip() for _ in range(3)]
    finally:
        for pid, _ in hosts:
            os.kill(pid, signal.SIGKILL)
    for pid, lines in hosts:
        os.waitpid(pid, 0)
        ids += lines.read().split()
print(json.dumps(ids))
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sqlite_files, "BUSY_S", 0.05)
    monkeypatch.setattr(sqlite_files, "_OPEN_S", 0.2)
    return tmp_path / "notes.db"


@asynccontextmanager
async def hosted(*toolkits: Toolkit) -> AsyncIterator[tuple[TestServer, RoomClient]]:
    """Host toolkits; give the server, and ann, who calls."""
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("host") as host,
        server.room("ann") as ann,
    ):
        async with AsyncExitStack() as hosting:
            for toolkit in toolkits:
                await hosting.enter_async_context(host.host(toolkit))
            yield server, ann


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def test_each_asker_has_notes_of_its_own_which_outlive_the_host(path: Path) -> None:
    async with hosted(Tasks(file=path, initial=["one"]), Todo(file=path)) as (server, ann):
        assert (await ann.call("tasks.create", subject="two"))["id"] == "2"
        await ann.call("todo.write", todos=[{"content": "a"}])
        async with server.room("bob") as bob:
            assert [line["id"] for line in await bob.call("tasks.list")] == ["1"]
            assert await bob.call("todo.read") == []
            assert (await bob.call("tasks.create", subject="other"))["id"] == "2"
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    async with hosted(tasks(NotesConfig(file=path)), Todo("steps", file=path)) as (_, ann):
        assert [line["subject"] for line in await ann.call("tasks.list")] == ["one", "two"]
        assert await ann.call("steps.read") == []


def test_command_hosts_all_three_with_a_file_in_the_home_of_toolbus(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("tasks", "todo", "scratchpad"):
            assert there.value_here("call", "tasks.create", "subject=x")["id"] == "1"
            there.run_here("call", "scratchpad.write", "name=a", "text=b")
        assert (tmp_path / "home" / "notes.db").exists()
        with there.hosting("scratchpad", "--file", "home/notes.db"):
            assert there.run_here("call", "scratchpad.read", "name=a").out == "b\n"
        outcome = there.run_here("host", "todo", "--file", "none/notes.db")
        assert (outcome.code, "No such file or directory" in outcome.err) == (6, True)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def changed(path: Path, statement: str) -> None:
    made = sqlite_files.SqliteFile(path, FILE)
    made.connection()
    made.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "file is not a database"),
        (lambda path: path.mkdir(), "it is not a regular file"),
        (lambda path: changed(path, "PRAGMA application_id = 7"), "a database of another program"),
        (lambda path: changed(path, "PRAGMA user_version = 2"), "a newer version of toolbus"),
        (lambda path: (path.touch(), path.chmod(0o400)), "may not read and write it"),
        (lambda path: path.parent.chmod(0o500), "may not read and write its folder"),
    ],
)
async def test_file_that_cannot_be_used_ends_its_host(
    path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    spoil(path)
    if "may not" in reason and not os.getuid():
        pytest.skip("root may write everywhere")
    before = content(path)
    with pytest.raises(NotesUnavailable, match=reason) as refused:
        async with hosted(Scratchpad(file=path)):
            pass
    assert (refused.value.executed, refused.value.details["path"]) == ("no", str(path))
    assert content(path) == before


def test_of_two_kinds_that_make_one_file_at_once_one_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_empty = sqlite_files._is_empty

    def made_meanwhile(connection: sqlite3.Connection) -> bool:
        monkeypatch.setattr(sqlite_files, "_is_empty", is_empty)
        assert is_empty(connection)
        other = sqlite_files.SqliteFile(path, replace(FILE, application=7))
        other.connection()
        other.close()
        return True

    monkeypatch.setattr(sqlite_files, "_is_empty", made_meanwhile)
    with pytest.raises(NotesUnavailable, match="a database of another program"):
        sqlite_files.SqliteFile(path, FILE).connection()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE notes SET notes = '[1]'", "what is stored is not of this toolkit"),
        ("UPDATE notes SET notes = x'ff'", "what is stored is not of this toolkit"),
        ("UPDATE notes SET notes = 7", "what is stored is not of this toolkit"),
        (
            "ALTER TABLE notes RENAME TO theirs",
            "no such table: notes: nothing was changed; who hosts this",
        ),
    ],
)
async def test_what_another_program_did_to_the_file_is_said(
    path: Path, statement: str, words: str
) -> None:
    async with hosted(Scratchpad(file=path)) as (_, ann):
        await ann.call("scratchpad.write", name="a", text="b")
        changed(path, statement)
        for call in ("read", "write"):
            arguments = {"name": "a", **({"text": "c"} if call == "write" else {})}
            with pytest.raises(ToolFailed, match=words) as refused:
                await ann.call(f"scratchpad.{call}", arguments)
            assert (refused.value.executed, refused.value.retryable) == ("no", False)


async def test_locked_file_is_an_error_and_a_cancelled_call_changes_nothing(path: Path) -> None:
    async with hosted(Scratchpad(file=path)) as (_, ann):
        await ann.call("scratchpad.write", name="a", text="b")
        with locked(path):
            assert await ann.call("scratchpad.read", name="a") == "b"
            with pytest.raises(DeadlineExceeded) as late:
                await ann.invoke("scratchpad.write", {"name": "a", "text": "c"}, timeout_s=0.01)
            with pytest.raises(ToolFailed, match="another program uses it: call again") as refused:
                await ann.call("scratchpad.write", name="a", text="d")
            assert (refused.value.executed, refused.value.retryable) == ("no", True)
        assert await ann.call("scratchpad.read", name="a") == "b"
        assert late.value.executed != "yes"


async def test_full_disk_is_an_error_and_the_file_stays_good(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    pages = dict.fromkeys("0123456789", "x" * 10_000)
    async with hosted(Scratchpad(file=path, initial=pages)) as (_, ann):
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
        try:
            with pytest.raises(ToolFailed, match="nothing was changed; who hosts this") as refused:
                await ann.call("scratchpad.write", name="a", text="b")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (refused.value.executed, refused.value.retryable) == ("no", False)
        assert len(await ann.call("scratchpad.read")) == 10
        await ann.call("scratchpad.write", name="a", text="b")
        assert len(await ann.call("scratchpad.read")) == 11
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_id_is_used_twice_by_two_hosts_that_are_killed_while_they_write(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=True
    )
    ids = list(map(int, json.loads(done.stdout)))
    assert len(ids) == len(set(ids)) >= 120
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        ((stored,),) = file.execute("SELECT notes FROM notes").fetchall()
    assert json.loads(stored)["last_id"] >= max(ids)
    # All tasks but the last two of each host were deleted.
    assert len(json.loads(stored)["tasks"]) <= 80
