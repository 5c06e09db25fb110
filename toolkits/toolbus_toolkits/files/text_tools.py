"""The tools that read and change text: `read`, `write`, `edit`, `insert`."""

from __future__ import annotations

import difflib
import hashlib
import os
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from toolbus import FileChunk, FunctionTool, Tool, ToolContext
from toolbus.chunks.file_io import FILE_THREADS
from toolbus_toolkits.files.assessing import Assessor
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.workspace import Location, replaced

__all__ = ["ChangeResult", "ReadResult", "TextTools"]

Path = Annotated[str, Field(min_length=1, max_length=4096)]
Token = Annotated[str, Field(min_length=1, max_length=64)]


class ReadResult(TypedDict):
    """A part of a text file."""

    text: str
    """Its lines, each with its number and a tab before it."""
    token: str
    """The version of the file."""
    truncated: bool
    """Whether lines follow that are not shown."""


class ChangeResult(TypedDict):
    """What became of a file."""

    token: str
    """Its version now."""
    diff: str
    """What was changed, as a unified diff."""


class TextTools:
    """The tools that read and change text.

    Args:
        files: The files.
        assessor: What says before a call what it would do.
    """

    def __init__(self, files: ReachedFiles, assessor: Assessor) -> None:
        self._files = files
        self.reading: list[Tool] = [
            FunctionTool(
                self._read, name="read", affinity="caller", read_only=True, assess=assessor.reading
            )
        ]
        self.writing: list[Tool] = [
            FunctionTool(self._write, name="write", affinity="caller", assess=assessor.writing),
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
        """Read a text file, or an image.

        Args:
            context: The call.
            path: The file, from the root, or absolute.
            offset: The first line to read.
            limit: The most lines to read.
        """
        return await FILE_THREADS.run(self._read_now, context, path, offset, limit)

    def _read_now(self, context: ToolContext, path: str, offset: int, limit: int) -> ReadResult:
        with self._files.at(path) as location:
            data = _bytes_of(location)
            token = _token_of(data)
            lines = data.decode().splitlines()
            shown = lines[offset - 1 : offset - 1 + limit]
            text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, offset))
            self._files.seen.add(context, location.path, Seen(token, is_whole=True))
            return ReadResult(text=text, token=token, truncated=offset - 1 + limit < len(lines))

    async def _write(
        self,
        context: ToolContext,
        path: Path,
        text: Annotated[str, Field(max_length=4 * 1024 * 1024)],
        token: Token | None = None,
    ) -> ChangeResult:
        """Write a text file as a whole. One that exists must have been read before.

        Args:
            context: The call.
            path: The file, from the root, or absolute. Folders that are missing are made.
            text: All of its text.
            token: The version that is replaced; by default that which you have read last.
        """
        return await FILE_THREADS.run(self._write_now, context, path, text, token)

    def _write_now(
        self, context: ToolContext, path: str, text: str, token: str | None
    ) -> ChangeResult:
        with self._files.at(path) as location:
            before = b"" if location.status is None else _bytes_of(location)
            seen = self._files.seen.of(context, location.path)
            if location.status is not None:
                expected = token or (seen.token if seen else None)
                if expected is None:
                    text = f"{path} exists, and you have not read it: read it first"
                    raise context.refuse(failure("never_read", text))
                if expected != _token_of(before):
                    text = f"{path} has changed since you have read it: read it again"
                    raise context.refuse(failure("changed", text))

            def check(current: int | None) -> None:
                found = b""
                if current is not None:
                    with os.fdopen(current, "rb", closefd=False) as file:
                        found = file.read()
                if (current is None) != (location.status is None) or found != before:
                    text = f"{path} has changed since you have read it: read it again"
                    raise failure("changed", text)

            context.enter()
            data = text.encode()
            replaced(location, data, check)
            now = _token_of(data)
            self._files.seen.add(context, location.path, Seen(now, is_whole=True))
            lines = difflib.unified_diff(
                before.decode().splitlines(), text.splitlines(), path, path, lineterm=""
            )
            return ChangeResult(token=now, diff="\n".join(lines))


def _bytes_of(location: Location) -> bytes:
    with os.fdopen(location.open_file(), "rb") as file:
        return file.read()


def _token_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
