"""Reads a file for `read`: once, block by block, as a part of its text, or as an image."""

from __future__ import annotations

import os
from typing import IO, NamedTuple

from toolbus import FileChunk, ToolContext
from toolbus.models.results import MAX_RESULT_FILE_BYTES
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.excerpts import ExcerptScan
from toolbus_toolkits.files.reached import ReachedFiles, cancelled, failure
from toolbus_toolkits.files.seen import Seen
from toolbus_toolkits.files.text import NotText, TextScan, token_of

__all__ = ["MAX_UNKNOWN_BYTES", "ReadText", "read_file"]

_BLOCK_BYTES = 1024 * 1024
MAX_UNKNOWN_BYTES = 16 * 2**20
"""Of a file that says it has no bytes, and has some, such as those of /proc."""
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


class ReadText(NamedTuple):
    """A part of a text file."""

    text: str
    token: str
    is_cut: bool


def read_file(
    files: ReachedFiles, context: ToolContext, path: str, offset: int, limit: int
) -> ReadText | FileChunk:
    """Read lines of a text file, or an image; blocking.

    Raises `ToolFailed`.
    """
    with files.at(path, context) as location, os.fdopen(location.open_file(), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        name = files.name_of(location)
        block = file.read(min(_BLOCK_BYTES, size or _BLOCK_BYTES))
        if media_type := _media_type_of(block):
            data = _rest(file, block, size, name)
            files.seen.add(context, location.path, Seen.whole(token_of(data)))
            return FileChunk(data, one_line(location.name), media_type)
        scan = TextScan()
        excerpt = ExcerptScan(offset, limit)
        # Not beyond the size that it had: a file that grows as fast as it is read has no end.
        left = size or MAX_UNKNOWN_BYTES
        try:
            while block:
                if context.cancelled:
                    raise cancelled()
                excerpt.feed(scan.feed(block))
                left -= len(block)
                block = file.read(min(_BLOCK_BYTES, left))
            found = excerpt.excerpt(scan.encoding())
        except NotText as error:
            text = f"{name} is no text ({size:,} bytes): {error}; `get` sends it as a file"
            raise failure("binary", text) from None
        seen = Seen(scan.token, found.line_count).added(found.seen)
        files.seen.add(context, location.path, seen)
        return ReadText(found.text, scan.token, found.is_cut)


def _media_type_of(block: bytes) -> str:
    """Return the media type of what models take as a file; empty for all else."""
    if block[:4] == b"RIFF" and block[8:12] == b"WEBP":
        return "image/webp"
    found = (kind for signature, kind in _SIGNATURES if block.startswith(signature))
    kind = next(found, "")
    # Each image has NUL. A text may begin like one, and models refuse what is no image.
    return kind if 0 in block or kind == "application/pdf" else ""


def _rest(file: IO[bytes], block: bytes, size: int, name: str) -> bytes:
    """Read the rest of a file that is sent as a whole. Raises `ToolFailed` for a large one."""
    data = block + file.read(max(0, MAX_RESULT_FILE_BYTES + 1 - len(block)))
    if len(data) > MAX_RESULT_FILE_BYTES:
        text = f"{name} has {size:,} bytes, models take at most {MAX_RESULT_FILE_BYTES:,}"
        raise failure("too_large", f"{text}: `get` sends it as a file")
    return data
