"""The attachment of a call: one file, in each of the forms in which a caller may give it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable
from typing import Any

from toolbus.chunks.chunk_types import FileChunk, as_chunk
from toolbus.chunks.file_io import PathSource
from toolbus.errors import InvalidArguments, InvalidResult

__all__ = ["as_attachment", "check_readable"]


def as_attachment(value: Any) -> FileChunk:
    """Make a file from an attachment. Raises InvalidArguments for other types."""
    if isinstance(value, FileChunk):
        return _sendable_file(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return FileChunk(bytes(value))
    if isinstance(value, str | os.PathLike):
        return _sendable_file(FileChunk.from_path(value))
    if isinstance(value, AsyncIterable):
        return FileChunk.from_pieces(value)
    forms = "bytes, a path, a FileChunk or an async iterable of bytes"
    text = f"an attachment must be {forms}, not {type(value).__name__}"
    raise InvalidArguments(text, details={"path": "/attachment", "message": text})


async def check_readable(file: FileChunk) -> None:
    """Raise `OSError` before anything is sent if a local file cannot be read."""
    if isinstance(file.source, PathSource):
        await file.source.check()


def _sendable_file(file: FileChunk) -> FileChunk:
    try:
        checked = as_chunk(file)
    except InvalidResult as error:
        raise InvalidArguments(error.message, executed="no", details=error.details) from None
    assert isinstance(checked, FileChunk)
    return checked
