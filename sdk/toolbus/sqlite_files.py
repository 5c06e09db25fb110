"""SQLite files of toolbus: how each is created, opened, checked and written. Blocking.

Source of the pragmas: https://www.sqlite.org/pragma.html. The write-ahead log lets readers and one
writer of several processes use a file at a time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolbus.errors import Unavailable
from toolbus.forked_children import call_in_children

__all__ = ["BUSY_S", "NO_FILE", "FileKind", "SqliteFile", "is_locked"]

BUSY_S = 1.0
"""How long a statement waits for a lock of another process."""
_OPEN_S = 3.0
"""How long opening waits for a lock, and for another process that makes the same file."""
NO_FILE = "it is not a regular file"
# SQLite forbids to use a connection in a forked child, and also to close it there.
_PARENT_CONNECTIONS: list[sqlite3.Connection] = []


@dataclass(frozen=True, slots=True)
class FileKind:
    """What files of one purpose have in common."""

    what: str
    """What a file is called in errors, such as "the file of records"."""
    application: int
    """Its `application_id`, by which files of other programs are refused."""
    version: int
    """Its `user_version`; another one is refused."""
    create: tuple[str, ...]
    """The statements that make its tables; each may run where they are there already."""
    error: type[Unavailable]
    """What is raised for a file that cannot be used."""
    is_durable: bool
    """Whether a transaction outlives a loss of power, not only the end of the program."""
    additions: Callable[[sqlite3.Connection], Iterable[str]] = lambda _: ()
    """Returns the statements that add what a file of an older release lacks, if any. That release
    has to be able to go on with the file: else it is another version."""

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise `ValueError` for a file of another program or version."""
        if connection.execute("PRAGMA application_id").fetchone()[0] != self.application:
            raise ValueError("it is a database of another program")
        if connection.execute("PRAGMA user_version").fetchone()[0] != self.version:
            raise ValueError("a newer version of toolbus has written it")

    def unavailable(self, path: Path, reason: str) -> Unavailable:
        """Make the error for a file that cannot be used; `details` has its `path` and `reason`."""
        return self.error(
            f"{self.what} {path} cannot be used: {reason}",
            executed="no",
            retryable=False,
            details={"path": str(path), "reason": reason},
        )


class SqliteFile:
    """A file that is written by one thread at a time.

    Args:
        path: The file. It is created, with mode 0600, if it does not exist.
        kind: What it is for.
    """

    def __init__(self, path: Path, kind: FileKind) -> None:
        self.path = path
        self._kind = kind
        self._open: tuple[sqlite3.Connection, tuple[int, int]] | None = None
        """The connection, with device and inode of its file."""
        call_in_children(self._forget_parent)

    def connection(self) -> sqlite3.Connection:
        """Return the open file; open it if it is not, or if another file took its place.

        Raises the error of its kind; a file that is locked is waited for, at most three seconds.
        """
        if self._open is not None and self._open[1] != self._identity():
            self.close()
        if self._open is None:
            self._open = self._opened()
        return self._open[0]

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Begin a transaction; commit it, or roll it back after an exception.

        Raises as `connection`, and `sqlite3.Error`.
        """
        connection = self.connection()
        with _transaction(connection):
            yield connection

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._open is not None:
            connection = self._open[0]
            self._open = None
            connection.close()

    def _forget_parent(self) -> None:
        if self._open is not None:
            _PARENT_CONNECTIONS.append(self._open[0])
            self._open = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            facts = self.path.stat()
        except OSError:  # opening it tells the reason
            return None
        return facts.st_dev, facts.st_ino

    def _opened(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        until = time.monotonic() + _OPEN_S
        while True:
            try:
                return self._attempt()
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() >= until:
                    reason = f"{error}{self._missing_permission()}"
                    raise self._kind.unavailable(self.path, reason) from error
                time.sleep(0.05)
            except OSError as error:
                reason = f"{error.strerror or error}{self._missing_permission()}"
                raise self._kind.unavailable(self.path, reason) from error
            except (sqlite3.Error, ValueError) as error:
                raise self._kind.unavailable(self.path, str(error)) from error

    def _missing_permission(self) -> str:
        """Return which permission this process lacks, which SQLite does not say; empty if none."""
        folder = self.path.parent
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return ": this user may not read and write its folder, where its log is"
        if os.path.isfile(self.path) and not os.access(self.path, os.R_OK | os.W_OK):
            return ": this user may not read and write it"
        return ""

    def _attempt(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        # Only a new file is opened here: closing a second descriptor of a database that this
        # process uses would release its locks (https://www.sqlite.org/howtocorrupt.html, 2.2).
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if not self.path.is_file():
                raise ValueError(NO_FILE) from None
        facts = self.path.stat()
        kind = self._kind
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            if _is_empty(connection):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            else:
                kind.check(connection)
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute(f"PRAGMA synchronous = {'FULL' if kind.is_durable else 'NORMAL'}")
            with _transaction(connection):  # fails for a file that may only be read
                is_new = _is_empty(connection)
                if not is_new:  # another program may have made it since
                    kind.check(connection)
                for statement in kind.create if is_new else kind.additions(connection):
                    connection.execute(statement)
                if is_new:
                    connection.execute(f"PRAGMA application_id = {kind.application}")
                    connection.execute(f"PRAGMA user_version = {kind.version}")
        except BaseException:
            connection.close()
            raise
        return connection, (facts.st_dev, facts.st_ino)


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


def _is_empty(connection: sqlite3.Connection) -> bool:
    found: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return found == 0


def is_locked(error: BaseException) -> bool:
    """Whether another connection holds the lock that a statement needs."""
    name = getattr(error, "sqlite_errorname", "")  # errors of the module itself have none
    return str(name).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
