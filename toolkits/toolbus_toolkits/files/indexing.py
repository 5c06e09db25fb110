"""Lists files below a folder with rg: those that a search finds, and those that it would read.

What rg says of a tree is an index, as the tree was while it was walked: `open_folders` finds the
files again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from toolbus import ToolContext
from toolbus.chunks.file_io import FILE_THREADS
from toolbus_toolkits.files.open_folders import SearchedFolder
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.ripgrep import running_ripgrep
from toolbus_toolkits.workspace import PathPattern, escaped, is_draft, with_plain_brackets
from toolbus_toolkits.workspace.watched_tree import MAX_DEPTH, VERSION_CONTROL

__all__ = [
    "FileFilter",
    "Listing",
    "files_read",
    "filter_of_named",
    "fitting",
    "indexed",
    "is_path_of_draft",
    "patterns_below",
    "searched",
    "selector",
]

_WALK = (
    "--hidden",
    "--null",
    f"--max-depth={MAX_DEPTH}",
    *(f"--glob=!{name}" for name in VERSION_CONTROL),
)
_MAX_RESULT_BYTES = 1_000_000
"""A little less than what a room sends."""
_TAKEN_AT_ONCE = 1000
"""Names: some milliseconds of work, so that the change to a thread costs little beside it."""


@dataclass(frozen=True)
class FileFilter:
    """Which files of a tree are searched."""

    glob: str | None = None
    """A pattern of `rg --glob`, from the folder that is searched."""
    type: str | None = None
    """A type of `rg --type`."""
    with_ignored: bool = False
    """Whether what Git ignores is searched too."""

    def arguments(self, folder: SearchedFolder) -> list[str]:
        """Return it for rg in a folder; blocking.

        Raises `ToolFailed` for a pattern that leads out of it.
        """
        # Of several globs the last one counts that matches.
        patterns = [] if self.glob is None else patterns_below(folder, self.glob)
        found = [f"--glob={pattern}" for pattern in patterns]
        if self.type is not None:
            found.append(f"--type={self.type}")
        if self.with_ignored:
            found.append("--no-ignore")
        return [*found, *_WALK]


@dataclass(frozen=True)
class Listing:
    """The files that a search would read."""

    paths: tuple[str, ...]
    """Each from the root that it is in, as it is: not escaped."""
    is_complete: bool
    """Whether there are no others: a listing ends at a number, and after a time."""


async def files_read(
    files: ReachedFiles,
    path: str | bytes,
    which: FileFilter,
    *,
    pattern: str | None = None,
    limit: int = 100_000,
    seconds: float = 2.0,
) -> Listing:
    """List the files below a folder that a `grep` would read, or that a `glob` could find.

    Args:
        files: The files of the toolkit.
        path: The folder, or a file, as it was given to the tool.
        which: What was given with it.
        pattern: That of a `glob`; rg itself would compare it byte by byte.
        limit: The most that are listed.
        seconds: How long it may take.

    Raises `ToolFailed` for a path that cannot be found, and for a mistake in a pattern.
    """
    paths: list[str] = []
    async with searched(files, path) as folder:
        if not folder.is_folder:
            return Listing((folder.from_root(b""),), is_complete=True)

        which = await filter_of_named(folder, which, seconds, pattern=pattern)
        select = await FILE_THREADS.run(selector, folder, pattern)
        arguments = await FILE_THREADS.run(which.arguments, folder)

        def take(names: list[bytes]) -> bool:
            paths.extend(map(folder.from_root, select(names)))
            return len(paths) > limit

        is_in_time = await indexed(folder, ["--files", *arguments], take, seconds)
    return Listing(tuple(paths[:limit]), is_in_time and len(paths) <= limit)


async def filter_of_named(
    folder: SearchedFolder, which: FileFilter, seconds: float, *, pattern: str | None = None
) -> FileFilter:
    """Return a filter for files that a call names: with those that Git ignores, if all are.

    A call names a folder below a root by its `path`, or by how its pattern begins. This goes by
    names alone, so an assessment lists what the call will read.

    Raises `ToolFailed` for a mistake in a pattern.
    """
    sign, text = _from_folder(folder, pattern or which.glob or "")
    start = await FILE_THREADS.run(folder.existing_start, text)
    if folder.is_root and (sign or not start.strip("/")):
        return which
    select = await FILE_THREADS.run(selector, folder, pattern)
    is_any_found = False

    def take(names: list[bytes]) -> bool:
        nonlocal is_any_found
        is_any_found |= bool(select(names))
        return is_any_found

    arguments = await FILE_THREADS.run(which.arguments, folder)
    is_in_time = await indexed(folder, ["--files", *arguments], take, seconds)
    return replace(which, with_ignored=is_in_time and not is_any_found)


def patterns_below(folder: SearchedFolder, text: str) -> list[str]:
    """Return the patterns, from the folder that is searched, that a text stands for; blocking.

    Models write paths from `/` and from `./`; for rg a `/` at the start is that folder, and there
    is nothing called `.`. They also write the names of files as they are: `[slug]` is a set, and a
    folder of many web projects. First names that exist as they are written stand for themselves;
    in what follows, brackets are both.

    Raises `ToolFailed` for a pattern that leads upwards: rg would find nothing with it.
    """
    sign, pattern = _from_folder(folder, text)
    start = folder.existing_start(pattern)
    rest = pattern[len(start) :]
    readings = dict.fromkeys((rest, with_plain_brackets(rest)))
    return [f"{sign}{escaped(start)}{reading}" for reading in readings]


def _from_folder(folder: SearchedFolder, text: str) -> tuple[str, str]:
    """Return the `!` of a pattern, if it has one, and the pattern from a folder."""
    sign = "!" if text.startswith("!") else ""
    pattern = text[len(sign) :]
    if pattern.startswith("./"):
        pattern = pattern[1:]
    elif pattern.startswith(f"{folder.path}/"):
        pattern = pattern[len(folder.path) :]
    if ".." in pattern.split("/"):
        words = "a pattern does not lead upwards: give the folder as `path`"
        raise failure("bad_pattern", words)
    return sign, pattern


def _matcher_below(folder: SearchedFolder, text: str) -> Callable[[str], object]:
    """Return what is true of the files that a `glob` finds; blocking.

    Raises `ToolFailed` for no pattern.
    """
    patterns = patterns_below(folder, text)
    try:
        matchers = [PathPattern(pattern).file_matcher() for pattern in patterns]
    except ValueError as error:
        words = "write \\[ and \\{ for the characters"
        raise failure("bad_pattern", f"it is no pattern of files: {error}; {words}") from None
    if len(matchers) == 1:
        return matchers[0]
    return lambda name: any(matches(name) for matches in matchers)


def selector(folder: SearchedFolder, pattern: str | None) -> Callable[[list[bytes]], list[bytes]]:
    """Return what selects those of some names that a `glob` finds; all without one. Blocking.

    Raises `ToolFailed` for no pattern.
    """
    if pattern is None:
        return list
    matches = _matcher_below(folder, pattern)

    def select(names: list[bytes]) -> list[bytes]:
        # Decoded as one text: one by one takes a third of the time of a glob.
        texts = os.fsdecode(b"\0".join(names)).split("\0")
        return [
            name
            for name, text in zip(names, texts, strict=False)
            if matches(text) and not is_path_of_draft(name)
        ]

    return select


def fitting(texts: Iterable[str], more_bytes: int = 0) -> int:
    """Return how many texts, from the first on, fit into one result, with more bytes beside each.

    10,000 paths of usual length do not.
    """
    left = _MAX_RESULT_BYTES
    count = 0
    for text in texts:
        left -= len(text.encode()) + 5 + more_bytes  # 5 for its length
        if left < 0:
            break
        count += 1
    return count


def is_path_of_draft(name: bytes) -> bool:
    """Whether a file is a draft of one that is being written, and nothing of the tree."""
    # Most names are known by their ends: this is asked of each file of a tree.
    return name.endswith(b".part") and is_draft(os.fsdecode(name.rpartition(b"/")[2]))


@asynccontextmanager
async def searched(
    files: ReachedFiles, path: str | bytes, context: ToolContext | None = None
) -> AsyncIterator[SearchedFolder]:
    """Open what is searched; it is closed with the block. Raises `ToolFailed`."""
    folder = await FILE_THREADS.run(
        SearchedFolder.open, files, path, context, undo=SearchedFolder.close
    )
    try:
        with files.failing(path):
            yield folder
    finally:
        await FILE_THREADS.finish(folder.close)


async def indexed(
    folder: SearchedFolder,
    arguments: Sequence[str],
    take: Callable[[list[bytes]], object],
    seconds: float,
) -> bool:
    """Give a function, on a thread, the names that rg writes, until it returns True.

    Args:
        folder: Where rg runs; the names are from there.
        arguments: Those of rg.
        take: Receives some names at a time.
        seconds: How long all of it may take.

    Returns:
        Whether it was in time.

    Raises `ToolFailed` for a mistake in a pattern.
    """
    waiting: list[bytes] = []
    is_in_time = True
    try:
        async with (
            asyncio.timeout(seconds),
            running_ripgrep([*arguments, "./"], folder.descriptor) as rg,
        ):
            async for records in rg.records(b"\0"):
                # With --count, the count of the file before is in front of the `./`.
                waiting += (record.partition(b"./")[2] for record in records)
                if len(waiting) >= _TAKEN_AT_ONCE:
                    names = waiting
                    waiting = []
                    if await FILE_THREADS.run(take, names):
                        return True
    except TimeoutError:
        is_in_time = False
    if waiting:
        await FILE_THREADS.run(take, waiting)
    return is_in_time
