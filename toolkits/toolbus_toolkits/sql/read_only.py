"""A SQLite connection that can only read, and only for a limited time.

SQLite itself refuses everything else: the file is opened read-only, and an authorizer that denies
by default checks each action of a statement before it runs. A progress handler stops queries that
take too long or whose call was cancelled.

Limits: one call of one SQL function, and the expansion of nested expressions before a statement
runs, cannot be interrupted. Ordinary statements are far from where that matters; a host with
untrusted callers needs a memory limit for its process. Reading a file in WAL mode, SQLite keeps its
own `-wal` and `-shm` files beside it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolbus import ToolFailed

__all__ = ["ReadLimits", "guarded_connection", "never"]

_OPCODES_BETWEEN_CHECKS = 1_000  # well under a millisecond of SQLite's work
_LOCK_WAIT_S = 1.0

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_DENIED_FUNCTIONS = frozenset(
    {
        *("load_extension", "edit", "readfile", "writefile", "lsmode", "fsdir", "sqlite_log"),
        *("fts3_tokenizer", "fts5", "optimize"),  # they return pointers, or rewrite an index
    }
)
_DESCRIBING_PRAGMAS = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "foreign_key_list"),
        *("index_info", "index_xinfo", "index_list"),
    }
)
# Full-text and R-tree tables use these themselves while they are read.
_BARE_PRAGMAS = frozenset({"data_version", "page_size"})

_ACTIONS = {
    getattr(sqlite3, f"SQLITE_{name}"): name.replace("_", " ")
    for name in (
        *("INSERT", "UPDATE", "DELETE", "TRANSACTION", "SAVEPOINT", "ATTACH", "DETACH", "PRAGMA"),
        *("CREATE_TABLE", "CREATE_INDEX", "CREATE_VIEW", "CREATE_TRIGGER", "CREATE_VTABLE"),
        *("CREATE_TEMP_TABLE", "CREATE_TEMP_INDEX", "CREATE_TEMP_VIEW", "CREATE_TEMP_TRIGGER"),
        *("DROP_TABLE", "DROP_INDEX", "DROP_VIEW", "DROP_TRIGGER", "DROP_VTABLE"),
        *("ALTER_TABLE", "REINDEX", "ANALYZE", "FUNCTION"),
    )
}

_ASK_THE_HOST = "the operator of this toolkit has to check its file"
_HINTS = {
    "SQLITE_TOOBIG": "leave the column with the large value out of the query",
    "SQLITE_BUSY": "another process is writing to the file, try again",
    "SQLITE_LOCKED": "another process is writing to the file, try again",
    "SQLITE_CANTOPEN": _ASK_THE_HOST,
    "SQLITE_CORRUPT": _ASK_THE_HOST,
    "SQLITE_IOERR": _ASK_THE_HOST,
    "SQLITE_NOTADB": _ASK_THE_HOST,
}


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How long one call may take, and how much it may return."""

    time_s: float = 10.0
    """How long SQLite may work for one call."""
    max_rows: int = 1_000
    """Rows of one result, whatever the caller requests."""
    max_cell_bytes: int = 8 * 1024
    """Longer text is cut, and the result is marked as truncated."""
    max_result_bytes: int = 448 * 1024
    """Rows beyond this size, as JSON, are left out, and the result is marked as truncated."""
    max_value_bytes: int = 1024 * 1024
    """Values that SQLite reads or computes. A larger one ends the query."""
    max_sql_bytes: int = 64 * 1024
    """Length of one statement."""


def never() -> bool:
    """Return False: the call is not cancelled."""
    return False


@contextmanager
def guarded_connection(
    database: Path, limits: ReadLimits, *, stopped: Callable[[], bool] = never
) -> Iterator[sqlite3.Connection]:
    """Open a connection that can only read, and close it at the end of the block.

    An error of SQLite in the block is raised as `ToolFailed` with SQLite's message. `stopped` is
    called while SQLite works, on the thread of the block; once it returns True the query ends.
    """
    guard = _Guard(limits.time_s, stopped)
    try:
        connection = sqlite3.connect(
            # `as_uri` escapes the file's name, so that no name can add a URI parameter.
            f"{database.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=_LOCK_WAIT_S,
            isolation_level=None,
            cached_statements=0,
        )
        with closing(connection):
            connection.set_progress_handler(guard.must_stop, _OPCODES_BETWEEN_CHECKS)
            _restrict(connection, limits)
            _connect_virtual_tables(connection)
            connection.set_authorizer(guard.authorize)
            yield connection
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError, MemoryError) as error:
        raise guard.failure(error) from error


class _Guard:
    """What one connection may read and for how long, and why it was stopped."""

    def __init__(self, time_s: float, stopped: Callable[[], bool]) -> None:
        self._time_s = time_s
        self._ends_at = time.monotonic() + time_s
        self._stopped = stopped
        self._stopped_for = ""
        self._refused = ""

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Allow reading, deny everything else. SQLite calls this before each action."""
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = first in _DESCRIBING_PRAGMAS or (first in _BARE_PRAGMAS and second is None)
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = (second or "").lower() not in _DENIED_FUNCTIONS
        else:
            allowed = action in _ALLOWED
        if allowed:
            return sqlite3.SQLITE_OK
        subject = second if action == sqlite3.SQLITE_FUNCTION else first
        self._refused = self._refused or f"{_ACTIONS.get(action, 'this')} {subject or ''}".strip()
        return sqlite3.SQLITE_DENY

    def must_stop(self) -> bool:
        """Whether the call was cancelled or its time is over."""
        if self._stopped():
            self._stopped_for = "the query was stopped, because its call was cancelled"
        elif time.monotonic() >= self._ends_at:
            self._stopped_for = (
                f"the query was stopped after {self._time_s:g} s: "
                "narrow it with WHERE, or read fewer rows"
            )
        return bool(self._stopped_for)

    def failure(self, error: BaseException) -> ToolFailed:
        """Make an error for the caller: SQLite's message, and what to do about it."""
        code = str(getattr(error, "sqlite_errorname", type(error).__name__))
        primary = "_".join(code.split("_")[:2])
        message = f"SQLite: {error}" if str(error) else f"SQLite: {code}"
        if self._stopped_for:
            message = self._stopped_for
        elif self._refused:
            message = f"only reading is allowed here, SQLite refused {self._refused}: {error}"
        elif primary in _HINTS:
            message = f"{message}; {_HINTS[primary]}"
        retryable = primary in ("SQLITE_BUSY", "SQLITE_LOCKED")
        return ToolFailed(message, retryable=retryable, details={"sqlite": code})


def _restrict(connection: sqlite3.Connection, limits: ReadLimits) -> None:
    connection.execute("PRAGMA query_only=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    for category, limit in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.max_value_bytes),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.max_sql_bytes),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 1_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(category, limit)
    # Not every file is valid UTF-8; an invalid byte becomes one replacement character.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")


def _connect_virtual_tables(connection: sqlite3.Connection) -> None:
    # A virtual table declares itself when it is first used, and the authorizer would see an UPDATE
    # of the schema. Done here, before there is an authorizer, so that it can deny every UPDATE.
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0"
    names = [name for (name,) in connection.execute(query)]
    names += ["json_each", "json_tree", *(f"pragma_{name}" for name in sorted(_DESCRIBING_PRAGMAS))]
    for name in names:
        quoted = '"{}"'.format(name.replace('"', '""'))
        with suppress(sqlite3.OperationalError):  # a module that this build of SQLite lacks
            connection.execute(f"EXPLAIN SELECT 1 FROM {quoted}").close()
