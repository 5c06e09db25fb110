"""Finds what a path names inside a working directory, and holds its folder open.

A path is walked from `/`, name by name: each folder is opened from the one before it, and never
through a symlink. A symlink is read, and its names are walked in place of its own. So the real path
is that of the folders which are open, whatever is swapped meanwhile; what happens to the file then
goes by the open folder and one name, not by the path. Only a path that ends inside of a root is
found; of others not even their existence is revealed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from toolbus_toolkits.workspace.roots import Roots, TooManyLinks, UnresolvedPath, resolve

__all__ = [
    "MAX_TRIES",
    "READ",
    "STEP",
    "FolderMoved",
    "Location",
    "NoFile",
    "OutsideRoots",
    "RootVanished",
    "is_still_at",
    "located",
    "opened_file",
]

# Without O_PATH, which macOS does not have, a folder has to be readable to be entered.
STEP = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO would block, and a terminal would become that of this process.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# Held open on the way, so that `..` seldom has to walk again; 32 threads then need half of the
# usual 1,024 descriptors.
_MAX_OPEN = 16
# Each try fails only if something was swapped within it.
MAX_TRIES = 100
_OF_THIS_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class OutsideRoots(ValueError):
    """A path that leads out of all working directories."""


class NoFile(OSError):
    """What is there is no regular file, but a folder, a FIFO, a socket or a device."""


class FolderMoved(OSError):
    """The folder of a file is no longer where it was found."""


class RootVanished(FileNotFoundError):
    """A working directory does not exist any more."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a path leads, inside of a root. Its descriptors are open while its block runs."""

    path: str
    """The real path."""
    root: str
    """The real path of the root that it is in."""
    folder: int
    """A descriptor of its folder, for `dir_fd`; the last one that exists, if some have to be
    made."""
    missing: tuple[str, ...]
    """The folders that have to be made in `folder`, before `name` can be."""
    name: str
    """Its name in its folder; "." for `/`."""
    status: os.stat_result | None
    """Of what is there, which is no symlink; None if nothing is."""

    @property
    def relative(self) -> str:
        """The path from its root; "." for the root."""
        return self.path[len(self.root) :].lstrip("/") or "."

    @property
    def is_folder(self) -> bool:
        """Whether a folder is there; False where nothing is."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    def open_file(self) -> int:
        """Open the file for reading, and return a descriptor.

        Raises `FileNotFoundError`, `NoFile` for what is no regular file, and other `OSError`s.
        """
        if self.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return opened_file(self.name, self.folder)

    def open_folder(self) -> int:
        """Open the folder for reading, and return a descriptor.

        Raises `FileNotFoundError`, `NotADirectoryError`, and other `OSError`s.
        """
        if self.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return os.open(self.name, READ | os.O_DIRECTORY, dir_fd=self.folder)


def opened_file(name: str, folder: int) -> int:
    """Open a regular file for reading, by its name in an open folder; return a descriptor.

    Raises `NoFile` for what is no regular file, and other `OSError`s; that of a symlink is ELOOP.
    """
    # What is no file is not opened at all: to open some devices does something.
    _require_file(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode, name)
    descriptor = os.open(name, READ, dir_fd=folder)
    try:
        _require_file(os.fstat(descriptor).st_mode, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def located(text: str | bytes, roots: Roots) -> Iterator[Location]:
    """Find what a path names.

    Args:
        text: A path; a relative one is below the first root. As bytes it is one that this system
            gave, in any encoding. With `/` at its end it names a folder that exists.
        roots: The working directories.

    Raises:
        UnresolvedPath: It contains NUL, is no text, is too long, or its symlinks lead nowhere.
        OutsideRoots: It leads out of all roots, whatever is there.
        RootVanished: Its root does not exist any more.
        OSError: A folder on the way is none, or may not be entered.
    """
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    else:
        try:
            text.encode()
        except UnicodeEncodeError:  # surrogates, which JSON may carry
            raise UnresolvedPath("it is no text") from None
    with closing(_Walk()) as walk:
        yield walk.found(text, roots)


def is_still_at(path: str, folder: int) -> bool:
    """Whether the folder that a descriptor has open still has its real path."""
    with closing(_Walk()) as walk:
        return walk.leads_to(path, folder)


class _Walk:
    """The folders that are open on the way of one path, from `/` on.

    Where a name cannot be opened, the walk goes on by names alone: they tell whether the path leads
    out of the roots, and nothing of what is there.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        """Descriptors of the last folders on the way, at most `_MAX_OPEN`."""
        self._names: list[str] = []
        """Those that lead to the last of them."""
        self._stopped: OSError | None = None
        """Why the name that follows is no open folder."""
        self._status: os.stat_result | None = None
        """Of what has that name, if it is there and is no folder."""

    def found(self, text: str, roots: Roots) -> Location:
        """Walk a path; errors are those of `located`."""
        self._open.append(os.open("/", STEP))
        try:
            path = resolve(text, roots.folders[0], self._look)
        except TooManyLinks:
            if roots.contains("/" + "/".join(self._names)):
                raise
            raise OutsideRoots(text) from None
        root = roots.root_of(path)
        if root is None:
            raise OutsideRoots(text)
        names = _names_of(path)
        self._return_to(len(names))
        if self._stopped is None and names and len(self._open) < 2:
            self._walk_again(names)  # the folder above it was closed
        if self._stopped is None:
            status = os.fstat(self._open[-1])
            return Location(path, root, self._open[-2:][0], (), (names or ["."])[-1], status)
        is_absent = isinstance(self._stopped, FileNotFoundError)
        if is_absent and len(self._names) < len(_names_of(root)):
            raise RootVanished(errno.ENOENT, "the root does not exist any more", root)
        missing = tuple(names[len(self._names) : -1])
        is_file = self._status is not None and not missing and path != root
        if text.endswith(("/", "/.")) or not (is_file or is_absent):
            raise self._stopped
        return Location(path, root, self._open[-1], missing, names[-1], self._status)

    def leads_to(self, path: str, folder: int) -> bool:
        """Whether a path without symlinks is that of an open folder."""
        self._walk_again(_names_of(path))
        return not self._stopped and os.path.samestat(os.fstat(self._open[-1]), os.fstat(folder))

    def close(self) -> None:
        self._stopped = None  # if it is raised, its traceback holds this walk
        while self._open:
            os.close(self._open.pop())

    def _look(self, step: str) -> str:
        """Go on to a name, in the folder that the names before it lead to.

        Returns where it leads if it is a symlink, else "".
        """
        self._return_to(step.count("/") - 1)
        return "" if self._stopped else self._enter(step[step.rindex("/") + 1 :])

    def _enter(self, name: str) -> str:
        folder = self._open[-1]
        for _ in range(MAX_TRIES):
            try:
                self._open.append(os.open(name, STEP, dir_fd=folder))
            except OSError as error:
                if error.errno in _OF_THIS_PROCESS:
                    raise
                # Kept without the frames: they hold this walk, and, on Python 3.13, the results of
                # all callers, which would live until the next garbage collection.
                stopped = error.with_traceback(None)
            else:
                self._names.append(name)
                if len(self._open) > _MAX_OPEN:
                    os.close(self._open.pop(0))
                return ""
            # What is no folder is ENOTDIR; on macOS, a symlink is ELOOP.
            if stopped.errno in (errno.ENOTDIR, errno.ELOOP):
                try:
                    return os.readlink(name, dir_fd=folder)
                except OSError:  # no symlink, or none by now
                    pass
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    continue
                self._status = status
            break
        self._stopped = stopped
        return ""

    def _return_to(self, depth: int) -> None:
        """Go up until so many names are left; deeper down, names follow that are not open."""
        if depth <= len(self._names):
            self._stopped = None
            self._status = None
        while depth < len(self._names):
            self._names.pop()
            os.close(self._open.pop())
            if not self._open:
                self._walk_again(self._names[:depth])

    def _walk_again(self, names: list[str]) -> None:
        """Walk to a folder by its real path."""
        self.close()
        self._names.clear()
        self._open.append(os.open("/", STEP))
        for name in names:
            if self._enter(name):  # a symlink by now
                self._stopped = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if self._stopped:
                break


def _names_of(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _require_file(mode: int, name: str) -> None:
    if stat.S_ISLNK(mode):  # as the kernel says it of what is opened with O_NOFOLLOW
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise NoFile(errno.EINVAL, kinds.get(stat.S_IFMT(mode), "a device"), name)
