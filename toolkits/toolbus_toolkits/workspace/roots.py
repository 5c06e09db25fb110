"""What a path names, and whether that is inside a working directory.

Each answer is about a moment: a symlink that is made or changed afterwards makes the same path name
another file. Who opens a file after such a check opens it step by step, and follows no symlink that
the check has not seen.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from toolbus.settings import expanded

__all__ = [
    "PATH_MAX",
    "ProcessPath",
    "Roots",
    "TooManyLinks",
    "UnresolvedPath",
    "homes",
    "is_same_or_below",
    "link_target",
    "resolve",
]

PATH_MAX = 4096
"""That of Linux, with the NUL at the end: the kernel takes no longer path."""
_MAX_LINKS = 40
"""`MAXSYMLINKS` of Linux: after so many the kernel answers ELOOP."""
_OF_PROCESS = re.compile(
    r"/proc/(?:thread-self|(?:self|[0-9]+)(?:/task/[0-9]+)?/(?:root|cwd|exe|fd/[0-9]+|map_files/.*))"
)
_MAX_STEPS = 4096
"""The most names of one resolution: each of 40 symlinks may add up to 2,048 names."""


class UnresolvedPath(ValueError):
    """A path that names no file, or not the same one for each process; why, as a clause."""


class ProcessPath(UnresolvedPath):
    """A path through a symlink of `/proc` to what a process has open, its directory or its root."""


class TooManyLinks(UnresolvedPath):
    """A path whose symlinks lead nowhere."""


def link_target(path: str) -> str:
    """Return where a symlink leads; "" for what is none, or may not be looked at."""
    if path.startswith("/proc/"):
        # By name: it is another link for each process, and the process may not be there yet.
        if _OF_PROCESS.fullmatch(path):
            raise ProcessPath("it names another file for each process")
        if path == "/proc/self":
            return ""  # a folder of each process: its files have fixed names
    try:
        return os.readlink(path)
    except OSError:
        return ""


def resolve(text: str, directory: str, look: Callable[[str], str] = link_target) -> str:
    """Return the absolute path of what `text` names from a directory: `..` and symlinks resolved.

    What does not exist yet, or may not be looked up, keeps its name. `~` is no special name here.
    `os.path.realpath` is not used: of a symlink that leads to itself it returns a path too, with
    what follows unresolved.

    Args:
        text: A path.
        directory: An absolute path.
        look: As `link_target`. It is asked about one name after the other: each time about one in
            the folder that the names before have led to.

    Raises `UnresolvedPath` for a NUL, for a path that is too long, for symlinks that lead nowhere,
    and what `look` raises.
    """
    found = ""
    names = _names_of(os.path.join(directory, text))
    links = 0
    for _ in range(_MAX_STEPS):
        if not names:
            return found or "/"
        name = names.pop()
        if name == "..":
            found = found.rpartition("/")[0]
            continue
        step = f"{found}/{name}"
        target = look(step)
        if not target:
            found = step
            continue
        links += 1
        if links > _MAX_LINKS:
            break
        if target.startswith("/"):
            found = ""
        names += _names_of(target)
    raise TooManyLinks("its symlinks lead nowhere")


def _names_of(path: str) -> list[str]:
    """Return the names of a path, the last one first. Raises `UnresolvedPath`."""
    if "\0" in path:
        raise UnresolvedPath("it contains NUL")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:  # a lone surrogate, which JSON may carry
        raise UnresolvedPath("it is no text") from None
    if size >= PATH_MAX:
        raise UnresolvedPath("it is too long")
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def is_same_or_below(path: str, folder: str) -> bool:
    """Whether a resolved path is a folder, or is somewhere below it."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


@lru_cache(maxsize=1)
def homes() -> frozenset[str]:
    """Return the real paths of all users' home directories that are known to this machine.

    They are those of the user database and `HOME`, apart from `/` (which some system users have).
    """
    found = {entry.pw_dir for entry in pwd.getpwall()} | {"/root", os.path.expanduser("~")}
    return frozenset(os.path.realpath(home) for home in found if home.startswith("/")) - {"/"}


def existing_folder(path: Path) -> Path:
    """Return the real path of a folder of a config. Raises `ValueError` if there is none."""
    folder = expanded(path)
    if not folder.is_dir():
        raise ValueError(f"there is no such folder: {str(folder)!r}")
    return folder.resolve()


class Roots:
    """Working directories.

    Their real paths are kept. A root that vanishes stays one by its path, and so does a folder that
    is made in its place; a symlink in its place leads outside, as any other one does.

    Args:
        folders: Their paths; relative ones are below the directory of this process.

    Raises `ValueError` for what is no folder.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]]) -> None:
        found = []
        for folder in folders:
            path = resolve(os.fspath(expanded(folder)), os.getcwd())
            if not os.path.isdir(path):
                raise ValueError(f"there is no such folder: {os.fspath(folder)!r}")
            found.append(path)
        self.folders: tuple[str, ...] = tuple(found)
        """Their real paths."""

    def contains(self, path: str) -> bool:
        """Whether a resolved path is inside a working directory, or is one."""
        return any(is_same_or_below(path, folder) for folder in self.folders)

    def root_of(self, path: str) -> str | None:
        """Return the working directory that a resolved path is in; None if it is in none."""
        return next((root for root in self.folders if is_same_or_below(path, root)), None)

    def is_root_or_above(self, path: str) -> bool:
        """Whether a resolved path is a working directory, or has one below it."""
        return any(is_same_or_below(folder, path) for folder in self.folders)

    def protected_as(self, path: str) -> str:
        """Return why nobody should delete a resolved path, to follow "it is"; else empty.

        Those are working directories, homes, `/`, its children, and what has one of these below.
        """
        if path == "/":
            return "the root of all files"
        if self.is_root_or_above(path):
            return "a working directory, or has one below it"
        if path.count("/") == 1:
            return "directly below `/`"
        # Homes that the user database does not list, such as those of a network, are here too.
        is_home = path in homes() or (path.startswith("/home/") and path.count("/") == 2)
        if is_home or any(home.startswith(f"{path}/") for home in homes()):
            return "the home of a user, or has one below it"
        return ""
