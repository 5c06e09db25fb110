"""The state of tokens in a folder of one server: further lives and revocations."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from toolbus.auth.tokens import LEEWAY_S
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.diagnostics.exit_codes import with_step
from toolbus.errors import Unavailable
from toolbus.sqlite_files import FileKind, SqliteFile
from toolbus_server.access.extensions import TokenKey
from toolbus_server.access.revocations import Revocation
from toolbus_server.access.state_writer import StateBatch, StateWriter
from toolbus_server.registry.models import Identity

__all__ = ["FolderUnavailable", "StateFolder"]

_CREATE = (
    "CREATE TABLE extensions (issuer TEXT, jti TEXT, ends_at REAL NOT NULL,"
    " PRIMARY KEY (issuer, jti)) WITHOUT ROWID",
    # Of one token by `jti`, else of an identity.
    "CREATE TABLE revocations (issuer TEXT, name TEXT, jti TEXT, at REAL NOT NULL,"
    " ends_at REAL NOT NULL, PRIMARY KEY (issuer, name, jti)) WITHOUT ROWID",
)
_THREADS = WorkerThreads("state of tokens", 1)


class FolderUnavailable(Unavailable):
    """The folder of `--state` cannot be used."""

    next_step = "name a folder in which this user can write, or remove the cause"


_KIND = FileKind(
    "the state of tokens",
    0x746F6B73,  # "toks"
    1,
    _CREATE,
    FolderUnavailable,
    is_durable=True,
)


class StateFolder:
    """A folder with the state of tokens, which one server uses at a time; `open` opens it."""

    @classmethod
    async def open(cls, folder: Path) -> Self:
        """Open a folder, which is made if it does not exist.

        Raises `FolderUnavailable` if it cannot be used, or another server uses it.
        """
        return await _THREADS.run(cls, folder, undo=cls.close)

    def __init__(self, folder: Path) -> None:
        self._lock = _locked(folder)
        self._file = SqliteFile(folder / "tokens.db", _KIND)
        try:
            self._file.connection()
        except BaseException:
            os.close(self._lock)
            raise
        self.writer: StateWriter = StateWriter(self._write, str(folder))
        """Writes to it."""

    async def load(self) -> tuple[list[tuple[TokenKey, float]], list[Revocation]]:
        """Return further lives and revocations that still matter, the oldest first.

        Raises `FolderUnavailable`, and closes the folder, if it cannot be read.
        """
        try:
            return await _THREADS.run(self._load)
        except sqlite3.Error as error:
            await _THREADS.finish(self.close)
            text = f"{self._file.path} cannot be read: {error}"
            raise FolderUnavailable(text, executed="no") from error

    def _load(self) -> tuple[list[tuple[TokenKey, float]], list[Revocation]]:
        connection, now = self._file.connection(), time.time()
        lives = connection.execute(
            "SELECT issuer, jti, ends_at FROM extensions WHERE ends_at > ?", (now - LEEWAY_S,)
        )
        revoked = connection.execute(
            "SELECT issuer, name, jti, at, ends_at FROM revocations WHERE ends_at > ? ORDER BY at",
            (now,),
        )
        return (
            [((issuer, jti), end) for issuer, jti, end in lives],
            [
                Revocation(jti or Identity(issuer, name), at, ends_at)
                for issuer, name, jti, at, ends_at in revoked
            ],
        )

    async def aclose(self, limit_s: float) -> None:
        """Write what waits, and let another server use the folder."""
        await self.writer.aclose(limit_s)
        await _THREADS.finish(self.close)

    def close(self) -> None:
        """Let another server use the folder; blocking."""
        self._file.close()
        os.close(self._lock)

    async def _write(self, batch: StateBatch) -> None:
        await _THREADS.run(self._commit, batch)

    def _commit(self, batch: StateBatch) -> None:
        now = time.time()
        with self._file.transaction() as connection:
            connection.executemany(
                "INSERT INTO extensions VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
                " SET ends_at = max(ends_at, excluded.ends_at)",
                ((*key, end) for key, end in batch.ends.items()),
            )
            connection.executemany(
                "INSERT INTO revocations VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET at = max(at, excluded.at), ends_at = max(ends_at, excluded.ends_at)",
                _rows(batch),
            )
            connection.execute("DELETE FROM extensions WHERE ends_at <= ?", (now - LEEWAY_S,))
            connection.execute("DELETE FROM revocations WHERE ends_at <= ?", (now,))


def _rows(batch: StateBatch) -> Iterator[tuple[str, str, str, float, float]]:
    for target, at, ends_at in batch.revocations:
        if isinstance(target, str):
            yield "", "", target, at, ends_at
        else:
            yield target.issuer, target.name, "", at, ends_at


def _locked(folder: Path) -> int:
    """Make and lock the folder; return a descriptor that holds the lock."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = f"the folder {folder} cannot be used: {error.strerror}"
        raise FolderUnavailable(text, executed="no") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        in_use = FolderUnavailable(f"another server uses the folder {folder}", executed="no")
        raise with_step(in_use, "stop that server; to share state give all --redis") from None
    return lock
