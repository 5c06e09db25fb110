"""The tools that read and change text: `read`, `write`, `edit`, `insert`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import Assessment, FileChunk, FunctionTool, Tool, ToolContext, ToolFailed
from toolbus.chunks.file_io import FILE_THREADS
from toolbus_toolkits.callers import Commit
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.changes import Change, Editing, Inserting, Making, Writing
from toolbus_toolkits.files.planning import CHANGE_THREADS, Plan, planned
from toolbus_toolkits.files.reached import Path, ReachedFiles, Token, failure
from toolbus_toolkits.files.reading import ReadResult, read_file
from toolbus_toolkits.files.text import MAX_SHOWN_CHARS
from toolbus_toolkits.workspace import Location, replaced

__all__ = ["ChangeResult", "TextTools"]

_MAX_TEXT_CHARS = 4 * 1024 * 1024
"""It is in memory as text, lines, bytes and a diff at once; `put` writes larger files."""

NewText = Annotated[str, Field(max_length=_MAX_TEXT_CHARS)]


class ChangeResult(TypedDict):
    """What became of a file."""

    token: str
    """Its version now."""
    diff: str
    """What was changed, as a unified diff."""


class TextTools:
    """The tools that read and change text."""

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self._assessor = assessor
        self.reading: list[Tool] = [
            FunctionTool(
                self._read, name="read", affinity="caller", read_only=True, assess=assessor.reading
            )
        ]
        tools = (
            ("write", self._write, self._assess_write),
            ("edit", self._edit, self._assess_edit),
            ("insert", self._insert, self._assess_insert),
        )
        self.writing: list[Tool] = [
            FunctionTool(function, name=name, affinity="caller", assess=assess)
            for name, function, assess in tools
        ]
        for tool in self.writing:
            tool.marks_entry = True  # by `enter`: before, nothing was changed

    async def _read(
        self,
        context: ToolContext,
        path: Path,
        offset: Annotated[int, Field(ge=1)] = 1,
        limit: Annotated[int, Field(ge=1, le=10_000)] = 2000,
    ) -> ReadResult | FileChunk:
        r"""Read lines of a text file. An image or a PDF comes as a file.

        Each line begins with its number and a tab, which are not part of the file. `\r\n` is shown
        as `\n`. A line of over 2,000 characters is cut; `limit=1` shows it whole. At most 100,000
        characters are shown. A last line in brackets says what is left out, and how to read on.
        The lines that you have read you may change.

        Args:
            context: The call.
            path: The file, from the root, or absolute.
            offset: The number of the first line.
            limit: The most lines.
        """
        self._files.seen.prepare(context)
        async with self._files.whole.for_caller(context):
            return await FILE_THREADS.run(read_file, self._files, context, path, offset, limit)

    async def _write(
        self, context: ToolContext, path: Path, text: NewText, token: Token | None = None
    ) -> ChangeResult:
        """Write a text file as a whole. One that exists you must have read as a whole before.

        Use `edit` for small changes. An existing file keeps its encoding and its line ends; a new
        one is in UTF-8.

        Args:
            context: The call.
            path: The file, from the root, or absolute. Folders that are missing are made.
            text: All of its text.
            token: The version that is replaced; by default the one that you have read last.
        """
        return await self._change(context, path, Writing(text), token)

    async def _edit(
        self,
        context: ToolContext,
        path: Path,
        old_text: NewText,
        new_text: NewText,
        replace_all: bool = False,
        token: Token | None = None,
    ) -> ChangeResult:
        r"""Replace a text in a file. You must have read the lines before.

        Encoding, line ends and all that is not replaced stay as they are; `\n` stands for each line
        end. Several edits in a row need no further `read`.

        Args:
            context: The call.
            path: The file, from the root, or absolute.
            old_text: The text, exactly as it is in the file, without the line numbers of `read`. It
                must be there once: give lines around it to make it so.
            new_text: What is there instead.
            replace_all: Replace it wherever it is.
            token: The version that is changed; by default the one that you have read last.
        """
        return await self._change(context, path, Editing(old_text, new_text, replace_all), token)

    async def _insert(
        self,
        context: ToolContext,
        path: Path,
        line: Annotated[int, Field(ge=0)],
        text: Annotated[str, Field(min_length=1, max_length=_MAX_TEXT_CHARS)],
        token: Token | None = None,
    ) -> ChangeResult:
        """Insert lines into a file. You must have read a line beside the place before.

        Args:
            context: The call.
            path: The file, from the root, or absolute.
            line: The number of the line after which they are inserted; 0 for the beginning.
            text: The lines. A line end after the last one is added if it is missing.
            token: The version that is changed; by default the one that you have read last.
        """
        return await self._change(context, path, Inserting(line, text), token)

    def _assess_write(
        self, context: ToolContext, path: str, text: str, token: str | None = None
    ) -> Assessment:
        return self._assessor.changing(context, path, Writing(text), token)

    def _assess_edit(
        self,
        context: ToolContext,
        path: str,
        old_text: str,
        new_text: str,
        replace_all: bool = False,
        token: str | None = None,
    ) -> Assessment:
        change = Editing(old_text, new_text, replace_all)
        return self._assessor.changing(context, path, change, token)

    def _assess_insert(
        self, context: ToolContext, path: str, line: int, text: str, token: str | None = None
    ) -> Assessment:
        return self._assessor.changing(context, path, Inserting(line, text), token)

    async def make(self, context: ToolContext, texts: Mapping[str, str]) -> dict[str, str]:
        """Make files that are not there, by their paths; return the version of each.

        For tools of other toolkits. All of them are checked before the first is made. Raises
        `ToolFailed`, which says what was made if that is not nothing.
        """
        made = await self._change_all(context, {path: Making(texts[path]) for path in texts}, None)
        return {path: plan.token for path, plan in made.items()}

    def assess_make(self, context: ToolContext, texts: Mapping[str, str]) -> Assessment:
        """Return the assessment of a call that makes files, by their paths."""
        return self._assessor.making(context, texts)

    async def _change(
        self, context: ToolContext, path: str, change: Change, token: str | None
    ) -> ChangeResult:
        plan = (await self._change_all(context, {path: change}, token))[path]
        return ChangeResult(token=plan.token, diff=plan.diff)

    async def _change_all(
        self, context: ToolContext, changes: Mapping[str, Change], token: str | None
    ) -> dict[str, Plan]:
        """Change files, and return what was made of each, by its path."""
        self._files.seen.prepare(context)
        commit = Commit()
        done: dict[str, Plan] = {}
        work = partial(self._change_now, context, changes, token, commit, done)
        try:
            await CHANGE_THREADS.run(work)
        except ToolFailed as error:  # this file is as it was, and so are those behind it
            if not done:
                error.executed = "no"
                context.refuse(error)
                raise
            context.enter()
            text = f"{error.message}; made before that: {', '.join(done)}"
            raise ToolFailed(text, details=error.details) from None
        except asyncio.CancelledError:
            if commit.give_up():
                context.enter()
            raise
        context.enter()
        return done

    def _change_now(
        self,
        context: ToolContext,
        changes: Mapping[str, Change],
        token: str | None,
        commit: Commit,
        done: dict[str, Plan],
    ) -> None:
        with ExitStack() as stack:
            planned_changes: list[tuple[str, Location, Plan]] = []
            for path, change in changes.items():
                location = stack.enter_context(self._files.at(path, context))
                with self._files.failing(path):
                    plan = planned(
                        self._files,
                        context,
                        location,
                        change,
                        token=token,
                        max_diff_chars=MAX_SHOWN_CHARS,
                    )
                planned_changes.append((path, location, plan))
            for path, location, plan in planned_changes:
                with self._files.failing(path):
                    self._write_planned(location, plan, commit)
                self._files.seen.replace(context, location.path, plan.seen)
                done[path] = plan

    def _write_planned(self, location: Location, plan: Plan, commit: Commit) -> None:
        def check(descriptor: int | None) -> None:
            if not _is_still(plan.before, descriptor):
                name = self._files.name_of(location)
                text = f"{name} was changed by another one meanwhile: read it again"
                raise failure("changed", text)
            commit.begin()

        if plan.data != plan.before:
            replaced(location, plan.data, check)


def _is_still(before: bytes | None, descriptor: int | None) -> bool:
    """Whether a file is the one that was read, and none was there where none was."""
    if before is None or descriptor is None:
        return before is None and descriptor is None
    if os.fstat(descriptor).st_size != len(before):
        return False
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read(len(before) + 1) == before
