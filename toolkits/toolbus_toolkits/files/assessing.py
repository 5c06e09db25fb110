"""Says what a call of these tools would do, before it runs.

What a rule covers is compared with two paths of a file: the path as it was written, and the real
one. A link `notes.txt` to `.env` is a secret, and so is a link `.env` to `notes.txt`. A deny or an
ask counts for either of them, an allow for the real one alone.

A call that reads a tree cannot leave out what a rule denies, because a tool is not told which of
the asked patterns are denials. So a pattern counts if the call would read a file that it covers, or
tell names in a folder that it covers with all in it: `path` and `glob` narrow the call. A name alone
is that of its folder: a rule about `*.lock` hides no list of a folder with `poetry.lock` in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from toolbus import Assessment, Rule, ToolContext, ToolFailed
from toolbus.permissions.plain import MAX_PREVIEW_BYTES
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.changes import Change
from toolbus_toolkits.files.planning import name_of, preview
from toolbus_toolkits.files.reached import ReachedFiles
from toolbus_toolkits.workspace import Location, RootedPattern, UnresolvedPath, escaped, resolve

__all__ = ["Assessor"]

_MAX_SHOWN = 200
_ANY_NAME = "\x01" * 16
"""A name that only patterns match which match any name."""


class _Paths(NamedTuple):
    """What a path leads to, as far as that is known."""

    written: str
    """Absolute, by its names alone."""
    real: str | None
    """None if it can lead nowhere."""
    is_folder: bool


class Assessor:
    """What says before a call what it would do. Its methods are blocking.

    Args:
        files: The files.
    """

    def __init__(self, files: ReachedFiles) -> None:
        self._files = files
        # The rules of an operator and of a person: the same ones for each call.
        self._pattern = lru_cache(maxsize=512)(lambda text: RootedPattern(text, files.roots))

    def reading(self, context: ToolContext, path: str) -> Assessment:
        """Return what is said of a call that reads one file."""
        try:
            with self._judged(context, path) as location:
                shown = _shown(path, name_of(self._files, location))
                reason = self._reason(path, location, writes=False)
                paths = self._paths(path, location)
        except ToolFailed as error:
            return self._unreached(context, path, error, reads=True)
        said = Assessment("pass", read_only=True, message=f"reads {shown}")
        if reason:
            said = Assessment("ask", immune=True, message=f"reads {shown}, which {reason}")
        return self._with_rules(context, said, paths)

    def writing(self, context: ToolContext, path: str) -> Assessment:
        """Return what is said of a call that writes one file as a whole."""
        return self._changing(context, path, None, None)

    def changing(
        self, context: ToolContext, path: str, change: Change, token: str | None
    ) -> Assessment:
        """Return what is said of a call that changes the text of one file, with a diff."""
        return self._changing(context, path, change, token)

    def _changing(
        self, context: ToolContext, path: str, change: Change | None, token: str | None
    ) -> Assessment:
        try:
            with self._judged(context, path) as location:
                diff = ""
                if change is not None:
                    diff = self._diff(context, location, change, token)
                shown = _shown(path, name_of(self._files, location))
                message = _words_of_change(location, shown, diff)
                reason = self._reason(path, location, writes=True)
                suggested = () if reason else self._suggestions(location)
                paths = self._paths(path, location)
        except ToolFailed as error:
            return self._unreached(context, path, error, reads=False)
        said = Assessment(
            "ask",
            immune=bool(reason),
            within_workdir=not reason,
            message=f"{message}; it {reason}" if reason else message,
            preview=diff,
            suggestions=suggested,
        )
        return self._with_rules(context, said, paths)

    def _diff(
        self, context: ToolContext, location: Location, change: Change, token: str | None
    ) -> str:
        try:
            return preview(
                self._files, context, location, change, token=token, max_chars=MAX_PREVIEW_BYTES
            )
        except OSError as error:
            return f"[it would change nothing: {error.strerror}]"

    @contextmanager
    def _judged(self, context: ToolContext, path: str) -> Iterator[Location]:
        """Find what a path names, and remember that for the call. Raises `ToolFailed`."""
        is_found = False
        try:
            with self._files.at(path) as location:
                is_found = True
                self._files.judged.note(context, path, location.path)
                yield location
        finally:
            if not is_found:
                self._files.judged.note(context, path, "")

    def _unreached(
        self, context: ToolContext, path: str, error: ToolFailed, *, reads: bool
    ) -> Assessment:
        """Return what is said of a call that finds no file."""
        if (error.details or {}).get("reason") == "outside":
            return Assessment("deny", message=error.message)
        real: str | None = None
        try:
            real = resolve(path, self._files.roots.folders[0])
        except UnresolvedPath:
            pass
        message = f"the call would fail: {error.message}"
        said = Assessment("ask", within_workdir=True, message=message)
        if reads:
            said = Assessment("pass", read_only=True, message=message)
        return self._with_rules(context, said, _Paths(self._written(path), real, is_folder=False))

    def _written(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._files.roots.folders[0], path))

    def _paths(self, path: str, location: Location) -> _Paths:
        status = location.status
        is_folder = status is not None and stat.S_ISDIR(status.st_mode)
        return _Paths(self._written(path), location.path, is_folder)

    def _reason(self, path: str, location: Location, *, writes: bool) -> str:
        """Return why a person decides about a file, to follow its name; empty if no one has to."""
        for text in (path, self._written(path), location.path):
            if reason := self._files.sensitive.reason(text, writes=writes):
                return reason
        return ""

    def _with_rules(self, context: ToolContext, said: Assessment, paths: _Paths) -> Assessment:
        """Return an assessment with the asked patterns that cover one file."""
        if paths.real is None:  # it may be anything
            return replace(said, matches=context.patterns, parts=((),))
        matches = []
        sure = []
        for text in context.patterns:
            pattern = self._pattern(text)
            if pattern.covers(paths.real, is_folder=paths.is_folder):
                sure.append(text)
            if text in sure or any(
                pattern.may_cover(path, is_folder=paths.is_folder) for path in paths[:2] if path
            ):
                matches.append(text)
        return replace(said, matches=tuple(matches), parts=(tuple(sure),))

    def _suggestions(self, location: Location) -> tuple[Rule, ...]:
        """Return a rule for the folder of a file; of one directly in a root, for it alone."""
        is_first = location.root == self._files.roots.folders[0]
        relative = location.relative
        folder = os.path.dirname(relative)
        start = "" if is_first and folder else "/" if is_first else f"{location.root}/"
        pattern = escaped(f"{start}{folder or relative}") + ("/**" if folder else "")
        try:
            return (Rule(behavior="allow", match=pattern),)
        except ValueError:  # a name that is no text
            return ()


def _shown(path: str, name: str) -> str:
    """Return how a file is named: as it was written, and where that leads."""
    written = one_line(os.path.normpath(path), _MAX_SHOWN)
    if written == name or os.path.isabs(path):
        return f"`{name}`"
    return f"`{written}` (which is `{name}`)"


def _words_of_change(location: Location, shown: str, diff: str) -> str:
    """Return what a call would do to a file, for a person."""
    if diff.startswith("[it would"):
        return f"would fail for {shown}: {diff[1:-1]}"
    lines = diff.split("\n")
    added = sum(line.startswith("+") for line in lines[2:])
    removed = sum(line.startswith("-") for line in lines[2:])
    if location.status is None:
        words = f"makes {shown}"
        if added:
            words += f", with {_counted(added)}"
        if location.missing:
            words += f", and the folder `{one_line('/'.join(location.missing), _MAX_SHOWN)}`"
        return words
    if not stat.S_ISREG(location.status.st_mode):
        return f"would fail for {shown}: it is no file"
    if added and removed:
        return f"replaces {_counted(removed)} of {shown} by {added}"
    if added or removed:
        return (
            f"adds {_counted(added)} to {shown}"
            if added
            else (f"removes {_counted(removed)} of {shown}")
        )
    return f"replaces {shown}, which has {location.status.st_size:,} bytes"


def _counted(lines: int) -> str:
    return "1 line" if lines == 1 else f"{lines:,} lines"
