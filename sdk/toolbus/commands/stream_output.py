"""Where the values of a stream go, each as it comes: stdout or a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import typer

from toolbus.chunks import Chunk, FileChunk, LinkChunk, TextChunk
from toolbus.commands.value_output import PatientStdout, ValueOutput, plain_of, write_out
from toolbus.commands.whole_file import new_file
from toolbus.errors import RoomException
from toolbus.exit_codes import UsageMistake, printable

__all__ = ["StreamOutput", "progress_lines"]


def progress_lines() -> Callable[[Any], None] | None:
    """Give what shows a tool's progress on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(value: Any) -> None:
        words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        typer.echo(f"... {printable(words)}".replace("\n", " "), err=True)

    return show


def _may_end_up_together() -> bool:
    """Whether stdout and stderr go to one place, or what reads stdout may show it there."""
    if sys.stderr.isatty():
        return True
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # a program has put something else in their place
        return False


def _opened(stack: ExitStack, place: Path) -> BinaryIO:
    try:
        return stack.enter_context(new_file(place))
    except OSError as error:
        words = f"cannot write {place}: {error.strerror}"
        raise UsageMistake(words, executed="maybe") from error


@dataclass(slots=True)
class StreamOutput:
    """Writes the values of one stream: text and files raw, all else a line of JSON each.

    With the output's `as_json` everything is a line of JSON.
    """

    output: ValueOutput
    _file: BinaryIO | None = field(default=None, init=False)
    _stdout: PatientStdout = field(default_factory=PatientStdout, init=False)
    _size: int = field(default=0, init=False)
    _is_mid_line: bool = field(default=False, init=False)

    async def write_all(self, chunks: AsyncIterator[Chunk]) -> None:
        """Write what comes, until the end.

        Raises:
            UsageMistake: It cannot go there.
            RoomException: How the stream ended; what came before is written.
        """
        place = self.output.place
        if place is None:
            await self._write_to_stdout(chunks)
            return
        with ExitStack() as stack:
            self._file = _opened(stack, place)
            async for chunk in chunks:
                await self._write(chunk)
        self.output.tell_size(self._size)

    async def _write_to_stdout(self, chunks: AsyncIterator[Chunk]) -> None:
        try:
            async for chunk in chunks:
                await self._write(chunk)
        except RoomException:
            self._end_line_elsewhere()
            raise
        finally:
            await self._stdout.aclose()
            if self._is_mid_line and sys.stdout.isatty():
                write_out(b"\n")

    def _end_line_elsewhere(self) -> None:
        """Keep an error off the text before it; nothing is added to what goes into a pipe."""
        if self._is_mid_line and not sys.stdout.isatty() and _may_end_up_together():
            typer.echo(err=True)

    async def _write(self, chunk: Chunk) -> None:
        if isinstance(chunk, FileChunk):
            await self._write_file(chunk)
        elif isinstance(chunk, TextChunk) and not self.output.as_json:
            is_for_a_person = self._file is None and sys.stdout.isatty()
            await self._put((printable(chunk.text) if is_for_a_person else chunk.text).encode())
        elif isinstance(chunk, LinkChunk) and not self.output.as_json:
            await self._put_line(chunk.url)
        else:
            await self._put_line(json.dumps(plain_of(chunk), ensure_ascii=False))

    async def _write_file(self, file: FileChunk) -> None:
        if self.output.as_json:
            whole = FileChunk(await file.read(), file.name, file.mime_type)
            await self._put_line(json.dumps(plain_of(whole), ensure_ascii=False))
            return
        self.output.refuse_terminal("a file", "maybe")
        async for piece in file.pieces():
            await self._put(piece)

    async def _put_line(self, line: str) -> None:
        start = b"\n" if self._is_mid_line else b""
        await self._put(start + line.encode() + b"\n")

    async def _put(self, data: bytes) -> None:
        if data:
            self._is_mid_line = not data.endswith(b"\n")
        self._size += len(data)
        if self._file is None:
            await self._stdout.write(data)
        else:
            self._file.write(data)
            self._file.flush()
