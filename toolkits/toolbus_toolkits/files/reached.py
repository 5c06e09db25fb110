"""What all tools of one toolkit `files` share: its config, its roots, what each caller has seen."""

from __future__ import annotations

import errno
import os
import pathlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from toolbus import OperatorOnly, ToolContext, ToolFailed
from toolbus.untrusted_text import SHOWN_CHARS, one_line, shortened
from toolbus_toolkits.callers import PerCallerSemaphore
from toolbus_toolkits.files.assessed_paths import AssessedPaths
from toolbus_toolkits.files.seen import SeenFiles
from toolbus_toolkits.workspace import (
    PATH_MAX,
    FolderMoved,
    Location,
    NoFile,
    OutsideRoots,
    ProgramPaths,
    Roots,
    RootVanished,
    UnresolvedPath,
    existing_folder,
    located,
)

__all__ = ["FilesConfig", "Path", "ReachedFiles", "RootsConfig", "Token", "cancelled", "failure"]


class RootsConfig(BaseModel, frozen=True, extra="forbid"):
    """Which folders a toolkit reaches.

    Raises `ValidationError` if a folder does not exist.
    """

    root: Annotated[pathlib.Path, OperatorOnly] = Field(
        description="The folder whose files are read and changed; relative paths are below it."
    )
    further_roots: Annotated[tuple[pathlib.Path, ...], OperatorOnly] = Field(
        (), description="Further folders, whose files are reached by absolute paths."
    )
    additional_dangerous_files: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further files that a person decides about, with * and ?."
    )
    additional_dangerous_directories: Annotated[tuple[str, ...], OperatorOnly] = Field(
        (), description="Further folders that a person decides about, with all in them."
    )

    @field_validator("root", "further_roots", mode="before")
    @classmethod
    def _must_not_be_empty(cls, value: Any) -> Any:
        # `Path("")` is the folder of this process: no one means it by a variable that is not set.
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise ValueError("it is empty; . is the folder of this process")
        return value

    @field_validator("root")
    @classmethod
    def _must_be_a_folder(cls, root: pathlib.Path) -> pathlib.Path:
        return existing_folder(root)

    @field_validator("further_roots")
    @classmethod
    def _must_be_folders(cls, roots: tuple[pathlib.Path, ...]) -> tuple[pathlib.Path, ...]:
        return tuple(map(existing_folder, roots))


class FilesConfig(RootsConfig, frozen=True, extra="forbid"):
    """Which folders the toolkit `files` reaches, and what it does there.

    Raises `ValidationError` if a folder does not exist.
    """

    read_only: Annotated[bool, OperatorOnly] = Field(
        False, description="Offer only the tools that change nothing."
    )


_MAX_WHOLE = 8
"""Files that are read as a whole for one caller at a time: a large one takes a thread for seconds,
and there are 32."""

Path = Annotated[str, Field(min_length=1, max_length=PATH_MAX)]
"""An argument of a tool: a path from the first root, or an absolute one."""
Token = Annotated[str, Field(min_length=1, max_length=64)]
"""An argument of a tool: the version of a file."""

_NOTATIONS = (
    (r"~(?:[\w.-]*/|\Z)", "`~` stands for nothing here: write the path from the root, or from `/`"),
    (
        r"\$(?:\(|\{\w+\}|[A-Z_][A-Z0-9_]*(?:/|\Z))|%\w+%[/\\]",
        "variables stand for nothing here: write the path from the root, or from `/`",
    ),
    (r"file:/|[A-Za-z][\w+.-]*://", "it is a URL: write the path from the root, or from `/`"),
    (r"""(["'`]).+\1\Z""", "leave out the quotes: a path is written as it is"),
    (r"(?s).*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", "leave out the line end: it is part of no name"),
)
"""What a path means elsewhere, by how it begins: as the name of a new file it is a mistake."""


def _check_new(path: str) -> None:
    """Refuse the path of what does not exist, if it is written for a shell or a browser."""
    for pattern, words in _NOTATIONS:
        if re.match(pattern, path):
            raise UnresolvedPath(words)


