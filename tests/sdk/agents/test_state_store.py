"""States in a SQLite file: durable, in order, shared, and refused with the reason."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolbus import SqliteStateStore, StateStoreUnavailable, TooLarge, sqlite_files
from toolbus.agents import state_store

WRITER = """
import asyncio, sys
from toolbus import SqliteStateStore
async def write():
    async with SqliteStateStore(sys.argv[1]) as states:
        for number in range(100):
            await states.save("shared", f"{sys.argv[2]} {number}" * 1_000)
            await states.save(sys.argv[2], f"{number}")
asyncio.run(write())
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sqlite_files, "BUSY_S", 0.05)
    monkeypatch.setattr(sqlite_files, "_OPEN_S", 0.2)
    return tmp_path / "states.db"


@pytest.fixture
async def states(path: Path) -> AsyncIterator[SqliteStateStore]:
    states = SqliteStateStore(path)
    yield states
    await states.aclose()


async def test_what_is_saved_is_read_again_from_a_file_of_its_user_alone(
    states: SqliteStateStore, path: Path
) -> None:
    await states.save("a", "1 \0 ä 😀")
    await states.save("b", "2")
    await states.save("b", "3")
    await states.delete("none")
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    again = SqliteStateStore(path)
    assert [await again.load(key) for key in "abc"] == ["1 \0 ä 😀", "3", None]
    await again.delete("b")
    await again.aclose()
    assert await states.load("b") is None


async def test_saves_of_one_key_keep_their_order_and_many_share_a_transaction(
    states: SqliteStateStore,
) -> None:
    await asyncio.gather(*(states.save(f"{n % 3}", f"{n}") for n in range(300)))
    assert [await states.load(key) for key in "012"] == ["297", "298", "299"]


async def test_save_of_a_cancelled_task_is_kept_and_a_later_one_wins(
    states: SqliteStateStore, path: Path
) -> None:
    await states.save("a", "0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        tasks = [asyncio.create_task(states.save("a", f"{n}")) for n in range(1, 4)]
        tasks.append(asyncio.create_task(states.save("b", "1")))
        await asyncio.sleep(0)
        for task in (tasks[1], tasks[3]):
            task.cancel()
        await asyncio.wait([tasks[1], tasks[3]])
        later = asyncio.create_task(states.save("c", "1"))
        await asyncio.sleep(0)
    await states.aclose()
    assert [each.cancelled() for each in tasks] == [False, True, False, True]
    await later
    assert [await states.load(key) for key in "abc"] == ["3", "1", "1"]


def test_save_of_a_program_that_ends_at_once_is_kept(path: Path) -> None:
    async def cancelled_at_the_end() -> None:
        saving.append(asyncio.create_task(states.save("a", "1")))
        await asyncio.sleep(0)

    states = SqliteStateStore(path)
    saving: list[asyncio.Task[None]] = []
    asyncio.run(cancelled_at_the_end())
    assert saving[0].cancelled()
    assert asyncio.run(states.load("a")) == "1"
    asyncio.run(states.aclose())


def test_processes_share_one_file(path: Path) -> None:
    async def saved() -> list[str | None]:
        async with SqliteStateStore(path) as states:
            return [await states.load(key) for key in ("x", "y", "shared")]

    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "xy"]
    assert [writer.wait(100) for writer in writers] == [0, 0]
    *own, shared = asyncio.run(saved())
    assert own == ["99", "99"]
    assert shared in ("x 99" * 1_000, "y 99" * 1_000)


def key(asker: str, number: object) -> str:
    return f'[["acme", "{asker}"], null, "{number}"]'


@pytest.mark.parametrize(
    ("limits", "text"), [({"max_states": 20}, "s"), ({"max_bytes": 20_000}, "s" * 1_000)]
)
async def test_asker_with_the_most_states_loses_its_oldest_and_the_store_knows_which(
    path: Path, limits: dict[str, int], text: str
) -> None:
    first, second = SqliteStateStore(path, **limits), SqliteStateStore(path, **limits)
    await first.save(key("ann", "trip"), text)
    with closing(sqlite3.connect(path)) as file, file:  # as an earlier version has left it
        for kind, name in file.execute("SELECT type, name FROM sqlite_master").fetchall():
            if name in ("totals", "added", "removed", "changed"):
                file.execute(f"DROP {kind} IF EXISTS {name}")
    for number in range(60):
        await (first, second)[number % 2].save(key("mallory", number), text)
        await first.save(key("mallory", "used again"), text)
        await second.save(key(f"asker {number % 3}", ""), text)
    await first.aclose()
    assert await second.load(key("ann", "trip")) == text
    assert [await second.load(key(f"asker {n}", "")) for n in range(3)] == [text] * 3
    assert await second.load(key("mallory", "used again")) == text
    own = [await second.load(key("mallory", number)) for number in range(60)]
    left = own.count(text)
    assert 9 <= left <= 15
    forgotten = own[-left - 5 : -left]
    assert (forgotten, own[-left:]) == ([""] * 5, [text] * left)
    if "max_states" in limits:  # and so are the keys of all but as many as there may be states
        assert own[:10] == [None] * 10
    await second.delete(key("mallory", 59 - left))
    await second.save(key("mallory", 58 - left), text)
    again = [await second.load(key("mallory", 59 - left - n)) for n in range(3)]
    assert again == [None, text, ""]
    await second.aclose()


