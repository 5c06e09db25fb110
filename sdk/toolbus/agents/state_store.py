"""Where conversations are stored: `StateStore` is the contract, `SqliteStateStore` a file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import TooLarge, Unavailable
from toolbus.forked_children import call_in_children
from toolbus.sqlite_files import FileKind, SqliteFile, is_locked

__all__ = [
    "MAX_STATE_CHARS",
    "Entry",
    "SqliteStateStore",
    "StateStore",
    "StateStoreUnavailable",
    "asker_of",
    "beyond_shares",
]

_Key = TypeVar("_Key")


class Entry(NamedTuple, Generic[_Key]):
    """Something that is held for an asker."""

    key: _Key
    asker: str
    size: int


def asker_of(key: str) -> str:
    """Return who asks and for whom, from the key of a conversation.

    That is all but the name at the end. Quotes within a name have a backslash before them, so that
    the separator occurs in it only with the quote that ends the name.
    """
    return key[:-2].rpartition(', "')[0]


def beyond_shares(entries: Sequence[Entry[_Key]], most: int, most_bytes: int) -> list[Entry[_Key]]:
    """Return the entries that have to go so that the others are within two limits.

    As long as there is too much, the asker who has the most loses an entry, its oldest one. Of
    askers who have as much, the one loses whose entry is the oldest. They are given and returned
    the newest first.
    """
    too_large = _beyond(entries, lambda entry: entry.size, most_bytes)
    left = [entry for at, entry in enumerate(entries) if at not in too_large]
    too_many = _beyond(left, lambda entry: 1, most)
    return [entries[at] for at in too_large] + [left[at] for at in too_many]


def _beyond(
    entries: Sequence[Entry[_Key]], weight: Callable[[Entry[_Key]], int], limit: int
) -> set[int]:
    """Return the indices of the entries beyond one limit.

    The rank of an entry is what its asker has of it and of all that is newer. It goes before those
    of lower rank: these stay longest, so they are counted first.
    """
    if sum(map(weight, entries)) <= limit:
        return set()
    shares: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for at, entry in enumerate(entries):
        shares[entry.asker] += weight(entry)
        ranked.append((shares[entry.asker], at))
    total = 0
    beyond: set[int] = set()
    for _, at in sorted(ranked):
        total += weight(entries[at])
        if total > limit:
            beyond.add(at)
    return beyond


_logger = bounded_logger(__name__)

MAX_STATE_CHARS: Final = 64 * 1024 * 1024
"""Of a state that is saved or read.

