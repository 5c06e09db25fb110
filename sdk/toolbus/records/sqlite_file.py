"""Records in a SQLite file: one thread writes them in batches, and deletes old ones in slices.

A file that cannot be written delays records and then loses some; it never delays a call.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from itertools import islice
from pathlib import Path
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import NotFound, RoomException, Unavailable
from toolbus.forked_children import call_in_children
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.sqlite_files import BUSY_S, NO_FILE, FileKind, SqliteFile

__all__ = [
    "MAX_WAITING",
    "NoRecords",
    "RecordsUnavailable",
    "SqliteStore",
    "read_calls",
    "read_names",
]

_logger = bounded_logger(__name__)

MAX_WAITING = 10_000
"""How many records wait at most to be written; further ones are lost."""
_BATCH_S = 0.05
_BATCH = 1_000
_RETRY_S = 1.0
_CLOSE_S = 5.0
_SLICE = 500
_RETENTION_S = 3_600.0
_COLUMNS = tuple(column.name for column in fields(CallRecord))
_KINDS = {
    "started_at": "REAL",
    "duration_s": "REAL",
    # Those that files of the releases before lack: these still write there, without them.
    **dict.fromkeys(("settled", "settled_by", "settled_reason", "granted"), "TEXT DEFAULT ''"),
    "settled_at": "REAL",
    "waited_s": "REAL DEFAULT 0",
}
_DEFINITIONS = {name: f"{name} {_KINDS.get(name, 'TEXT')}" for name in _COLUMNS}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, "
    + ", ".join(_DEFINITIONS.values())
    + ")",
    "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (started_at)",
)
_INSERT = f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_DELETE = "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE started_at < ? LIMIT ?)"
_CHOSEN = (
    "FROM calls WHERE (:since IS NULL OR started_at >= :since)"
    " AND (:outcome IS NULL OR outcome = :outcome)"
    " AND (:call_id IS NULL OR call_id = :call_id OR trace_id = :trace_id)"
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


def _columns(connection: sqlite3.Connection) -> list[str]:
    """Return the columns that a file has: one of an older release lacks some."""
    found = {row[1] for row in connection.execute("PRAGMA table_info(calls)")}
    return [name for name in _COLUMNS if name in found]


def _missing_columns(connection: sqlite3.Connection) -> list[str]:
    """Return the statements that add what a file of an older release lacks."""
    missing = set(_COLUMNS).difference(_columns(connection))
    return [f"ALTER TABLE calls ADD COLUMN {_DEFINITIONS[name]}" for name in sorted(missing)]


RECORDS = FileKind(
    what="the file of records",
    application=0x74626E72,
    version=1,
    create=_CREATE,
    error=RecordsUnavailable,
    is_durable=False,
    additions=_missing_columns,
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
    call_id, trace_id = chosen.call_tree or (None, None)
    values = {
        "since": chosen.since,
        "outcome": chosen.outcome,
        "call_id": call_id,
        "trace_id": trace_id,
        "who": chosen.who,
        "limit": min(limit, 2**63 - 1),  # an integer of SQLite
    }
    with _reading(path) as connection:
        connection.create_function("covers", 1, lambda tool: chosen.covers(str(tool)))
        columns = _columns(connection)
        found = connection.execute(f"SELECT {', '.join(columns)} {_CHOSEN}", values)
        rows: list[tuple[Any, ...]] = found.fetchall()
    return [CallRecord(**dict(zip(columns, row, strict=True))) for row in rows]


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
    # Who closes a file as the last one removes its log, unless it could only read. `toolbus call
    # --trace` takes a log for a host that has the records open.
    address = f"{path.absolute().as_uri()}?mode=rw"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        address += "&immutable=1"  # SQLite could not make its lock files, and there is no writer
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
            RECORDS.check(connection)
            yield connection
    except (sqlite3.Error, ValueError) as error:
        raise RECORDS.unavailable(path, str(error)) from error


class SqliteStore:
    """Keeps records in a file; see `Records.sqlite`.

    Args:
        path: The file.
        keep_s: Seconds that records are kept.

    Raises `RecordsUnavailable` if the file cannot be opened and written now.
    """

    def __init__(self, path: str | os.PathLike[str], keep_s: float) -> None:
        self._path = Path(path).absolute()
        self._keep_s = keep_s
        self._waiting: deque[CallRecord] = deque()
        self._added = 0
        self._settled = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        """Set when a reader or the end waits: batches are written at once."""
        self._thread: threading.Thread | None = None
        self._file = SqliteFile(self._path, RECORDS)
        self._losses = _Losses(self._path)
        self._delete_at = 0.0
        self._file.connection()
        self._file.close()
        call_in_children(self._restart_in_child)

    def _restart_in_child(self) -> None:
        """Begin anew in a forked child: what waits is the parent's."""
        self._thread = None
        self._waiting.clear()
        self._added = self._settled = self._losses.count = 0
        self._changed = threading.Condition()
        self._hurry = threading.Event()

    def add(self, record: CallRecord) -> None:
        """Let a record wait to be written; it is lost if too many wait."""
        with self._changed:
            if self._is_closed or len(self._waiting) >= MAX_WAITING:
                self._losses.count += 1
                return
            self._waiting.append(record)
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="toolbus-records", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            elif len(self._waiting) == 1:
                self._changed.notify_all()
            if len(self._waiting) >= _BATCH:
                self._hurry.set()

    def select(self, chosen: CallFilter, limit: int) -> list[CallRecord]:
        """Return the chosen records of the file, also those of other processes."""
        try:
            return read_calls(self._path, chosen, limit)
        except NoRecords:  # it was removed; the next record makes a new one
            return []

    def flush(self, timeout_s: float) -> bool:
        """Wait until the records added so far are written; return whether they are."""
        with self._changed:
            target = self._added
            self._hurry.set()
            return self._changed.wait_for(lambda: self._settled >= target, timeout_s)

    def close(self) -> None:
        """Write what waits, in five seconds at most, and stop the thread."""
        with self._changed:
            self._is_closed = True
            self._hurry.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            atexit.unregister(self.close)
            thread.join(_CLOSE_S)
            with self._changed:
                self._losses.count += len(self._waiting)
                self._settle(len(self._waiting))
        self._losses.report_last()

    def _run(self) -> None:
        try:
            while self._wait_for_records():
                self._hurry.wait(_BATCH_S)
                if len(self._waiting) <= _BATCH:
                    self._hurry.clear()
                if not self._attempt(self._write_batch) and self._pause():
                    break
                if time.monotonic() >= self._delete_at:
                    self._attempt(self._delete_slice)
        finally:
            self._file.close()

    def _wait_for_records(self) -> bool:
        """Wait until there is something to do; return False at the end."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                left_s = self._delete_at - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    break  # it is time to delete old records
            return bool(self._waiting) or not self._is_closed

    def _pause(self) -> bool:
        """Wait before the next attempt; return whether the store is closed: then it is over."""
        with self._changed:
            return self._is_closed or self._changed.wait_for(lambda: self._is_closed, _RETRY_S)

    def _attempt(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except (sqlite3.Error, OSError, RoomException) as error:
            self._file.close()
            self._losses.report(error)
            return False
        self._losses.report_success()
        return True

    def _write_batch(self) -> None:
        with self._changed:
            batch = list(islice(self._waiting, _BATCH))
        try:
            if batch:
                write(self._file, batch)
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, UnicodeError, OverflowError):
            self._write_singly(batch)
        with self._changed:
            self._settle(len(batch))

    def _write_singly(self, batch: list[CallRecord]) -> None:
        """Write a batch with a value that no column can hold: that record is lost."""
        for record in batch:
            try:
                write(self._file, [record])
            except (sqlite3.InterfaceError, sqlite3.ProgrammingError, UnicodeError, OverflowError):
                self._losses.count += 1

    def _settle(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft()
        self._settled += count
        self._changed.notify_all()

    def _delete_slice(self) -> None:
        """Delete some old records; the next slice follows after the next batch, if any waits."""
        self._delete_at = time.monotonic() + _RETENTION_S
        if delete_before(self._file, time.time() - self._keep_s, _SLICE):
            self._delete_at = time.monotonic() + _BATCH_S


class _Losses:
    """Counts lost records, and warns at most once a minute."""

    _EVERY_S = 60.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._quiet_until = 0.0
        self._is_failing = False
        self.count: int = 0
        """Lost records that no warning has named yet."""

    def report(self, error: Exception) -> None:
        """Warn that records cannot be written now."""
        self._is_failing = True
        if not self._may_warn():
            return
        reason: object = error
        if isinstance(error, RoomException):
            reason = error.details.get("reason") or error
        _logger.warning(
            "calls are not recorded in %s now: %s; %d records are lost, up to %d wait; calls go on",
            *(self._path, reason, self._take(), MAX_WAITING),
        )

    def report_success(self) -> None:
        """Log that records are written again, and warn of those that were lost."""
        if self._is_failing:
            self._is_failing = False
            _logger.info("calls are recorded in %s again", self._path)
        if self.count and self._may_warn():
            self._warn_of_losses()

    def report_last(self) -> None:
        """Warn of the losses that no warning has named."""
        if self.count:
            self._warn_of_losses()

    def _warn_of_losses(self) -> None:
        _logger.warning("%d calls were not recorded in %s", self._take(), self._path)

    def _may_warn(self) -> bool:
        now = time.monotonic()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + self._EVERY_S
        return True

    def _take(self) -> int:
        count, self.count = self.count, 0
        return count
