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
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import RoomException
from toolbus.forked_children import call_in_children
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.records.sqlite_file import RECORDS, NoRecords, delete_before, read_calls, write
from toolbus.sqlite_files import SqliteFile

__all__ = ["MAX_WAITING", "SqliteStore"]

_logger = bounded_logger(__name__)

MAX_WAITING = 10_000
"""How many records wait at most to be written; further ones are lost."""
_BATCH_S = 0.05
_BATCH = 1_000
_RETRY_S = 1.0
_CLOSE_S = 5.0
_SLICE = 500
_RETENTION_S = 3_600.0


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
                self._start()
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

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="toolbus-records", daemon=True)
        self._thread.start()
        atexit.register(self.close)

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
    """Counts lost records, and warns at most once a minute.

    Args:
        path: The file.
    """

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
        _logger.warning(
            "calls are not recorded in %s now: %s; %d records are lost, up to %d wait; calls go on",
            *(self._path, _reason(error), self._take(), MAX_WAITING),
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


def _reason(error: Exception) -> str:
    reason = error.details.get("reason") if isinstance(error, RoomException) else None
    return str(reason or error)