class ReachedFiles:
    """The files that one toolkit reaches."""

    def __init__(self, config: RootsConfig) -> None:
        self.roots = Roots([config.root, *config.further_roots])
        self.sensitive = ProgramPaths(
            self.roots,
            os.environ,
            config.additional_dangerous_files,
            config.additional_dangerous_directories,
        )
        self.seen = SeenFiles()
        self.assessed_paths = AssessedPaths()
        self.whole = PerCallerSemaphore(_MAX_WHOLE)
        """For calls that read all of a file, whatever its size."""

    def path_of(self, location: Location) -> str:
        """Return a path as results have it: from the first root, or absolute in another one."""
        is_first = location.root == self.roots.folders[0]
        return location.relative if is_first else location.path

    def name_of(self, location: Location) -> str:
        """Return this path for a message: on one line, and cut."""
        return shortened(one_line(self.path_of(location)), SHOWN_CHARS)

    @contextmanager
    def at(self, path: str | bytes, context: ToolContext | None = None) -> Iterator[Location]:
        """Find what a path names; blocking, so it runs on a thread.

        Args:
            path: As it was written. As bytes it is one that this system gave, such as one that `rg`
                found.
            context: The call that is run, if it is the call's own path: the file then has to be the
                one that was assessed. For the first use of the path.

        Raises `ToolFailed`, also for an `OSError` of the block.
        """
        with self.failing(path):
            with ExitStack() as stack:
                try:
                    location = stack.enter_context(located(path, self.roots))
                    if location.status is None and isinstance(path, str):
                        _check_new(path)
                except (OSError, ValueError):
                    self._is_as_assessed(context, path, "")
                    raise
                if not self._is_as_assessed(context, path, location.path):
                    text = f"{_shown(path)} leads elsewhere than when it was judged: call it again,"
                    text += f" or with the path where it leads now, {_shown(location.path)}"
                    # Not `retryable`: a client would repeat it by itself, and judge nothing again.
                    raise failure("changed", text)
                yield location

    def _is_as_assessed(self, context: ToolContext | None, path: str | bytes, target: str) -> bool:
        if context is None or isinstance(path, bytes):
            return True
        return self.assessed_paths.take(context, path, target)

    @contextmanager
    def failing(self, path: str | bytes) -> Iterator[None]:
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


def cancelled() -> ToolFailed:
    """Return the error that ends the thread of a call that was cancelled."""
    return failure("failed", "the call was cancelled")


_REASONS = {
    errno.ENOENT: ("no_such_file", "does not exist"),
    errno.ENOTDIR: ("not_a_folder", "is no folder, or leads through what is none"),
    errno.EISDIR: ("not_a_file", "is a folder"),
    # Located paths have no symlinks: one has just taken the place of what was found.
    errno.ELOOP: ("changed", "was replaced by a symbolic link meanwhile: try again"),
    errno.EACCES: ("not_permitted", "may not be accessed or changed by the user of this host"),
    errno.EPERM: ("not_permitted", "may not be changed by the user of this host"),
    errno.EROFS: ("not_permitted", "is on a file system that is read-only"),
    errno.ETXTBSY: ("not_permitted", "is a program that runs"),
    errno.EBUSY: ("not_permitted", "cannot be replaced: it is a mount of its own, or in use"),
    errno.ENOSPC: ("no_space", "cannot be written: the disk is full"),
    errno.EDQUOT: ("no_space", "cannot be written: the quota of this user is used up"),
    errno.EFBIG: ("no_space", "cannot be written: it is larger than this host allows"),
    errno.ENAMETOOLONG: ("no_path", "has a name that is too long, or too many new folders"),
    errno.EILSEQ: ("no_path", "has a name that its file system does not take"),
    errno.EAGAIN: ("locked", "is locked by others: try again"),
    errno.EIO: ("failed", "cannot be read or written: the disk reports an error"),
    errno.ESTALE: ("failed", "was removed from its network share meanwhile: try again"),
    errno.EMFILE: ("failed", "cannot be opened: this host has too many open files"),
    errno.ENFILE: ("failed", "cannot be opened: this machine has too many open files"),
}


def _failure_of(error: OSError, path: str | bytes) -> ToolFailed:
    if isinstance(error, NoFile):
        return failure("not_a_file", f"{_shown(path)} is {error.strerror}, not a file")
    if isinstance(error, FolderMoved):
        text = f"{_shown(path)} is elsewhere now: its folder was moved"
        return ToolFailed(text, retryable=True, details={"reason": "changed"})
    if isinstance(error, RootVanished):
        root = one_line(str(error.filename), SHOWN_CHARS)
        return failure("no_such_file", f"{_shown(path)} does not exist, nor does its root {root!r}")
    words = f"cannot be read or written: {error.strerror or type(error).__name__}"
    reason, words = _REASONS.get(error.errno or 0, ("failed", words))
    failed = failure(reason, f"{_shown(path)} {words}")
    failed.retryable = reason in ("changed", "locked")  # the same call may find it as it should be
    return failed


def _shown(path: str | bytes) -> str:
    return repr(one_line(os.fsdecode(path), SHOWN_CHARS))
