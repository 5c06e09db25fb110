"""Where the value of a call goes: stdout or a file, as it is or as JSON."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from toolbus.chunks import Chunk, FileChunk, LinkChunk, TextChunk
from toolbus.errors import Executed
from toolbus.exit_codes import UsageMistake, printable
from toolbus.thread_items import ThreadItems

__all__ = ["PatientStdout", "ValueOutput", "plain_of", "write_out"]

_STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class ValueOutput:
    """Writes a value: text and files raw, a link as its address, all else as JSON.

    With `as_json` everything is one JSON value, text too. A file given by `path` is written in
    place of stdout; `-` is stdout, also where that is a terminal.
    """

    as_json: bool
    path: Path | None = None

    @property
    def place(self) -> Path | None:
        """The file that is written; None is stdout."""
        return None if self.path == _STDOUT else self.path

    def __post_init__(self) -> None:
        if self.place is not None and not _may_be_written(self.place):
            name = str(self.path)[:200]
            raise UsageMistake(f"{name} cannot be written: name a file in a folder that exists")

    def write(self, chunk: Chunk) -> None:
        """Write a value. Raises UsageMistake where it cannot go there; the tool has run."""
        data = self._bytes(chunk)
        if self.place is None:
            self._write_to_stdout(chunk, data)
            return
        try:
            self.place.write_bytes(data)
        except OSError as error:
            raise self._cannot_write(error, "yes") from error
        self.tell_size(len(data))

    async def write_pieces(self, file: FileChunk) -> None:
        """Write a file that is not whole, as it comes.

        Raises:
            UsageMistake: It cannot go there; what has not come yet is given up.
            RoomException: The rest of it does not come.
        """
        place = self.place
        if place is None and self.as_json:
            self.write(FileChunk(await file.read(), file.name, file.mime_type))
        elif place is None:
            self.refuse_terminal("a file", "maybe")
            async with aclosing(PatientStdout()) as stdout:
                async for piece in file.pieces():
                    await stdout.write(piece)
        else:
            try:
                await file.save(place)
            except OSError as error:
                raise self._cannot_write(error, "maybe") from error
            self.tell_size(place.stat().st_size)

    def tell_size(self, size: int) -> None:
        """Say on stderr how much was written to the file."""
        typer.echo(f"wrote {size} {'byte' if size == 1 else 'bytes'} to {self.place}", err=True)

    def refuse_terminal(self, what: str, executed: Executed) -> None:
        """Raise UsageMistake where bytes would go to a terminal that nobody meant for them."""
        if self.path is None and sys.stdout.isatty():
            raise UsageMistake(
                f"the value is {what}, and not for a terminal: say --out FILE, or redirect stdout",
                executed=executed,
            )

    def _cannot_write(self, error: OSError, executed: Executed) -> UsageMistake:
        return UsageMistake(f"cannot write {self.place}: {error.strerror}", executed=executed)

    def _write_to_stdout(self, chunk: Chunk, data: bytes) -> None:
        is_file = isinstance(chunk, FileChunk) and not self.as_json
        if is_file:
            self.refuse_terminal(f"a file of {len(data)} bytes", "yes")
        write_out(data if is_file or data.endswith(b"\n") else data + b"\n")

    def _bytes(self, chunk: Chunk) -> bytes:
        if isinstance(chunk, FileChunk) and (not self.as_json or self.place is not None):
            return chunk.data
        if isinstance(chunk, TextChunk) and not self.as_json:
            is_for_a_person = self.place is None and sys.stdout.isatty()
            return (printable(chunk.text) if is_for_a_person else chunk.text).encode()
        if isinstance(chunk, LinkChunk) and not self.as_json:
            return chunk.url.encode()
        indent = 2 if self.place is None and sys.stdout.isatty() else None
        return json.dumps(plain_of(chunk), ensure_ascii=False, indent=indent).encode()


def write_out(data: bytes) -> None:
    """Write to stdout, at once; where that takes no more, this waits, and all else with it."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class PatientStdout:
    """Writes to stdout while the event loop runs on, for as long as its reader pauses."""

    def __init__(self) -> None:
        self._data = b""
        # A thread that nothing waits for: whoever reads may never go on.
        self._writes = ThreadItems(lambda: iter(self._write, None))

    async def write(self, data: bytes) -> None:
        """Write all of it; one task writes at a time.

        Raises:
            OSError: It cannot be written, as where nobody reads any more.
        """
        self._data = data
        await anext(self._writes)

    async def aclose(self) -> None:
        """Write no more. Returns at once; what was cancelled may still be on its way."""
        self._writes.leave()

    def _write(self) -> int:
        try:
            stdout = sys.stdout.fileno()
        except io.UnsupportedOperation:  # a program has put something else in its place
            write_out(self._data)
            return len(self._data)
        # Past the buffer of `sys.stdout`: a thread that holds it keeps Python from ending.
        left = memoryview(self._data)
        while left:
            left = left[os.write(stdout, left) :]
        return len(self._data)


def plain_of(chunk: Chunk) -> Any:
    """Say as JSON what a chunk holds; a file has to be whole."""
    match chunk:
        case FileChunk():
            data = chunk.data
            text = base64.b64encode(data).decode()
            named = {"name": chunk.name, "mime_type": chunk.mime_type}
            return {**named, "size_bytes": len(data), "base64": text}
        case LinkChunk(url, name):
            return {"url": url, "name": name}
        case _:
            return chunk.value


def _may_be_written(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # a name that no file system takes
        return False
