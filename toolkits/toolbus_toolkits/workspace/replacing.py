"""Replaces a file as a whole: a reader sees the old one or the complete new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress

from toolbus_toolkits.workspace.locating import Location

__all__ = ["replaced"]


def replaced(location: Location, pieces: Iterable[bytes]) -> None:
    """Write a file in one step. Folders that are missing are made.

    A new file has the permissions that the umask leaves; one that is replaced keeps its own.

    Args:
        location: Where it is; what is there is replaced.
        pieces: Its bytes.

    Raises `OSError`: the file is as it was.
    """
    folder = os.dup(location.folder)
    try:
        for name in location.missing:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        draft = f".{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
            try:
                for piece in pieces:
                    file.write(piece)
                if location.status is not None:
                    os.fchmod(file.fileno(), location.status.st_mode & 0o7777)
                file.close()
                os.rename(draft, location.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)
                raise
    finally:
        os.close(folder)
