"""What all tools of one toolkit `files` share: its roots, and what each caller has seen."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from toolbus import ToolFailed
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.config import FilesConfig
from toolbus_toolkits.files.seen import SeenFiles
from toolbus_toolkits.workspace import (
    Location,
    NoFile,
    OutsideRoots,
    ProgramPaths,
    Roots,
    UnresolvedPath,
    located,
)

__all__ = ["ReachedFiles", "failure"]

_MAX_SHOWN = 200


class ReachedFiles:
    """The files that one toolkit reaches.

    Args:
        config: The config.
    """

    def __init__(self, config: FilesConfig) -> None:
        self.roots = Roots([config.root, *config.further_roots])
        self.sensitive = ProgramPaths(
            self.roots,
            os.environ,
            config.additional_dangerous_files,
            config.additional_dangerous_directories,
        )
        self.seen = SeenFiles()

    @contextmanager
    def at(self, path: str) -> Iterator[Location]:
        """Find what a path names; blocking, so it runs on a thread.

        Raises `ToolFailed`, also for an `OSError` of the block.
        """
        with self.failing(path), located(path, self.roots) as location:
            yield location

    @contextmanager
    def failing(self, path: str) -> Iterator[None]:
        """Turn what the block raises about a path into `ToolFailed`."""
        try:
            yield
        except OutsideRoots:
            roots = ", ".join(self.roots.folders)
            text = f"{_shown(path)} is outside of what these tools reach: {roots}"
            raise failure("outside", text) from None
        except UnresolvedPath as error:
            raise failure("no_path", f"{_shown(path)} names no file: {error}") from None
        except OSError as error:
            raise _failure_of(error, path) from None


def failure(reason: str, message: str) -> ToolFailed:
    """Return an error of these tools: `details.reason` says of which kind it is."""
    return ToolFailed(message, details={"reason": reason})


_REASONS = {
    errno.ENOENT: ("no_such_file", "does not exist"),
    errno.ENOTDIR: ("not_a_folder", "leads through what is no folder"),
    errno.EISDIR: ("not_a_file", "is a folder"),
    errno.EACCES: ("not_permitted", "may not be accessed by the user of this host"),
    errno.EPERM: ("not_permitted", "may not be changed by the user of this host"),
    errno.EROFS: ("not_permitted", "is on a file system that is read-only"),
    errno.ENOSPC: ("no_space", "cannot be written: the disk is full"),
    errno.EDQUOT: ("no_space", "cannot be written: the quota of this user is used up"),
    errno.ENAMETOOLONG: ("no_path", "has a name that is too long"),
}


def _failure_of(error: OSError, path: str) -> ToolFailed:
    if isinstance(error, NoFile):
        return failure("not_a_file", f"{_shown(path)} is {error.strerror}, not a file")
    reason, words = _REASONS.get(error.errno or 0, ("failed", f"fails: {error.strerror}"))
    return failure(reason, f"{_shown(path)} {words}")


def _shown(path: str) -> str:
    return repr(one_line(path, _MAX_SHOWN))
