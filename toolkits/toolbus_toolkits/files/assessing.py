"""Says what a call of these tools would do, before it runs.

What a rule covers is compared with two paths of a file: the path as it was written, and the real
one. A link `notes.txt` to `.env` is a secret, and so is a link `.env` to `notes.txt`. A deny or an
ask counts for either of them, an allow for the real one alone.

A call that reads a tree cannot leave out what a rule denies: a tool is not told which of the asked
patterns are denials. So a pattern counts if the call would read a file that it covers; `path` and
`glob` narrow the call. A call that only tells names counts by folders: a name belongs to the folder
that it is in. So a rule about `*.lock` forbids no list of a folder with `poetry.lock` in it, and
one about `secrets/**` forbids to list what is in `secrets`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from toolbus import Assessment, Rule, ToolContext, ToolFailed
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.permissions.plain import MAX_PREVIEW_BYTES
from toolbus.untrusted_text import SHOWN_CHARS, one_line, shortened
from toolbus_toolkits.callers import PerCallerSemaphore
from toolbus_toolkits.files.changes import Change, Making
from toolbus_toolkits.files.indexing import FileFilter, files_read
from toolbus_toolkits.files.planning import planned
from toolbus_toolkits.files.reached import ReachedFiles
from toolbus_toolkits.workspace import (
    Location,
    NoFile,
    RootedPattern,
    UnresolvedPath,
    escaped,
    is_same_or_below,
    resolve,
)

__all__ = ["Assessor"]

_LISTING_S = 2.0
"""An assessment has 5 s in all."""
_MAX_AT_A_TIME = 2
"""Listings of one caller: each is a process, and assessments have no other limit."""
_MAX_ENTRIES = 100_000
"""Of folders that are walked for `watch`; some 0.5 s."""
_NARROW = "`path` and `glob` narrow it"
_ANY_NAME = "\x01" * 16
"""A name that only patterns match which match any name."""


class _Paths(NamedTuple):
    """What a path leads to, as far as that is known."""

    written: str
    """Absolute, by its names alone."""
    real: str | None
    """None if it can lead nowhere."""
    root: str = ""
    """The root that it is in."""
    is_folder: bool = False


def _is_any(path: str) -> bool:
    return True


class Assessor:
    """Assesses a call before it runs."""

    def __init__(self, files: ReachedFiles) -> None:
        self._files = files
        # The rules of an operator and of a person: the same ones for each call.
        self._pattern = lru_cache(maxsize=512)(lambda text: RootedPattern(text, files.roots))
        self._slots = PerCallerSemaphore(_MAX_AT_A_TIME)

    def reading(self, context: ToolContext, path: str) -> Assessment:
        """Return the assessment of a call that reads one file."""
        assessment, paths = self._reading(context, path, "reads")
        return self._with_rules(context, assessment, paths)

    def listing(self, context: ToolContext, path: str) -> Assessment:
        """Return the assessment of a call that lists the names in one folder."""
        assessment, paths = self._reading(context, path, "lists", names_only=True)
        return self._with_rules(context, assessment, paths)

    async def finding(
        self, context: ToolContext, pattern: str, path: str | None = None
    ) -> Assessment:
        """Return the assessment of a call that lists the names of files in a tree."""
        return await self._of_tree(context, path or ".", FileFilter(), pattern)

    async def searching(
        self,
        call: ToolContext,
        path: str | None = None,
        glob: str | None = None,
        type: str | None = None,
    ) -> Assessment:
        """Return the assessment of a call that reads the files of a tree."""
        which = FileFilter(glob, type)
        return await self._of_tree(call, path or ".", which)

    def watching(self, context: ToolContext, path: str) -> Assessment:
        """Return the assessment of a call that lists the names in a tree, also those to come."""
        assessment, paths = self._reading(context, path, "watches", names_only=True)
        if not context.patterns or paths.real is None or not paths.is_folder:
            return self._with_rules(context, assessment, paths)
        try:
            with self._files.at(os.fsencode(paths.real)) as location:
                names = _folders_below(location)
        except ToolFailed:
            names = None
        if names is not None:  # and folders that rules name, which may come
            ruled = (self._pattern(text).named_folders() for text in context.patterns)
            names += (folder for folder in chain(*ruled) if is_same_or_below(folder, paths.real))
        return self._with_tree(context, assessment, paths, names and map(_any_name_in, names))

    async def _of_tree(
        self, context: ToolContext, path: str, which: FileFilter, pattern: str | None = None
    ) -> Assessment:
        names_only = pattern is not None
        verb = "finds files in" if names_only else "searches"
        assessment, paths = await FILE_THREADS.run(
            partial(self._reading, context, path, verb, names_only=names_only)
        )
        if not context.patterns or paths.real is None or not paths.is_folder:
            return self._with_rules(context, assessment, paths)
        try:
            # The real path: a link may lead elsewhere for a moment.
            folder = os.fsencode(paths.real)
            async with self._slots.for_caller(context):
                found = await files_read(
                    self._files, folder, which, pattern=pattern, seconds=_LISTING_S
                )
        except ToolFailed as error:
            assessment = replace(assessment, message=f"the call would fail: {error.message}")
            if (error.details or {}).get("reason") == "bad_pattern":
                return self._with_rules(context, assessment, paths)
            return _uncertain(assessment, context.patterns)
        names: Iterable[str] | None = None
        if found.is_complete and names_only:
            names = map(_any_name_in, dict.fromkeys(map(os.path.dirname, found.paths)))
        elif found.is_complete:
            names = found.paths
        # Secrets are left out of a search, unless it names them.
        is_read = _is_any if names_only or assessment.immune else self._is_searched
        with_tree = partial(self._with_tree, context, assessment, paths, names, is_read=is_read)
        return await FILE_THREADS.run(with_tree)

    def _is_searched(self, path: str) -> bool:
        return not self._files.sensitive.reason(path, writes=False)

    def _reading(
        self, context: ToolContext, path: str, verb: str, *, names_only: bool = False
    ) -> tuple[Assessment, _Paths]:
        try:
            with self._located(context, path) as location:
                shown = _shown(path, self._files.name_of(location))
                # Names of secrets are none.
                reason = "" if names_only else self._reason(path, location, writes=False)
                paths = self._paths(path, location)
        except ToolFailed as error:
            return self._unreached(path, error, reads=True)
        if reason:
            return Assessment("ask", immune=True, message=f"{verb} {shown}, which {reason}"), paths
        return Assessment("pass", read_only=True, message=f"{verb} {shown}"), paths

    def writing(self, context: ToolContext, path: str) -> Assessment:
        """Return the assessment of a call that writes one file as a whole."""
        return self.changing(context, path, None, None)

    def making(self, context: ToolContext, texts: Mapping[str, str]) -> Assessment:
        """Return the assessment of a call that makes several files, by their paths."""
        files = [self.changing(context, path, Making(text), None) for path, text in texts.items()]
        suggestions = {file.suggestions for file in files}
        return Assessment(
            "deny" if any(file.behavior == "deny" for file in files) else "ask",
            immune=any(file.immune for file in files),
            within_workdir=all(file.within_workdir for file in files),
            message="; ".join(file.message for file in files),
            preview="\n".join(file.preview for file in files if file.preview),
            # Those of one file would not cover the others.
            suggestions=suggestions.pop() if len(suggestions) == 1 else (),
            matches=tuple(dict.fromkeys(chain.from_iterable(file.matches for file in files))),
            parts=tuple(chain.from_iterable(file.parts for file in files)),
            uncertain=tuple(dict.fromkeys(chain.from_iterable(file.uncertain for file in files))),
        )

    def changing(
        self, context: ToolContext, path: str, change: Change | None, token: str | None
    ) -> Assessment:
        """Return the assessment of a call that changes one file; a diff needs the change."""
        try:
            with self._located(context, path) as location:
                diff = None
                error_text = ""
                if change is not None and self._may_show(context, path, location, token):
                    diff, error_text = self._diff(context, location, change, token)
                shown = _shown(path, self._files.name_of(location))
                message = _words_of_change(location, shown, diff, error_text)
                suggested = self._suggestions(location)
                if reason := self._reason(path, location, writes=True):
                    message += f"; it {reason}"
                    suggested = ()
                paths = self._paths(path, location)
        except ToolFailed as error:
            return self._with_rules(context, *self._unreached(path, error, reads=False))
        if error_text:
            diff = f"[it would change nothing: {error_text}]"
        assessment = Assessment(
            "ask",
            immune=bool(reason),
            within_workdir=not reason,
            message=message,
            preview=diff or "",
            suggestions=suggested,
        )
        return self._with_rules(context, assessment, paths)

    def _may_show(
        self, context: ToolContext, path: str, location: Location, token: str | None
    ) -> bool:
        """Whether the diff of a change may be shown to who asks, and why there would be none.

        Of a file with secrets, only to who has read all of it. A token is a hash: nobody may try
        some until one shows the file; and lines around those that were read may be the secret.
        """
        if not self._reason(path, location, writes=False):
            return True
        seen = self._files.seen.of(context, location.path)
        if seen is None:
            return token is None
        return seen.is_whole and token in (None, seen.token)

    def _diff(
        self, context: ToolContext, location: Location, change: Change, token: str | None
    ) -> tuple[str, str]:
        """Return the diff that a call would make, and why it would fail; both may be empty.

        Neither shows anything of a file that the caller has not read.
        """
        most = MAX_PREVIEW_BYTES
        try:
            plan = planned(self._files, context, location, change, token=token, max_diff_chars=most)
        except ToolFailed as error:
            return "", error.message
        except NoFile as error:
            return "", f"it is {error.strerror}, not a file"
        except OSError as error:
            return "", error.strerror or type(error).__name__
        return plan.diff, ""

    @contextmanager
    def _located(self, context: ToolContext, path: str) -> Iterator[Location]:
        """Find what a path names, and remember that for the call. Raises `ToolFailed`."""
        is_found = False
        try:
            with self._files.at(path) as location:
                is_found = True
                self._files.assessed_paths.note(context, path, location.path)
                yield location
        finally:
            if not is_found:
                self._files.assessed_paths.note(context, path, "")

    def _unreached(self, path: str, error: ToolFailed, *, reads: bool) -> tuple[Assessment, _Paths]:
        """Return the assessment of a call that finds no file."""
        written = self._written(path)
        if (error.details or {}).get("reason") == "outside":
            # By its names alone: patterns of the caller must not tell where links lead out there.
            return Assessment("deny", message=error.message), _Paths(written, written)
        real: str | None = None
        with suppress(UnresolvedPath):
            real = resolve(path, self._files.roots.folders[0])
        paths = _Paths(written, real)
        message = f"the call would fail: {error.message}"
        if reads:
            return Assessment("pass", read_only=True, message=message), paths
        return Assessment("ask", within_workdir=True, message=message), paths

    def _written(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._files.roots.folders[0], path))

    def _paths(self, path: str, location: Location) -> _Paths:
        written = self._written(path)
        return _Paths(written, location.path, location.root, location.is_folder)

    def _reason(self, path: str, location: Location, *, writes: bool) -> str:
        """Return why a person decides about a file, to follow its name; empty if no one has to."""
        for text in (path, self._written(path), location.path):
            if reason := self._files.sensitive.reason(text, writes=writes):
                return reason
        return ""

    def _with_rules(
        self, context: ToolContext, assessment: Assessment, paths: _Paths
    ) -> Assessment:
        """Return an assessment with the asked patterns that cover one file, or all of a folder."""
        if not context.patterns:
            return assessment
        if paths.real is None:  # it may be anything
            return _uncertain(assessment, context.patterns)
        matches = []
        sure = []
        for text in context.patterns:
            pattern = self._pattern(text)
            if pattern.covers(paths.real, is_folder=paths.is_folder):
                sure.append(text)
            if any(_may_cover(pattern, path, paths) for path in (paths.real, paths.written)):
                matches.append(text)
        return replace(assessment, matches=tuple(matches), parts=(tuple(sure),))

    def _with_tree(
        self,
        context: ToolContext,
        assessment: Assessment,
        paths: _Paths,
        names: Iterable[str] | None,
        *,
        is_read: Callable[[str], bool] = _is_any,
    ) -> Assessment:
        """Return an assessment with the asked patterns that cover anything in a folder.

        What the call would read, or tell, are names from the root of the folder, None if there are
        too many; `is_read` tells of the path of one of them whether it counts.
        """
        assessment = self._with_rules(context, assessment, paths)
        if names is None or paths.real is None:
            message = (
                f"{assessment.message}, which has too many files to compare with rules: {_NARROW}"
            )
            return _uncertain(replace(assessment, message=message, hint=_NARROW), context.patterns)
        files = [os.path.join(paths.root, name) for name in names]
        if paths.written != paths.real:
            files += [paths.written + path[len(paths.real) :] for path in files]
        found = [
            text
            for text in context.patterns
            if any(map(is_read, self._pattern(text).may_be_covered(files)))
        ]
        if not found:
            return assessment
        shown = shortened(one_line(", ".join(f"`{text}`" for text in found)), SHOWN_CHARS)
        message = f"{assessment.message}, with files that rules are about ({shown}): {_NARROW}"
        matches = tuple(dict.fromkeys((*assessment.matches, *found)))
        return replace(assessment, message=message, matches=matches, hint=_NARROW)

    def _suggestions(self, location: Location) -> tuple[Rule, ...]:
        """Return a rule for the folder of a file; of one directly in a root, for it alone."""
        if location.status is not None and not stat.S_ISREG(location.status.st_mode):
            return ()
        is_first = location.root == self._files.roots.folders[0]
        relative = location.relative
        folder = os.path.dirname(relative)
        start = "" if folder else "/"
        if not is_first:
            start = f"{location.root.rstrip('/')}/"
        pattern = escaped(f"{start}{folder or relative}") + ("/**" if folder else "")
        try:
            return (Rule(behavior="allow", match=pattern),)
        except ValueError:  # a name that is no text
            return ()


def _uncertain(assessment: Assessment, patterns: tuple[str, ...]) -> Assessment:
    """Return an assessment of a call that each of the patterns may cover."""
    return replace(assessment, matches=patterns, parts=((),), uncertain=patterns)


def _may_cover(pattern: RootedPattern, path: str, paths: _Paths) -> bool:
    if pattern.may_cover(path, is_folder=paths.is_folder):
        return True
    return paths.is_folder and pattern.may_cover(_any_name_in(path))


def _any_name_in(folder: str) -> str:
    return os.path.join(folder, _ANY_NAME)


def _folders_below(location: Location) -> list[str] | None:
    """Return a folder and those below it, from the root; None for too many. Raises `OSError`."""
    ends_at = time.monotonic() + _LISTING_S
    top = location.open_folder()
    found = []
    entries = 0
    try:
        # By descriptors, and never through a symlink.
        for folder, folders, files, _ in os.fwalk(".", dir_fd=top):
            found.append(os.path.normpath(os.path.join(location.relative, folder)))
            entries += len(folders) + len(files)
            if entries > _MAX_ENTRIES or time.monotonic() > ends_at:
                return None
    finally:
        os.close(top)
    return found


def _shown(path: str, name: str) -> str:
    """Return how a file is named: as it was written, and where that leads."""
    written = shortened(one_line(os.path.normpath(path)), SHOWN_CHARS)
    if written == name or os.path.isabs(path):
        return f"`{name}`"
    return f"`{written}` (which is `{name}`)"


def _words_of_change(location: Location, shown: str, diff: str | None, error_text: str) -> str:
    """Return what a call would do to a file, for a person.

    A call that has no text has no diff; one that would not fail has no text of an error.
    """
    status = location.status
    if error_text:
        return f"would fail for {shown}: {error_text}"
    if status is not None and not stat.S_ISREG(status.st_mode):
        return f"would fail for {shown}, which is no file"
    lines = (diff or "").split("\n")[2:]
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    if status is None:
        words = f"makes {shown}"
        if added:
            words += f", with {_counted(added)}"
        if location.missing:
            folder = os.path.dirname(location.relative)
            words += f", and the folder `{shortened(one_line(folder), SHOWN_CHARS)}`"
        return words
    if diff is None:
        return f"replaces {shown}, which has {status.st_size:,} bytes"
    if added and removed:
        return f"replaces {_counted(removed)} of {shown} by {added:,}"
    if added:
        return f"adds {_counted(added)} to {shown}"
    if removed:
        return f"removes {_counted(removed)} of {shown}"
    return f"changes {shown}: {diff[1:-1]}" if diff else f"leaves {shown} as it is"


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"
