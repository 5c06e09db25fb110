"""The SQLite file of records: how it is created, opened, written and read. Blocking.

Source of the pragmas: https://www.sqlite.org/pragma.html. The write-ahead log lets readers and one
writer of several processes use the file at a time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NamedTuple

from toolbus.errors import NotFound, Unavailable
from toolbus.records.call_record import CallFilter, CallRecord

__all__ = ["NoRecords", "OpenFile", "RecordsUnavailable", "open_file", "read_calls", "read_names"]

_APPLICATION = 0x74626E72
_VERSION = 1
_BUSY_S = 1.0
_OPEN_S = 3.0
_MAX_LIMIT = 2**63 - 1
_COLUMNS = tuple(each.name for each in fields(CallRecord))
_KINDS = {"started_at": "REAL", "duration_s": "REAL"}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, "
    + ", ".join(f"{name} {_KINDS.get(name, 'TEXT')}" for name in _COLUMNS)
    + ")",
    "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (started_at)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_INSERT = f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_DELETE = "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE started_at < ? LIMIT ?)"
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)} FROM calls WHERE (:since IS NULL OR started_at >= :since)"
    " AND (:outcome IS NULL OR outcome = :outcome)"
    " AND (:who IS NULL OR caller = :who OR substr(caller, instr(caller, '/') + 1) = :who)"
    " AND covers(tool) ORDER BY started_at DESC, id DESC LIMIT :limit"
)
_NO_FILE = "it is not a regular file"
_OTHER_PROGRAM = "it is a database of another program"


class RecordsUnavailable(Unavailable):
    """The file of records cannot be opened, read or written; `details` has its `path`."""

    next_step: str = "name a file in an existing folder that you may write, or remove the cause"


class NoRecords(NotFound):
    """There is no file of records at this path; `details` has its `path`."""

    next_step: str = (
        "start a host with `toolbus host --records`, or name the file that it records to"
    )


class OpenFile(NamedTuple):
    """A file that is open for writing."""

    connection: sqlite3.Connection
    identity: tuple[int, int]
    """Device and inode: another file may take its place."""

    def write(self, records: Sequence[CallRecord]) -> None:
        """Add records, all or none. Raises `sqlite3.Error`, or what a value cannot be stored by."""
        with _transaction(self.connection):
            self.connection.executemany(_INSERT, map(astuple, records))

    def delete_before(self, started_at: float, limit: int) -> bool:
        """Delete some of the records that began earlier; return whether there may be more."""
        with _transaction(self.connection):
            deleted = self.connection.execute(_DELETE, (started_at, limit)).rowcount
        self.connection.execute("PRAGMA incremental_vacuum(200)").fetchall()
        return deleted == limit


def open_file(path: Path) -> OpenFile:
    """Open a file for writing; create it, with mode 0600, if it does not exist.

    Raises `RecordsUnavailable`; a file that is locked is waited for, at most three seconds.
    """
    until = time.monotonic() + _OPEN_S
    while True:
        try:
            return _open(path)
        except sqlite3.OperationalError as error:
            if not _is_locked(error) or time.monotonic() >= until:
                raise _unavailable(path, str(error)) from error
            time.sleep(0.05)
        except OSError as error:
            raise _unavailable(path, error.strerror or str(error)) from error
        except (sqlite3.Error, ValueError) as error:
            raise _unavailable(path, str(error)) from error


def _open(path: Path) -> OpenFile:
    # Only a new file is opened here: closing a second descriptor of a database that this process
    # uses would release its locks (https://www.sqlite.org/howtocorrupt.html, 2.2).
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise ValueError(_NO_FILE) from None
    facts = path.stat()
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return OpenFile(connection, (facts.st_dev, facts.st_ino))


def _prepare(connection: sqlite3.Connection) -> None:
    if _is_empty(connection):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    else:
        _check_program(connection)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    with _transaction(connection):  # fails for a file that may only be read
        if _is_empty(connection):
            for statement in _CREATE:
                connection.execute(statement)


def _is_empty(connection: sqlite3.Connection) -> bool:
    found: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return found == 0


def _check_program(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise ValueError(_OTHER_PROGRAM)
    if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
        raise ValueError("a newer version of toolbus has written it")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def read_calls(path: Path, chosen: CallFilter, limit: int) -> list[CallRecord]:
    """Return the chosen records of a file, the newest first; the file is only read.

    Raises `NoRecords` or `RecordsUnavailable`.
    """
    values = {
        "since": chosen.since,
        "outcome": chosen.outcome,
        "who": chosen.who,
        "limit": min(limit, _MAX_LIMIT),
    }
    with _reading(path) as connection:
        connection.create_function("covers", 1, lambda tool: chosen.covers(str(tool)))
        rows: list[tuple[Any, ...]] = connection.execute(_SELECT, values).fetchall()
    return [CallRecord(*row) for row in rows]


def read_names(path: Path, column: str, limit: int) -> list[str]:
    """Return the different values of one text column, for completion. Raises as `read_calls`."""
    assert column in _COLUMNS
    with _reading(path) as connection:
        rows = connection.execute(f"SELECT DISTINCT {column} FROM calls LIMIT ?", (limit,))
        return [str(row[0]) for row in rows]


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        text = f"there are no records of calls at {path}"
        raise NoRecords(text, details={"path": str(path)})
    if not path.is_file():  # to open a pipe would wait for its writer
        raise _unavailable(path, _NO_FILE)
    address = f"{path.absolute().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        address += "&immutable=1"  # SQLite could not make its lock files, and there is no writer
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as connection:
            _check_program(connection)
            yield connection
    except (sqlite3.Error, ValueError) as error:
        raise _unavailable(path, str(error)) from error


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _unavailable(path: Path, reason: str) -> RecordsUnavailable:
    text = f"the file of records {path} cannot be used: {reason}"
    return RecordsUnavailable(
        text, executed="no", retryable=False, details={"path": str(path), "reason": reason}
    )
