"""Finds again, through folders that are open, the files that rg has named.

Each name is reached from a folder that is held open, name by name, and never through a symlink, as
rg reads no tree behind one. So what is opened is below that folder, whatever is swapped meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from toolbus import ToolContext
from toolbus_toolkits.files.reached import ReachedFiles
from toolbus_toolkits.workspace import Location, SensitivePaths
from toolbus_toolkits.workspace.locating import READ, STEP
from toolbus_toolkits.workspace.watched_tree import MAX_DEPTH

__all__ = ["NewestFiles", "SearchedFolder", "SecretNames", "close_files", "open_files"]

_MAX_KNOWN_FOLDERS = 100_000
"""Whose answer is cached, some 15 MB; that of others is found again for each file."""

Found: TypeAlias = tuple[int, bytes]
"""A file: its negative mtime in ns, so that the newest comes first, and its name from the folder
that was searched, whose parts are separated by `/`."""


class SearchedFolder:
    """What a search begins with: a folder, or a file. It is open until `close`."""

    def __init__(self, location: Location, prefix: str, *, is_secret: bool) -> None:
        self.is_folder: bool = location.is_folder
        self.path: str = location.path
        self.is_secret = is_secret
        self._prefix = prefix
        self._from_root = location.relative
        self.is_root: bool = self._from_root == "."
        self.descriptor: int = location.open_folder() if self.is_folder else location.open_file()
        # A thread goes on for a moment after its call was cancelled: it must not find another
        # folder under the number of this one.
        self._lock = threading.Lock()
        self._is_closed = False

    @classmethod
    def open(
        cls, files: ReachedFiles, path: str | bytes, context: ToolContext | None
    ) -> SearchedFolder:
        """Open what a path names; blocking. Raises `ToolFailed`."""
        with files.at(path, context) as location:
            prefix = files.path_of(location)
            is_secret = bool(files.sensitive.reason(location.path, writes=False))
            return cls(location, "" if prefix == "." else prefix, is_secret=is_secret)

    def shown(self, name: bytes) -> str:
        """Return the path of a file from the first root, or an absolute one; "" is itself."""
        return os.path.join(self._prefix, os.fsdecode(name)) if name else self._prefix or "."

    def from_root(self, name: bytes) -> str:
        """Return the path of a file from the root that it is in; "" is itself."""
        if not name:
            return self._from_root
        path = os.fsdecode(name)
        return path if self._from_root == "." else f"{self._from_root}/{path}"

    def existing_start(self, pattern: str) -> str:
        """Return the first names of a pattern that exist as they are written; blocking.

        One with `*` or `?` is never one of them: a file of that name must not hide all others.
        """
        names = pattern.removeprefix("/").split("/")
        start = pattern[: pattern.startswith("/")]
        with self.walk() as walk:
            for at, name in enumerate(names):
                if "*" in name or "?" in name:
                    break
                try:
                    above = walk.enter(os.fsencode("/".join(names[:at])))
                    os.lstat(os.fsencode(name), dir_fd=above)
                except OSError as error:
                    _check_is_gone(error)
                    break
                except ValueError:  # NUL, or no text
                    break
                start += f"/{name}" if at else name
        return start

    @contextmanager
    def walk(self) -> Iterator[_Walk]:
        """Go into its folders, on a thread. Raises `OSError` when it is closed."""
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, "the search has ended")
            walk = _Walk(self.descriptor)
            try:
                yield walk
            finally:
                walk.close()

    def close(self) -> None:
        """Close it, once no thread is in it."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.descriptor)


class _Walk:
    """The folders that are open, from the one that is searched to where the last file was."""

    def __init__(self, descriptor: int) -> None:
        self._descriptors = [descriptor]
        self._names: list[bytes] = []

    def enter(self, folder: bytes) -> int:
        """Return a descriptor of a folder, until the next one. Raises `OSError`."""
        names = folder.split(b"/", MAX_DEPTH) if folder else []
        if b".." in names:  # rg writes none
            raise FileNotFoundError(errno.ENOENT, "it leads upwards")
        shared = 0
        for name, open_name in zip(names, self._names, strict=False):
            if name != open_name:
                break
            shared += 1
        while len(self._names) > shared:
            self._leave()
        for name in names[shared:]:
            self._descriptors.append(os.open(name, STEP, dir_fd=self._descriptors[-1]))
            self._names.append(name)
        return self._descriptors[-1]

    def _leave(self) -> None:
        self._names.pop()
        os.close(self._descriptors.pop())

    def close(self) -> None:
        """Close all folders but the first one, which belongs to who gave it."""
        while self._names:
            self._leave()