async def test_state_that_is_larger_than_all_may_be_stays_until_another_one_comes(
    path: Path,
) -> None:
    states = SqliteStateStore(path, max_bytes=1_000)
    await states.save(key("ann", "trip"), "a")
    await states.save(key("mallory", "large"), "m" * 2_000)
    assert await states.load(key("mallory", "large")) == "m" * 2_000
    await states.save(key("ann", "trip"), "b")
    found = [await states.load(key(*each)) for each in (("mallory", "large"), ("ann", "trip"))]
    assert found == ["", "b"]
    await states.aclose()


async def test_text_that_is_too_large_is_refused_and_the_former_one_stays(
    states: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await states.save("a", "\ud800")
    monkeypatch.setattr(state_store, "MAX_STATE_CHARS", 2)
    with pytest.raises(TooLarge, match="at most 2 characters, this one has 3"):
        await states.save("a", "abc")
    monkeypatch.setattr(state_store, "_MAX_BYTES", 2)
    with pytest.raises(StateStoreUnavailable, match="larger than 2 bytes"):
        await states.load("a")
    monkeypatch.undo()
    assert await states.load("a") == "\ud800"


async def test_file_that_is_removed_is_made_again(states: SqliteStateStore, path: Path) -> None:
    await states.save("a", "1")
    os.unlink(path)
    assert await states.load("a") is None
    await states.save("a", "2")
    assert await states.load("a") == "2"


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (x)")


def changed(path: Path, statement: str) -> None:
    async def write() -> None:
        async with SqliteStateStore(path) as states:
            await states.save("a", "text")

    asyncio.run(write())
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)


def damaged(path: Path) -> None:
    changed(path, "PRAGMA user_version = 1")
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * 100_000)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "file is not a database"),
        (lambda path: path.mkdir(), "it is not a regular file"),
        (lambda path: os.mkfifo(path), "it is not a regular file"),
        (lambda path: path.symlink_to(path.with_name("none") / "x"), "it is not a regular file"),
        (other_program, "it is a database of another program"),
        (
            lambda path: changed(path, "PRAGMA user_version = 2"),
            "a newer version of toolbus has written it",
        ),
        (lambda path: changed(path, "ALTER TABLE states RENAME TO x"), "no such table: states"),
        (lambda path: changed(path, "UPDATE states SET state = x'ff'"), "codec can't decode"),
        (lambda path: changed(path, "UPDATE states SET state = 7"), "is no text"),
        (damaged, "database disk image is malformed"),
        (lambda path: path.parent.chmod(0o500), "Permission denied"),
        (lambda path: (path.touch(), path.chmod(0o400)), "attempt to write a readonly database"),
        (lambda path: path.parent.rmdir(), "No such file or directory"),
    ],
)
def test_file_that_cannot_be_used_is_refused_with_its_path_and_the_reason(
    path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    folder = path.parent / "folder"
    folder.mkdir()
    path = folder / "states.db"
    spoil(path)
    if reason in ("Permission denied", "attempt to write a readonly database") and not os.getuid():
        pytest.skip("root may write everywhere")
    with pytest.raises(StateStoreUnavailable) as refused:
        asyncio.run(SqliteStateStore(path).load("a"))
    assert (refused.value.executed, refused.value.retryable) == ("no", False)
    assert refused.value.details["path"] == str(path)
    assert reason in refused.value.details["reason"]
    assert str(path) in refused.value.message


async def test_file_that_stays_locked_fails_and_keeps_the_former_state(
    states: SqliteStateStore, path: Path
) -> None:
    await states.save("a", "1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateStoreUnavailable, match="database is locked"):
            await states.save("a", "2")
        assert await states.load("a") == "1"
    await states.save("a", "3")
    assert await states.load("a") == "3"