Far above what an agent keeps of a conversation by default, 8 MiB, and above a question with all the
files that a provider takes. It bounds memory and time that a file from elsewhere can take. It is a
number of characters since these are known without a look at each.
"""
_MAX_BYTES = 4 * MAX_STATE_CHARS
"""Such a state in UTF-8; known without reading the row, which another program may have written."""
_LOCKED_ATTEMPTS = 5
"""How often a write waits a second for a lock: agents that share a file save large states in turn,
and SQLite does not let them wait in a line."""


class StateStore(Protocol):
    """Keeps the text of a state for each key. An agent calls it for one key once at a time."""

    async def load(self, key: str) -> str | None:
        """Return the text that was saved last; None if there is none.

        An empty text says that the store has forgotten one: then the agent tells it to the asker.
        """

    async def save(self, key: str, text: str) -> None:
        """Keep a text in place of the former one. It is stored even if this task is cancelled."""

    async def delete(self, key: str) -> None:
        """Forget a text, if there is one."""

    async def aclose(self) -> None:
        """Wait until all is written, and release what is held.

        Called when an agent stops; it may start again, and use the store again.
        """


class StateStoreUnavailable(Unavailable):
    """The file of states cannot be opened, read or written; `details` has `path` and `reason`."""

    next_step: str = "name a file in an existing folder that you may write, or remove the cause"


_STATES = FileKind(
    what="the file of states",
    application=0x74627374,
    version=1,
    # As bytes: their number is known without reading them.
    create=("CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, state BLOB NOT NULL)",),
    error=StateStoreUnavailable,
    is_durable=True,
)
# A text that is not Unicode is kept as it is: it must not fail the others of its transaction.
_CODEC = ("utf-8", "surrogatepass")
# A new row each time, so that rows are in the order in which they were last saved.
_SAVE = "INSERT INTO states VALUES (?, ?)"
_DELETE = "DELETE FROM states WHERE key = ?"
_SIZE = "SELECT length(state) FROM states WHERE key = ?"
_LOAD = "SELECT state FROM states WHERE key = ?"
# Of a state that is forgotten the key stays, with an empty text.
_FORGET = "UPDATE states SET state = x'' WHERE rowid = ?"
_FORGET_KEY = "DELETE FROM states WHERE rowid = ?"
_ENTRIES = (
    "SELECT rowid, key, length(key) + length(state) FROM states WHERE (state = x'') = ?"
    " ORDER BY rowid DESC"
)
_TOTALS = "SELECT count, bytes FROM totals WHERE forgotten = ?"
# Not made with the file, which a version without them may have written. SQLite counts rows by
# reading them, and large ones are spread over the file.
_ADD_TO_TOTALS = (
    "UPDATE totals SET count = count + 1, bytes = bytes + length(new.key) + length(new.state)"
    " WHERE forgotten = (new.state = x'')"
)
_TAKE_FROM_TOTALS = (
    "UPDATE totals SET count = count - 1, bytes = bytes - length(old.key) - length(old.state)"
    " WHERE forgotten = (old.state = x'')"
)
_CREATE_TOTALS = (
    "CREATE TABLE totals (forgotten INTEGER PRIMARY KEY, count INTEGER, bytes INTEGER)",
    "INSERT INTO totals SELECT 0, count(*), total(length(key) + length(state)) FROM states",
    "INSERT INTO totals VALUES (1, 0, 0)",
    f"CREATE TRIGGER added AFTER INSERT ON states BEGIN {_ADD_TO_TOTALS}; END",
    f"CREATE TRIGGER removed AFTER DELETE ON states BEGIN {_TAKE_FROM_TOTALS}; END",
    "CREATE TRIGGER changed AFTER UPDATE ON states"
    f" BEGIN {_TAKE_FROM_TOTALS}; {_ADD_TO_TOTALS}; END",
)
_HAS_TOTALS = "SELECT count(*) FROM sqlite_master WHERE name = 'totals'"


class _Batch:
    """What is written in one transaction: the last text of each key, None to forget it."""

    def __init__(self) -> None:
        self.states: dict[str, str | None] = {}
        self.is_done = False
        self.error: Unavailable | None = None


class SqliteStateStore:
    """States in a SQLite file, which only the user can read.

        async with Agent(room, model, name="helper", store=SqliteStateStore("helper.db")):
            await room.closed()

    A thread of its own does all the work on the file, which is opened when it is first used: by an
    agent when it starts, so that one that cannot be used stops it then. What is saved while it
    writes is written together, so that many conversations cost one wait for the disk. A state that
    was saved outlives the program, and a loss of power.

    Several agents, also in several processes, may use one file at a time. They do not disturb each
    other unless they save states of the same key, of which the last one stays. An agent does not
    see what another one saves while it has the conversation in memory: give each its own file.

    Where states are too many, or too large together, a tenth is forgotten: the oldest ones of those
    askers who have the most. Their keys stay, of at most as many, so that an asker learns of it.

    Args:
        path: The file. It is created, with mode 0600, if it does not exist.
        max_states: How many states it has at most.
        max_bytes: How large they are at most together, with their keys.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_states: int = 100_000,
        max_bytes: int = 2**30,
    ) -> None:
        self._path = Path(path).absolute()
        self._max_states = max_states
        self._max_bytes = max_bytes
        self._file = SqliteFile(self._path, _STATES)
        self._threads = WorkerThreads("states", 1)
        self._lock = threading.Lock()
        self._batch = _Batch()
        """What the next transaction writes. The event loop fills it and the thread takes it, under
        the lock, which nobody holds while anything is written."""
        call_in_children(self._restart_in_child)

    def __repr__(self) -> str:
        return f"<SqliteStateStore {self._path}>"

    def _restart_in_child(self) -> None:
        self._lock = threading.Lock()
        self._batch = _Batch()  # what waits is the parent's

    def check(self) -> None:
        """Open the file, and close it again. Raises `StateStoreUnavailable`."""
        # Not the file that the thread uses: a connection belongs to its thread.
        file = SqliteFile(self._path, _STATES)
        file.connection()
        file.close()

    async def __aenter__(self) -> Self:
        """Open the file now. Raises `StateStoreUnavailable`."""
        await self._threads.run(self._file.connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def load(self, key: str) -> str | None:
        """Return the text that was saved last; None if there is none, "" if it is forgotten.

        Raises `StateStoreUnavailable`, also for one that is larger than any that `save` takes.
        """
        return await self._threads.run(self._load, key)

    async def save(self, key: str, text: str) -> None:
        """Keep a text in place of the former one; it is on the disk when this returns.

        It is kept also if this task is cancelled. Texts of one key are kept in the order of the
        calls.

        Raises `StateStoreUnavailable`, and `TooLarge` above 64 * 1024 * 1024 characters.
        """
        if len(text) > MAX_STATE_CHARS:
            text = f"a state has at most {MAX_STATE_CHARS} characters, this one has {len(text)}"
            raise TooLarge(text, executed="no")
        await self._put(key, text)

    async def delete(self, key: str) -> None:
        """Forget a text, if there is one. Raises `StateStoreUnavailable`."""
        await self._put(key, None)

    async def aclose(self) -> None:
        """Wait until all is written, and close the file; the next use opens it again."""
        await self._threads.run(self._file.close)  # the thread works in the order of the calls

    async def _put(self, key: str, state: str | None) -> None:
        with self._lock:
            batch = self._batch
            batch.states[key] = state
        try:
            await self._threads.run(self._write, batch)
        except asyncio.CancelledError:
            # Work that had not begun was withdrawn. It begins again at once: nothing that comes
            # after it can be written before it, since the batch is the same one until then.
            if not batch.is_done:
                await self._threads.finish(self._write, batch)
            raise

    # On the thread

    def _write(self, batch: _Batch) -> None:
        """Write a batch, once for all who wait for it. Raises `StateStoreUnavailable`."""
        if not batch.is_done:
            with self._lock:
                self._batch = _Batch()
            try:
                self._write_states(batch.states)
            except Unavailable as error:
                batch.error = error
            batch.is_done = True
        if batch.error is not None:
            # An error of its own for each: a traceback belongs to one task.
            reason = batch.error.details["reason"]
            raise _STATES.unavailable(self._path, reason) from batch.error

    def _write_states(self, states: dict[str, str | None]) -> None:
        attempts = _LOCKED_ATTEMPTS
        while True:
            try:
                with self._file.transaction() as connection:
                    if not connection.execute(_HAS_TOTALS).fetchone()[0]:
                        for statement in _CREATE_TOTALS:
                            connection.execute(statement)
                    for key, state in states.items():
                        connection.execute(_DELETE, (key,))
                        if state is not None:
                            connection.execute(_SAVE, (key, state.encode(*_CODEC)))
                    self._make_room(connection, states.keys())
                return
            except sqlite3.Error as error:
                attempts -= 1
                if not (is_locked(error) and attempts):
                    raise self._unavailable(error) from error

    def _make_room(self, connection: sqlite3.Connection, written: Collection[str]) -> None:
        """Forget states if they are too many or too large, and then keys of forgotten ones.

        What is written now stays. To look at all rows takes some tenths of a second, so that a
        tenth of what is permitted is forgotten at once.
        """
        for is_forgotten, statement, max_bytes in (
            (False, _FORGET, self._max_bytes),
            (True, _FORGET_KEY, self._max_bytes // 10),
        ):
            count, size = connection.execute(_TOTALS, (is_forgotten,)).fetchone()
            if count <= self._max_states and size <= max_bytes:
                continue
            rows = connection.execute(_ENTRIES, (is_forgotten,))
            entries = [Entry((row, key), asker_of(key), size) for row, key, size in rows]
            beyond = beyond_shares(entries, self._max_states * 9 // 10, max_bytes * 9 // 10)
            gone = [(row,) for (row, key), *_ in beyond if key not in written]
            connection.executemany(statement, gone)
            if not is_forgotten:
                text = "%s is full: %d of %d states are forgotten, of askers who have the most"
                _logger.warning(text, self._path, len(gone), count)

    def _load(self, key: str) -> str | None:
        try:
            connection = self._file.connection()
            size = connection.execute(_SIZE, (key,)).fetchone()
            if size is None:
                return None
            if size[0] > _MAX_BYTES:
                raise ValueError(f"a state in it is larger than {_MAX_BYTES} bytes")
            row = connection.execute(_LOAD, (key,)).fetchone()
            if row is None:  # another process has deleted it since
                return None
            if not isinstance(row[0], bytes):
                raise ValueError("a state in it is no text")
            return row[0].decode(*_CODEC)
        except (sqlite3.Error, ValueError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        if not is_locked(error):  # a locked file can be read
            self._file.close()
        return _STATES.unavailable(self._path, str(error))