def _found_files(walk: _Walk, names: Iterable[bytes]) -> list[Found]:
    """Return those names that are regular files."""
    found: list[Found] = []
    is_file = stat.S_ISREG
    look_at = os.lstat  # a third faster than `os.stat` with its arguments for the same
    folders: dict[bytes, list[bytes]] = {}
    for name in names:
        folder, _, last_name = name.rpartition(b"/")
        folders.setdefault(folder, []).append(last_name)
    # Sorted, those beside each other have most of their folders in common.
    for folder, last_names in sorted(folders.items()):
        start = folder + b"/" if folder else b""
        try:
            descriptor = walk.enter(folder)
        except OSError as error:
            _check_is_gone(error)
            continue
        for name in last_names:
            try:
                status = look_at(name, dir_fd=descriptor)
            except OSError as error:
                _check_is_gone(error)
                continue
            if is_file(status.st_mode):
                found.append((-status.st_mtime_ns, start + name))
    return found


def _check_is_gone(error: OSError) -> None:
    """Raise an error that is not about the file: without descriptors no file would be found."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def open_files(folder: SearchedFolder, names: Iterable[bytes]) -> dict[bytes, int]:
    """Open files for reading; return descriptors by name. What is no regular file is left out.

    Raises `OSError` where this process has too many files open.
    """
    opened: dict[bytes, int] = {}
    try:
        with folder.walk() as walk:
            for _, name in _found_files(walk, names):
                at, _, last_name = name.rpartition(b"/")
                try:
                    descriptor = os.open(last_name, READ, dir_fd=walk.enter(at))
                except OSError as error:
                    _check_is_gone(error)
                    continue
                opened[name] = descriptor
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # swapped since
                    os.close(opened.pop(name))
    except BaseException:
        close_files(opened)
        raise
    return opened


def close_files(opened: dict[bytes, int]) -> None:
    """Close what `open_files` has opened."""
    for descriptor in opened.values():
        os.close(descriptor)


class NewestFiles:
    """The newest of the files that are added.

    `select` returns those of some names that count.
    """

    def __init__(
        self,
        folder: SearchedFolder,
        limit: int,
        select: Callable[[list[bytes]], list[bytes]],
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._select = select
        self._found: list[Found] = []
        self.total: int = 0
        """How many there are."""

    def add(self, names: list[bytes]) -> None:
        """Add those names that are files; blocking."""
        before = len(self._found)
        with self._folder.walk() as walk:
            self._found += _found_files(walk, self._select(names))
        self.total += len(self._found) - before
        if len(self._found) > 4 * self._limit + 1000:  # each is sorted a few times, not each time
            self._cut()

    def newest(self) -> list[bytes]:
        """Return their names, the newest first; those of the same time by name."""
        self._cut()
        return [name for _, name in self._found]

    def _cut(self) -> None:
        self._found.sort()
        del self._found[self._limit :]


class SecretNames:
    """Which files below a folder hold secrets, by their names. Used by one thread at a time.

    Args:
        folder: The folder that is searched. If it is one with secrets, somebody has asked for what
            is in it, so nothing below it counts as secret.
        sensitive: What knows the names.
    """

    def __init__(self, folder: SearchedFolder, sensitive: SensitivePaths) -> None:
        self._sensitive = sensitive
        self._may_end_secret = sensitive.may_end_secret
        self._path = folder.path
        self._folders: dict[bytes, bool] = {b"": False}
        self._counts_none = folder.is_secret

    def has(self, name: bytes) -> bool:
        """Whether a file holds secrets, by its name from the folder."""
        return not self._counts_none and self._is_secret(name)

    def _is_secret(self, name: bytes) -> bool:
        folder, _, last_name = name.rpartition(b"/")
        is_below = self._folders.get(folder)
        if is_below is None:
            is_below = self._is_secret(folder)
            if len(self._folders) < _MAX_KNOWN_FOLDERS:
                self._folders[folder] = is_below
        if is_below or not self._may_end_secret(last_name):
            return is_below
        path = os.path.join(self._path, os.fsdecode(name))
        return bool(self._sensitive.reason(path, writes=False))
