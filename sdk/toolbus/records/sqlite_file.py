"""The SQLite file of records: how it is written and read. Blocking."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from toolbus.errors import NotFound, Unavailable
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.sqlite_files import BUSY_S, NO_FILE, FileKind, SqliteFile

__all__ = [
    "RECORDS",
    "NoRecords",
    "RecordsUnavailable",
    "delete_before",
    "read_calls",
    "read_names",
    "write",
]

_MAX_LIMIT = 2**63 - 1
_COLUMNS = tuple(column.name for column in fields(CallRecord))
_KINDS = {"started_at": "REAL", "duration_s": "REAL"}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, "
    + ", ".join(f"{name} {_KINDS.get(name, 'TEXT')}" for name in _COLUMNS)
    + ")",
    "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (started_at)",
)
_INSERT = f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_DELETE = "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE started_at < ? LIMIT ?)"
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)} FROM calls WHERE (:since IS NULL OR started_at >= :since)"
    " AND (:outcome IS NULL OR outcome = :outcome)"
    " AND (:who IS NULL OR caller = :who OR substr(caller, instr(caller, '/') + 1) = :who)"
    " AND covers(tool) ORDER BY started_at DESC, id DESC LIMIT :limit"
)


class RecordsUnavailable(Unavailable):
    """The file of records cannot be opened, read or written; `details` has its `path`."""

    next_step: str = "name a file in an existing folder that you may write, or remove the cause"


class NoRecords(NotFound):
    """There is no file of records at this path; `details` has its `path`."""

    next_step: str = (
        "start a host with `toolbus host --records`, or name the file that it records to"
    )


RECORDS = FileKind(
    what="the file of records",
    application=0x74626E72,
    version=1,
    create=_CREATE,
    error=RecordsUnavailable,
    is_durable=False,
)
"""Files of records."""


def write(file: SqliteFile, records: Sequence[CallRecord]) -> None:
    """Add records, all or none. Raises `sqlite3.Error`, or what a value cannot be stored by."""
    with file.transaction() as connection:
        connection.executemany(_INSERT, map(astuple, records))


def delete_before(file: SqliteFile, started_at: float, limit: int) -> bool:
    """Delete some of the records that began earlier; return whether there may be more."""
    with file.transaction() as connection:
        deleted = connection.execute(_DELETE, (started_at, limit)).rowcount
    connection.execute("PRAGMA incremental_vacuum(200)").fetchall()
    return deleted == limit


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
        raise RECORDS.unavailable(path, NO_FILE)
    address = f"{path.absolute().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        address += "&immutable=1"  # SQLite could not make its lock files, and there is no writer
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
            RECORDS.check(connection)
            yield connection
    except (sqlite3.Error, ValueError) as error:
        raise RECORDS.unavailable(path, str(error)) from error
