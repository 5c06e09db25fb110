"""The file of the notes of all askers: appended, searched by their words, forgotten. Blocking.

The notes of one asker are one range of row ids, and every statement is about such a range. So a
search reads nothing of others, and the id of a note, its place in the range, means nothing to them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from math import log
from pathlib import Path
from unicodedata import normalize

from toolbus import ToolFailed, Unavailable
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Executed
from toolbus.sqlite_files import FileKind, SqliteFile, is_locked

__all__ = ["MAX_HITS", "MAX_WORDS", "MemoryUnavailable", "Note", "Notes"]

_logger = bounded_logger(__name__)

MAX_HITS = 1_000
"""Notes that are ranked for each word, the newest ones: to rank 100,000 takes some 100 ms."""
MAX_WORDS = 32
"""Words of a query that count: each is a search of its own."""
_SPAN = 2**32
"""Row ids of one asker."""
_WORD = re.compile(r"[^\W_]+")


class MemoryUnavailable(Unavailable):
    """The file of notes cannot be opened; `details` has `path` and `reason`."""

    next_step: str = "name a file in an existing folder that you may write, or remove the cause"


_KIND = FileKind(
    what="the file of notes",
    application=0x74626D65,
    version=1,
    create=(
        # Rows stay when all notes are forgotten, so that `last` counts on.
        "CREATE TABLE IF NOT EXISTS askers (number INTEGER PRIMARY KEY, asker TEXT NOT NULL UNIQUE,"
        " last INTEGER NOT NULL)",
        "CREATE VIRTUAL TABLE IF NOT EXISTS notes USING fts5(text, tags, time UNINDEXED,"
        " tokenize = 'porter unicode61 remove_diacritics 2')",
    ),
    error=MemoryUnavailable,
    is_durable=True,
)
_FIND = "SELECT number, last FROM askers WHERE asker = ?"
_COUNT = (
    "INSERT INTO askers (asker, last) VALUES (?, 1) ON CONFLICT (asker) DO UPDATE SET last = last+1"
)
_ADD = "INSERT INTO notes (rowid, text, tags, time) VALUES (?, ?, ?, ?)"
_REMOVE = "DELETE FROM notes WHERE rowid = ?"
_READ = "SELECT text, tags, time FROM notes WHERE rowid = ?"
_NEWEST = "SELECT rowid FROM notes WHERE rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?"
_HITS = (
    "SELECT rowid FROM notes WHERE rowid BETWEEN ? AND ? AND notes MATCH ?"
    " ORDER BY rowid DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Note:
    """A note that was found."""

    id: int
    text: str
    tags: list[str]
    when: str
    """When it was appended, as ISO 8601 in UTC."""


class Notes:
    """The notes in a SQLite file; for one thread at a time.

    The methods about notes raise `ToolFailed`, with the reason and without the path of the file;
    `executed` says whether anything was written.

    Args:
        path: The file. It is created, with mode 0600, if it does not exist.
        max_bytes: How large it may become.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._file = SqliteFile(path, _KIND)
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Open the file. Raises `MemoryUnavailable`."""
        self._file.connection()

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._file.close()

    def append(self, asker: str, text: str, tags: Sequence[str]) -> int:
        """Add a note, and return its id, which no other note of the asker ever has."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as connection:
            pages, free, page_bytes = (
                connection.execute(f"PRAGMA {fact}").fetchone()[0]
                for fact in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * page_bytes >= self._max_bytes:
                text = "the memory is full: forget notes that nobody needs"
                raise ToolFailed(text, executed="no")
            connection.execute(_COUNT, (asker,))
            number, last = connection.execute(_FIND, (asker,)).fetchone()
            row = (number * _SPAN + last, text, json.dumps([*tags], ensure_ascii=False), time)
            connection.execute(_ADD, row)
        return int(last)

    def forget(self, asker: str, note: int) -> None:
        """Remove a note."""
        with self._transaction() as connection:
            number, last = connection.execute(_FIND, (asker,)).fetchone() or (0, 0)
            # Beyond `last` are the notes of others.
            is_there = 0 < note <= last
            if not (is_there and connection.execute(_REMOVE, (number * _SPAN + note,)).rowcount):
                raise ToolFailed(f"there is no note {note}", executed="no")

    def text_of(self, asker: str, note: int) -> str:
        """Return the text of a note; empty if there is none."""
        try:
            connection = self._file.connection()
            number, last = connection.execute(_FIND, (asker,)).fetchone() or (0, 0)
            if not 0 < note <= last:  # beyond `last` are the notes of others
                return ""
            rows = connection.execute(_READ, (number * _SPAN + note,))
            return str(next(rows, ("",))[0])
        except (sqlite3.Error, MemoryUnavailable) as error:
            raise self._failure(error, "no") from error

    def search(self, asker: str, query: str, limit: int) -> list[Note]:
        """Return the notes that have any word of a query, the best first.

        A word counts the more the fewer notes have it; of equals the newest is the best. An empty
        query finds the newest.
        """
        try:
            return self._found(self._file.connection(), asker, query, limit)
        except (sqlite3.Error, MemoryUnavailable) as error:
            raise self._failure(error, "no") from error

    def _found(
        self, connection: sqlite3.Connection, asker: str, query: str, limit: int
    ) -> list[Note]:
        number, _ = connection.execute(_FIND, (asker,)).fetchone() or (None, 0)
        if number is None:
            return []
        first = number * _SPAN
        bounds = (first, first + _SPAN - 1)
        scores: defaultdict[int, float] = defaultdict(float)
        if not query.strip():
            scores |= {row: 0.0 for (row,) in connection.execute(_NEWEST, (*bounds, limit))}
        words = dict.fromkeys(_WORD.findall(normalize("NFC", query).lower()))
        for word in islice(words, MAX_WORDS):
            # Quoted, so that no word is an operator of FTS5.
            hits = connection.execute(_HITS, (*bounds, f'"{word}"', MAX_HITS)).fetchall()
            for (row,) in hits:
                scores[row] += log(1 + MAX_HITS / len(hits))
        found = []
        for row in nlargest(limit, scores, key=lambda row: (scores[row], row)):
            for text, tags, time in connection.execute(
                _READ, (row,)
            ):  # none if it is forgotten now
                found.append(Note(row - first, text, json.loads(tags), time))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        executed: Executed = "no"
        try:
            with self._file.transaction() as connection:
                yield connection
                executed = "maybe"  # what fails now is the commit
        except (sqlite3.Error, MemoryUnavailable) as error:
            raise self._failure(error, executed) from error

    def _failure(self, error: Exception, executed: Executed) -> ToolFailed:
        """Return the error for a caller, and log the one for the operator."""
        reason = error.details["reason"] if isinstance(error, MemoryUnavailable) else str(error)
        may_be_free_later = is_locked(error.__cause__ or error)
        if not may_be_free_later:
            self._file.close()
        _logger.warning("the file of notes %s: %s", self._file.path, reason)
        text = f"the memory cannot be used: {reason}"
        return ToolFailed(text, executed=executed, retryable=may_be_free_later)
