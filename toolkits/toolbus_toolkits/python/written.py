"""Which files code has written below a folder, and their bytes. The functions block."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice

from toolbus import FileChunk
from toolbus.chunks.chunk_types import media_type_of
from toolbus.chunks.result_parts import MAX_JOINED_BYTES
from toolbus.untrusted_text import one_line
from toolbus.wire import MAX_FRAME_BYTES
from toolbus_toolkits.workspace import Roots, SensitivePaths, UnresolvedPath, located

__all__ = ["MAX_NAMES", "files_of", "now_ns", "written_since"]

_MAX_ENTRIES = 10_000
"""Each call looks at all of them, which takes 15 ms."""
MAX_NAMES = 200
"""Of files in one result, which a model reads."""
_MAX_NAME_CHARS = 500
_SKIPPED = frozenset(("__pycache__", "node_modules", ".git"))
_MAX_FILE_BYTES = MAX_JOINED_BYTES - MAX_FRAME_BYTES
"""Of all files of a result, which has 16 MiB with the rest of it."""


def now_ns() -> int:
    """Return the time that a file gets at least if it is changed from now on."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE, which `time` does not name
    return time.time_ns()


def written_since(root: str, start_ns: int) -> list[str] | None:
    """Return the files below a folder that were written since a time; None if it has too many.

    Known by the time of their last change, which no program can set, so that nobody has to look
    before. Folders of git, node, compiled modules and virtual environments are left out.
    """
    found = []
    left = _MAX_ENTRIES
    folders = [root]
    while folders:
        folder = folders.pop()
        with suppress(OSError), _listed(folder) as scanned:  # it has gone, or is not for this user
            entries = list(islice(scanned, left + 1))
            left -= len(entries)
            if left < 0:
                return None
            if folder != root and any(entry.name == "pyvenv.cfg" for entry in entries):
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED:
                        folders.append(os.path.join(folder, entry.name))
                    continue
                try:
                    changed_ns = entry.stat(follow_symlinks=False).st_ctime_ns
                except OSError:  # it has gone
                    continue
                if changed_ns >= start_ns:
                    found.append(os.path.join(folder, entry.name))
    return sorted(found)


@contextmanager
def _listed(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Give the entries of a folder, and not of another one that code has put in its place."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # A sandbox is Linux's; without one, code may look anywhere itself.
        if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != folder:
            raise NotADirectoryError(folder)
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def files_of(root: str, written: list[str]) -> tuple[list[str], list[FileChunk]]:
    """Return the names of written files, from the root, and those that have room.

    At most 200 are named. Links, FIFOs and such are only named, and so are files that hold secrets
    by their names: another program may have written them meanwhile.
    """
    names = []
    files = []
    left = _MAX_FILE_BYTES
    for path in written[:MAX_NAMES]:
        relative = os.path.relpath(path, root)
        name = one_line(relative, _MAX_NAME_CHARS)
        names.append(name)
        data = None
        if not _sensitive().reason(relative, writes=False):
            with suppress(OSError, UnresolvedPath, ValueError):
                data = _content(path, root, left)
        if data is not None:
            left -= len(data)
            files.append(FileChunk(data, name, media_type_of(name)))
    return names, files


@lru_cache(maxsize=1)
def _sensitive() -> SensitivePaths:
    return SensitivePaths()


def _content(path: str, root: str, most: int) -> bytes | None:
    """Return the bytes of a regular file; None if it has more than `most`."""
    with located(os.fsencode(path), Roots([root])) as location:
        if location.path != path:  # by a link that was put there since
            return None
        with os.fdopen(location.open_file(), "rb") as file:
            data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    return data if data is not None and len(data) <= most else None
