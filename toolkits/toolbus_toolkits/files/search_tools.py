"""The tools that find files: `list`, `glob`, `grep`."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import FunctionTool, Tool, ToolContext
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.untrusted_text import one_line
from toolbus_toolkits.callers import PerCallerSemaphore, seconds_to_answer
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.indexing import (
    FileFilter,
    filter_of_named,
    fitting,
    indexed,
    searched,
    selector,
)
from toolbus_toolkits.files.open_folders import NewestFiles, SearchedFolder
from toolbus_toolkits.files.reached import Path, ReachedFiles, failure
from toolbus_toolkits.files.searching import (
    MAX_COUNTS,
    Output,
    Question,
    Search,
    SecretCounts,
    ended_early,
)
from toolbus_toolkits.workspace import is_draft

__all__ = ["Entry", "GlobResult", "GrepResult", "ListResult", "SearchTools"]

Pattern = Annotated[str, Field(min_length=1, max_length=4096)]
Limit = Annotated[int, Field(ge=1, le=10_000)]

_MAX_SECONDS = 60.0
"""A search uses all processors, and a caller chooses its pattern and its folder."""
_ENTRY_BYTES = 40
"""Of an `Entry`, beside its name."""
_MAX_AT_A_TIME = 4
"""Each search runs up to two programs, which use all processors."""
_MAX_OF_ONE = 2
"""Of them, those of one caller: a search may take a minute."""


Kind: TypeAlias = Literal["file", "folder", "link", "other"]

_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class Entry(TypedDict):
    """What is in a folder."""

    name: str
    kind: Kind
    size: int | None
    """In bytes, of a file."""


class ListResult(TypedDict):
    """What a folder has."""

    entries: list[Entry]
    """Sorted by name."""
    total: int
    """How many there are."""
    truncated: bool
    """Whether there are more."""


class GlobResult(TypedDict):
    """Files, by their paths from the first root; absolute in another one."""

    paths: list[str]
    """The newest first."""
    truncated: bool
    """Whether there are more, or the time was over."""
    note: str
    """What else there is to say."""


class GrepResult(TypedDict):
    """Where a text was found."""

    matches: list[str]
    """Paths, lines or counts; the newest file first."""
    truncated: bool
    """Whether there are more, or the time was over."""
    left_out: int
    """How many files were not searched because they may hold secrets."""
    note: str
    """What else there is to say."""


class SearchTools:
    """The tools that find files."""

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self._counts = SecretCounts(MAX_COUNTS)
        self._all_slots = PerCallerSemaphore(_MAX_AT_A_TIME)
        self._caller_slots = PerCallerSemaphore(_MAX_OF_ONE)
        # The host of an assessment has to be that of the call, to know where its path led.
        self.reading: list[Tool] = [
            FunctionTool(function, name=name, affinity="caller", read_only=True, assess=assess)
            for name, function, assess in (
                ("list", self._list, assessor.listing),
                ("glob", self._glob, assessor.finding),
                ("grep", self._grep, assessor.searching),
            )
        ]
        self.writing: list[Tool] = []

    @asynccontextmanager
    async def _searched(
        self, path: str | None, context: ToolContext
    ) -> AsyncIterator[SearchedFolder]:
        """Open what is searched, when it is the turn of this call. Raises `ToolFailed`."""
        async with self._caller_slots.for_caller(context), self._all_slots.for_caller(None):
            async with searched(self._files, path or ".", context) as folder:
                yield folder

    async def _list(
        self, context: ToolContext, path: Path = ".", limit: Limit = 1000
    ) -> ListResult:
        """List what is in a folder, hidden names too, sorted by name.

        Args:
            context: The call.
            path: The folder, from the root, or absolute.
            limit: The most entries to return.
        """
        return await FILE_THREADS.run(self._list_now, context, path, limit)

    def _list_now(self, context: ToolContext, path: str, limit: int) -> ListResult:
        with self._files.at(path, context) as location:
            folder = location.open_folder()
            try:
                total, names = _first_names(folder, limit, context)
                entries = [_entry(name, folder) for name in names]
                entries = entries[: fitting((entry["name"] for entry in entries), _ENTRY_BYTES)]
            finally:
                os.close(folder)
        return ListResult(entries=entries, total=total, truncated=total > len(entries))

    async def _glob(
        self, context: ToolContext, pattern: Pattern, path: Path | None = None, limit: Limit = 1000
    ) -> GlobResult:
        """Find files by their paths, the newest first.

        Hidden files count. Not found are folders, what is behind symlinks, and what Git ignores,
        unless it ignores all that `path` and the pattern name.

        Args:
            context: The call.
            pattern: As for `rg --glob`: `*.py` at any depth, `src/**/*.{ts,tsx}` from the folder.
            path: The folder to search; by default the root.
            limit: The most paths to return.
        """
        async with self._searched(path, context) as folder:
            seconds = seconds_to_answer(context, _MAX_SECONDS)
            if not folder.is_folder:
                raise failure("not_a_folder", f"{folder.shown(b'')!r} is no folder")
            select = await FILE_THREADS.run(selector, folder, pattern)
            which = await filter_of_named(folder, FileFilter(), seconds, pattern=pattern)
            newest = NewestFiles(folder, limit, select)
            # Not by `--glob`: what that matches is found though Git ignores it, and with
            # `**` all of `node_modules` would be. By one thread: rg is faster than what looks at
            # each file here, and names of one folder come together, so that it is opened once.
            arguments = ["--files", "--threads=1", *which.arguments(folder)]
            is_in_time = await indexed(folder, arguments, newest.add, seconds)
        notes = [_note_of_ignored(folder, which, newest.total)]
        if not is_in_time:
            notes.append(ended_early(seconds))
        if not newest.total and pattern.startswith("/"):
            notes.append(
                "A `/` at the start of a pattern stands for `path`: give another folder as `path`."
            )
        paths = [one_line(folder.shown(name)) for name in newest.newest()]
        paths = paths[: fitting(paths)]
        return GlobResult(
            paths=paths,
            truncated=newest.total > len(paths) or not is_in_time,
            note=" ".join(filter(None, notes)),
        )

    async def _grep(  # noqa: PLR0913 - the arguments of the tool
        self,
        call: ToolContext,
        pattern: Pattern,
        path: Path | None = None,
        glob: Pattern | None = None,
        output: Output = "files",
        context: Annotated[int, Field(ge=0, le=100)] = 0,
        limit: Limit = 250,
        type: Annotated[str, Field(min_length=1, max_length=64)] | None = None,
        ignore_case: bool = False,
        multiline: bool = False,
    ) -> GrepResult:
        """Search in files with ripgrep, the newest file first.

        Hidden files count. Not searched are binary files, what Git ignores, what is behind
        symlinks, and files that may hold secrets: `left_out` is their number, and `path` searches
        one of them. A search is denied where a rule denies one of the files: call it again, with
        a `path` or `glob` that leaves them out, such as `!*.lock`.

        Args:
            call: The call.
            pattern: A regular expression of ripgrep (Rust): no look-around, no back-references.
            path: The folder to search, or a file; by default the root.
            glob: Only these files, as for `rg --glob`: `*.py`, `src/**/*.{ts,tsx}`, `!*.md`. What
                it or `path` names is searched also where Git ignores all of it.
            output: `files` for paths, `content` for lines as `path:number:text`, `count` for
                `path:count`, the number of lines that match.
            context: With `content`: so many lines before and after each, as `path-number-text`.
            limit: The most entries of `matches`.
            type: Only files of this type, as for `rg --type`: `py`, `js`, `rust`.
            ignore_case: Whether `a` also matches `A`.
            multiline: Whether a match may span lines; then `.` matches line ends, and files over
                64 MiB are left out.
        """
        which = FileFilter(glob, type)
        question = Question(
            pattern=pattern,
            output=output,
            limit=limit,
            context=context,
            ignore_case=ignore_case,
            multiline=multiline,
        )
        async with self._searched(path, call) as folder:
            seconds = seconds_to_answer(call, _MAX_SECONDS)
            if folder.is_folder:
                which = await filter_of_named(folder, which, seconds)
            search = Search(self._files, folder, which, question, self._counts)
            answer = await search.run(seconds)
            note = f"{answer.note} {_note_of_ignored(folder, which, len(answer.lines))}".strip()
        return GrepResult(
            matches=answer.lines,
            truncated=answer.truncated,
            left_out=answer.left_out,
            note=note,
        )


def _note_of_ignored(folder: SearchedFolder, which: FileFilter, count: int) -> str:
    """Return what a result with so many files says about those that Git ignores."""
    if count and which.with_ignored:
        return "Git ignores these files, as all that was named."
    if folder.is_folder and not (count or folder.is_root or which.with_ignored):
        return "Files that Git ignores were not searched: a pattern with their name finds them."
    return ""


def _first_names(folder: int, limit: int, context: ToolContext) -> tuple[int, list[str]]:
    """Return how many names a folder has, and the first ones, sorted."""
    total = 0
    first: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_draft(entry.name):
                continue
            total += 1
            first.append(entry.name)
            # Of a million names, memory holds some thousands, and each is sorted a few times.
            if len(first) >= 4 * limit + 1000:
                if context.cancelled:
                    break
                first = heapq.nsmallest(limit, first)
    return total, sorted(first)[:limit]


def _entry(name: str, folder: int) -> Entry:
    kind: Kind = "other"
    size = None
    with suppress(OSError):  # it is gone
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        size = status.st_size if kind == "file" else None
    return Entry(name=one_line(name), kind=kind, size=size)
