"""Files that only the user can read, and a lock between processes. POSIX only."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolbus.atomic_file import write_atomically
from toolbus_toolkits.credentials.model import StoreUnavailable

__all__ = ["locked", "read_private", "write_private"]

MAX_FILE_BYTES = 32 * 1024 * 1024
"""It is read into memory as a whole, also if another program has filled it."""


def read_private(path: Path, what: str) -> bytes | None:
    """Return the content of a file; None if there is none.

    Raises `StoreUnavailable` if others can read it, if it is too large, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
                raise StoreUnavailable(
                    f"other users can access {what} {path}: it must be yours alone, "
                    f"`chmod 600 {shlex.quote(str(path))}`"
                )
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot read {what} {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise StoreUnavailable(f"{what} {path} is larger than {MAX_FILE_BYTES} bytes")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Replace a file. Raises `StoreUnavailable`."""
    try:
        write_atomically(path, data, mode=0o600, sync=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Let one process at a time change the credentials of a folder, which is created."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(home / "credentials.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"TOOLBUS_HOME: cannot write {home}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
