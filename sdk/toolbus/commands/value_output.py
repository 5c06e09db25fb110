"""Where the value of a call goes: stdout or a file, as it is or as JSON."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from toolbus.chunks import Chunk, FileChunk, LinkChunk, TextChunk
from toolbus.exit_codes import UsageMistake, printable

__all__ = ["ValueOutput"]


@dataclass(frozen=True, slots=True)
class ValueOutput:
    """Writes a value: text and files raw, a link as its address, all else as JSON.

    With `as_json` everything is one JSON value, text too. A file given by `path` is written in
    place of stdout.
    """

    as_json: bool
    path: Path | None = None

    def __post_init__(self) -> None:
        if self.path is not None and not _may_be_written(self.path):
            name = str(self.path)[:200]
            raise UsageMistake(f"{name} cannot be written: name a file in a folder that exists")

    def write(self, chunk: Chunk) -> None:
        """Write a value. Raises UsageMistake where it cannot go there; the tool has run."""
        data = self._bytes(chunk)
        if self.path is None:
            self._write_to_stdout(chunk, data)
            return
        try:
            self.path.write_bytes(data)
        except OSError as error:
            raise UsageMistake(
                f"cannot write {self.path}: {error.strerror}", executed="yes"
            ) from error
        size = len(data)
        typer.echo(f"wrote {size} {'byte' if size == 1 else 'bytes'} to {self.path}", err=True)

    def _write_to_stdout(self, chunk: Chunk, data: bytes) -> None:
        is_file = isinstance(chunk, FileChunk) and not self.as_json
        if is_file and sys.stdout.isatty():
            raise UsageMistake(
                f"the value is a file of {len(data)} bytes, and not for a terminal: "
                "say --out FILE, or redirect stdout",
                executed="yes",
            )
        sys.stdout.buffer.write(data if is_file or data.endswith(b"\n") else data + b"\n")
        sys.stdout.buffer.flush()

    def _bytes(self, chunk: Chunk) -> bytes:
        if isinstance(chunk, FileChunk) and (not self.as_json or self.path is not None):
            return chunk.data
        if isinstance(chunk, TextChunk) and not self.as_json:
            is_for_a_person = self.path is None and sys.stdout.isatty()
            return (printable(chunk.text) if is_for_a_person else chunk.text).encode()
        if isinstance(chunk, LinkChunk) and not self.as_json:
            return chunk.url.encode()
        indent = 2 if self.path is None and sys.stdout.isatty() else None
        return json.dumps(_plain(chunk), ensure_ascii=False, indent=indent).encode()


def _plain(chunk: Chunk) -> Any:
    match chunk:
        case FileChunk(data, name, mime_type):
            text = base64.b64encode(data).decode()
            return {"name": name, "mime_type": mime_type, "size_bytes": len(data), "base64": text}
        case LinkChunk(url, name):
            return {"url": url, "name": name}
        case _:
            return chunk.value


def _may_be_written(path: Path) -> bool:
    try:
        return path.parent.is_dir() and not path.is_dir()
    except OSError:  # a name that no file system takes
        return False
