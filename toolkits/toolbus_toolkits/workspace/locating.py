"""Finds what a path names inside a working directory, and holds its folder open.

A path is walked from `/`, name by name: each folder is opened from the one before it, and never
through a symlink. A symlink is read, and its names are walked in place of its own. So the real path
is that of the folders which are open, whatever is swapped meanwhile; what happens to the file then
goes by the open folder and one name, not by the path. Only a path that ends inside of a root is
found; of others not even their existence is told.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toolbus_toolkits.workspace.roots import MAX_LINKS, Roots, UnresolvedPath, names_of

__all__ = ["STEP", "Location", "NoFile", "OutsideRoots", "located", "opened_file"]

STEP = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO would block, and a terminal would become that of this process.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class OutsideRoots(ValueError):
    """A path that leads out of all working directories."""


class NoFile(OSError):
    """What is there is no regular file, but a folder, a FIFO, a socket or a device."""


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
        return os.path.relpath(self.path, self.root)

    def open_file(self) -> int:
        """Open the file for reading, and return a descriptor.

        Raises `FileNotFoundError`, `NoFile` for what is no regular file, and other `OSError`s.
        """
        if self.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return opened_file(self.name, self.folder, self.path)

    def open_folder(self) -> int:
        """Open the folder for reading, and return a descriptor.

        Raises `FileNotFoundError`, `NotADirectoryError`, and other `OSError`s.
        """
        if self.status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return os.open(self.name, _READ | os.O_DIRECTORY, dir_fd=self.folder)


def opened_file(name: str, folder: int, path: str) -> int:
    """Open a regular file for reading, by its name in an open folder; return a descriptor.

    Args:
        name: Its name.
        folder: A descriptor of the folder.
        path: The path that errors name.

    Raises `NoFile` for what is no regular file, and other `OSError`s.
    """
    # Not opened at all then: to open some devices does something.
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode):
        raise NoFile(errno.EINVAL, _kind_of(mode), path)
    descriptor = os.open(name, _READ, dir_fd=folder)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NoFile(errno.EINVAL, _kind_of(mode), path)
    return descriptor


@contextmanager
def located(text: str, roots: Roots) -> Iterator[Location]:
    """Find what a path names.

    Args:
        text: A path; a relative one is below the first root.
        roots: The working directories.

    Raises:
        UnresolvedPath: It contains NUL, is too long, or its symlinks lead nowhere.
        OutsideRoots: It leads out of all roots.
        OSError: A folder on the way is none, or may not be entered, or a root has vanished.
    """
    walk = _Walk()
    try:
        walk.follow(os.path.join(roots.folders[0], text))
        yield walk.found(roots)
    except OSError as error:
        if not walk.is_found and not roots.contains(walk.path):
            # Whether it exists is nobody's business.
            raise OutsideRoots(text) from error
        raise
    finally:
        walk.close()


class _Walk:
    """The folders that are open on the way from `/`."""

    def __init__(self) -> None:
        self._descriptors = [os.open("/", STEP)]
        self._names: list[str] = []
        self._missing: list[str] = []
        self._status: os.stat_result | None = None
        self.is_found = False

    @property
    def path(self) -> str:
        """Where it is."""
        return "/" + "/".join((*self._names, *self._missing))

    def follow(self, path: str) -> None:
        """Walk along an absolute path. Raises `UnresolvedPath` and `OSError`."""
        left = names_of(path)
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                self._leave()
            elif self._missing:
                self._missing.append(name)
            elif (target := self._enter(name, is_last=not left)) is not None:
                links += 1
                if links > MAX_LINKS:
                    raise UnresolvedPath("its symlinks lead nowhere")
                if target.startswith("/"):
                    self._restart()
                left += names_of(target)

    def _enter(self, name: str, *, is_last: bool) -> str | None:
        """Go on to a name; return where it leads if it is a symlink."""
        folder = self._descriptors[-1]
        try:
            descriptor = os.open(name, STEP, dir_fd=folder)
        except FileNotFoundError:
            self._missing.append(name)
            return None
        except NotADirectoryError:
            try:
                return os.readlink(name, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EINVAL or not is_last:
                    self._names.append(name)
                    raise NotADirectoryError(
                        errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path
                    ) from None
            self._status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            self._names.append(name)
            return None
        self._descriptors.append(descriptor)
        self._names.append(name)
        return None

    def _leave(self) -> None:
        if self._missing:
            self._missing.pop()
        elif self._names:
            self._names.pop()
            os.close(self._descriptors.pop())

    def _restart(self) -> None:
        self._names.clear()
        while len(self._descriptors) > 1:
            os.close(self._descriptors.pop())

    def found(self, roots: Roots) -> Location:
        """Return where it has come to. Raises `OutsideRoots`, and `OSError` if a root is gone."""
        path = self.path
        root = roots.root_of(path)
        if root is None:
            raise OutsideRoots(path)
        if self._missing and len("/".join(("", *self._names))) < len(root):
            raise FileNotFoundError(errno.ENOENT, "the root does not exist any more", root)
        self.is_found = True
        names = list(self._names)
        descriptors = self._descriptors
        folder, name, status = descriptors[-1], ".", self._status
        if self._missing:
            name = self._missing[-1]
        elif len(descriptors) > len(names):  # the last name is a folder, and open
            status = os.fstat(descriptors[-1])
            if names:
                folder, name = descriptors[-2], names[-1]
        else:
            name = names[-1]
        return Location(path, root, folder, tuple(self._missing[:-1]), name, status)

    def close(self) -> None:
        """Close all that is open."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _kind_of(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")
