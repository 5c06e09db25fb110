"""Records in a file: shared, bounded, and never in the way of a call."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from toolbus import sqlite_files
from toolbus.records import sqlite_file
from toolbus.records.call_record import CallFilter, CallRecord, Settlement
from toolbus.records.records import MemoryStore, Records
from toolbus.records.sqlite_file import RecordsUnavailable, SqliteStore

WRITER = """
import sys
from toolbus import Records
records = Records.sqlite(sys.argv[1])
for number in range(int(sys.argv[2])):
    with records.recording(f"kit.t{number}"):
        pass
"""
OLDER = Path(__file__).parents[2] / "saved_files/records.sql"
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module, name in (
        (sqlite_files, "BUSY_S"),
        (sqlite_file, "BUSY_S"),
        (sqlite_file, "_RETRY_S"),
    ):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(sqlite_files, "_OPEN_S", 0.2)
    return tmp_path / "records.db"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def call(records: Records, tool: str) -> None:
    with records.recording(tool):
        pass


def test_records_of_one_call_are_those_with_its_id_and_of_its_trace(path: Path) -> None:
    def made(number: int, call_id: str, trace_id: str) -> CallRecord:
        return CallRecord(
            f"kit.t{number}", number, 0, "ok", "yes", call_id=call_id, trace_id=trace_id
        )

    tree = [made(1, "c", ""), made(2, "x", "t"), made(3, "c", "t")]
    for store in (MemoryStore(10), SqliteStore(path, 1e12)):
        for record in (*tree, made(4, "", ""), made(5, "x", "y")):
            store.add(record)
        assert store.flush(10)
        assert store.select(CallFilter(call_tree=("c", "t")), 10) == tree[::-1]
        store.close()


def test_records_outlive_the_program_in_a_file_of_its_user_alone(path: Path) -> None:
    record = CallRecord("kit.a", 1e9, 0.5, "ok", "yes", "alice", "acme", "bob", arguments="{}")
    with Records.sqlite(path, days=99_999, arguments=True) as records:
        records.record(record)
        assert records.calls() == [record]
        assert records.calls(limit=2**70, since=-1e300) == [record]
        assert records.calls(who="\ud800") == []
        modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {0o600}
    records.close()
    call(records, "kit.after_the_end")
    assert records.flush()
    with Records.sqlite(path, days=99_999) as again:
        assert again.calls(tool="kit.*", who="alice", outcome="ok", since=1e9) == [record]
        assert again.calls(since=2e9) == again.calls(who="bob") == again.calls(tool="a") == []
    assert sqlite_file.read_calls(path, CallFilter(), 10) == [record]
    assert list(path.parent.iterdir()) == [path]


def test_file_of_an_older_release_is_read_as_it_is_and_shared_with_that_release(
    path: Path,
) -> None:
    with closing(sqlite3.connect(path)) as older:
        older.executescript(OLDER.read_text(encoding="utf-8"))
    before = sqlite_file.read_calls(path, CallFilter(), 10)
    assert [(call.decided_by, call.settled, call.settled_at) for call in before] == [
        ("person", "", None)
    ] * 2
    with Records.sqlite(path, days=99_999) as records, closing(sqlite3.connect(path)) as older:
        with records.recording("kit.a") as recording:
            recording.settle(Settlement("denied", "ann", "too much"), 61.0)
        older.execute("INSERT INTO calls (tool, started_at) VALUES ('kit.b', 1)")
        older.commit()
        new, *same, of_older = records.calls()
    assert same == before
    assert (new.settled, new.settled_by, new.settled_reason) == ("denied", "ann", "too much")
    assert (new.waited_s, of_older.settled, of_older.settled_at) == (61.0, "", None)


def test_processes_share_one_file_and_write_all_before_they_end(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), "300"]) for _ in range(3)]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    with Records.sqlite(path) as records:
        call(records, "kit.own")
        assert len(records.calls()) == 901


def test_locked_file_delays_records_and_warns_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records.sqlite(path)
    with locked(path):
        for _ in range(5):
            call(records, "kit.a")
            assert not records.flush(0.2)
        assert records.calls() == []
        assert caplog.text.count("calls are not recorded in") == 1
        assert "database is locked; 0 records are lost, up to 10000 wait" in caplog.text
    assert records.flush(60)
    assert len(records.calls()) == 5
    records.close()


def test_records_beyond_the_limit_are_lost_and_counted(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "MAX_WAITING", 3)
    records = Records.sqlite(path)
    with locked(path):
        for number in range(5):
            call(records, f"kit.t{number}")
        assert not records.flush(0.2)
    assert records.flush(60)
    assert [record.tool for record in records.calls()] == ["kit.t2", "kit.t1", "kit.t0"]
    records.close()
    lost = [
        message
        for message in caplog.messages
        if "2 records are lost" in message or "2 calls" in message
    ]
    assert len(lost) == 1


def test_full_disk_costs_records_and_no_call(path: Path) -> None:
    text = f"{FULL}{WRITER}print('called', flush=True)"
    ended = subprocess.run(
        [sys.executable, "-c", text, str(path), "3000"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "called\n")
    assert "calls go on" in ended.stderr
    assert "calls were not recorded" in ended.stderr


def test_file_that_is_replaced_or_removed_is_opened_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records.sqlite(path)
    call(records, "kit.a")
    assert records.flush(60)
    other = path.with_name("other")
    other.write_bytes(b"no database" * 1_000)
    os.replace(other, path)
    call(records, "kit.b")
    assert not records.flush(0.3)
    assert "file is not a database" in caplog.text
    with pytest.raises(RecordsUnavailable, match="file is not a database"):
        records.calls()
    path.unlink()
    assert records.flush(60)
    assert [record.tool for record in records.calls()] == ["kit.b"]
    path.unlink()
    assert records.calls() == []
    records.close()


def test_value_that_no_column_holds_loses_only_its_own_record(path: Path) -> None:
    records = Records.sqlite(path)
    with locked(path):
        for tool in ("kit.a", object(), "kit.c"):
            records.record(CallRecord(tool, time.time(), 0, "ok", "yes"))  # type: ignore[arg-type]
        call(records, "kit.\ud800")
    assert records.flush(60)
    assert [record.tool for record in records.calls()] == ["kit.\\ud800", "kit.c", "kit.a"]
    records.close()


def test_old_records_are_deleted_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_SLICE", 2)
    with Records.sqlite(path) as records:
        for _ in range(3):
            records.record(CallRecord("kit.old", time.time() - 86_400, 0, "ok", "yes"))
    for left in (1, 0):
        with Records.sqlite(path, days=0.5) as records:
            call(records, "kit.new")
        with closing(sqlite3.connect(path)) as file:
            count = file.execute("SELECT count(*) FROM calls WHERE tool = 'kit.old'").fetchone()
        assert count == (left,)


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE theirs (x)")


def newer(path: Path) -> None:
    Records.sqlite(path).close()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 2")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "file is not a database"),
        (lambda path: path.mkdir(), "it is not a regular file"),
        (lambda path: os.mkfifo(path), "it is not a regular file"),
        (lambda path: path.symlink_to(path.with_name("none") / "x"), "it is not a regular file"),
        (other_program, "it is a database of another program"),
        (newer, "a newer version of toolbus has written it"),
    ],
)
def test_file_that_cannot_be_opened_is_refused_at_once_with_its_path_and_the_reason(
    path: Path, spoil: object, reason: str
) -> None:
    assert callable(spoil)
    spoil(path)
    with pytest.raises(RecordsUnavailable) as refused:
        Records.sqlite(path)
    assert (refused.value.code, refused.value.executed) == ("unavailable", "no")
    assert refused.value.details == {"path": str(path), "reason": reason}


def test_pipe_in_place_of_the_file_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # so that opening it does not wait, as it did
    with pytest.raises(RecordsUnavailable, match="it is not a regular file"):
        sqlite_file.read_calls(path, CallFilter(), 1)
    os.close(writer)


def test_missing_folder_and_locked_file_are_refused_at_once(path: Path) -> None:
    with pytest.raises(RecordsUnavailable, match="No such file or directory"):
        Records.sqlite(path / "deeper.db")
    Records.sqlite(path).close()
    with locked(path), pytest.raises(RecordsUnavailable, match="database is locked"):
        Records.sqlite(path)
