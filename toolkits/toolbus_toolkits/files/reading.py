"""Reads a file for `read`: once, block by block, as a part of its text, or as an image."""

from __future__ import annotations

import codecs
import os
from itertools import pairwise
from typing import IO, NamedTuple

from typing_extensions import TypedDict

from toolbus import FileChunk, ToolContext
from toolbus.models.results import MAX_RESULT_FILE_BYTES
from toolbus.untrusted_text import one_line
from toolbus_toolkits.files.reached import ReachedFiles, cancelled, failure
from toolbus_toolkits.files.seen import Lines, Seen
from toolbus_toolkits.files.text import (
    MAX_LINE_CHARS,
    MAX_SHOWN_CHARS,
    Encoding,
    NotText,
    TextScan,
    token_of,
)

__all__ = ["MAX_UNKNOWN_BYTES", "ReadResult", "read_file"]

_MAX_SHOWN = MAX_SHOWN_CHARS - 1_000
"""Of the lines; the rest is for the words below them."""
_MAX_BYTES_OF_CHAR = 4
"""In UTF-8 (RFC 3629) and UTF-16."""
_CONTINUATION = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that begin no character."""
_NUMBER_CHARS = 8
"""What stands around each line: its number, a tab and the line end."""


class Excerpt(NamedTuple):
    """What a `read` shows."""

    text: str
    is_cut: bool
    """Whether lines follow, or a line is not whole."""
    line_count: int
    """How many lines the file has."""
    seen: tuple[Lines, ...]
    """The lines that are shown as a whole."""


class ExcerptScan:
    r"""Finds the lines of an excerpt in blocks in which a line ends with the byte of `\n`.

    It keeps no more of them than can be shown.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._limit = limit
        self._max_line = _MAX_SHOWN if limit == 1 else MAX_LINE_CHARS
        self._max_bytes = self._max_line * _MAX_BYTES_OF_CHAR
        self._ended = 0  # lines that have ended
        self._ends_with_line_end = True
        self._size = 0
        self._stored_bytes = 0
        self._lines: list[bytes] = []
        self._long: dict[int, tuple[int, int]] = {}
        """Of lines that are stored in part, by their index: all bytes, and characters of UTF-8."""

    def feed(self, block: bytes) -> None:
        """Take the next block."""
        if not block:
            return
        self._ends_with_line_end = block.endswith(b"\n")
        self._size += len(block)
        last = self._offset - 1 + self._limit
        total = self._ended + block.count(b"\n")
        # As many bytes have more characters than are shown, whatever the encoding.
        is_full = self._stored_bytes > MAX_SHOWN_CHARS * _MAX_BYTES_OF_CHAR
        if self._ended < last and total >= self._offset - 1 and not is_full:
            start = 0
            for _ in range(self._offset - 1 - self._ended):
                start = block.index(b"\n", start) + 1
                self._ended += 1
            wanted = last - self._ended
            # What follows the last line that is wanted is one more piece.
            self._keep(block[start:].split(b"\n", wanted)[:wanted])
        self._ended = total

    def _keep(self, pieces: list[bytes]) -> None:
        """Keep lines; the first one may go on from the block before."""
        if self._ended - self._offset + 1 < len(self._lines):
            self._extend(pieces.pop(0))
        if max(map(len, pieces), default=0) <= self._max_bytes:
            self._lines += pieces
            self._stored_bytes += sum(map(len, pieces))
            return
        for piece in pieces:
            self._lines.append(b"")
            self._extend(piece)

    def _extend(self, piece: bytes) -> None:
        line = self._lines[-1]
        at = len(self._lines) - 1
        if len(line) + len(piece) > self._max_bytes:
            size, chars = self._long.get(at, (len(line), _count_of_chars(line)))
            self._long[at] = (size + len(piece), chars + _count_of_chars(piece))
        stored = piece[: self._max_bytes - len(line)]
        self._lines[-1] = line + stored
        self._stored_bytes += len(stored)

    def excerpt(self, encoding: Encoding) -> Excerpt:
        """Return what is shown, once all blocks were taken."""
        if encoding.bom and self._size == len(codecs.BOM_UTF8):
            self._ends_with_line_end = True  # it has no line
        count = self._ended + (not self._ends_with_line_end)
        shown: list[str] = []
        cut: list[int] = []
        left = _MAX_SHOWN
        for number, text in enumerate(self._texts(encoding, count), self._offset):
            more = len(text) - self._max_line
            if number - self._offset in self._long:
                size, chars = self._long[number - self._offset]
                more = (size if encoding.has_one_byte else chars) - self._max_line
            if more > 0:
                text = f"{text[: self._max_line]}[cut: {more:,} more characters]"
            left -= len(text) + _NUMBER_CHARS
            if left < 0 and shown:
                break
            shown.append(f"{number:6}\t{text}")
            if more > 0:
                cut.append(number)
        last = self._offset + len(shown) - 1
        notes = self._notes(count, last, cut)
        if shown and last == count and not self._ends_with_line_end:
            notes.append("the last line has no line end")
        if encoding.codec != "utf-8":
            notes.append(f"the encoding is {encoding.label}")
        if notes:
            shown.append(f"[{'; '.join(notes)}]")
        # A line of which no more can be shown counts as seen, or nobody could change it.
        unseen = cut if self._limit > 1 else []
        bounds = pairwise([self._offset - 1, *unseen, last + 1])
        seen = tuple((a + 1, b - 1) for a, b in bounds if b - a > 1)
        return Excerpt("\n".join(shown), bool(cut) or last < count, count, seen)

    def _texts(self, encoding: Encoding, count: int) -> list[str]:
        """Return the stored lines, decoded at once: one by one takes five times as long."""
        lines = self._lines[: max(0, count - self._offset + 1)]
        if lines and self._offset == 1 and encoding.bom:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        data = b"\n".join(lines)
        if self._offset - 1 + len(lines) < count or self._ends_with_line_end:
            data += b"\n"
        # The end of a line that is stored in part may be half a character.
        text = data.decode("utf-8" if encoding.is_wide else encoding.codec, "ignore")
        return text.replace("\r\n", "\n").split("\n")[: len(lines)]

    def _notes(self, count: int, last: int, cut: list[int]) -> list[str]:
        if not count:
            return ["the file is empty"]
        if self._offset > count:
            return [f"the file has {count:,} lines: there is no line {self._offset:,}"]
        notes = []
        if last < count:
            notes.append(
                f"lines {self._offset} to {last} of {count}: read on with offset={last + 1}"
            )
        if cut and self._limit == 1:
            notes.append("no more of this line can be shown; `get` sends the file")
        elif cut:
            numbers = ", ".join(map(str, cut))
            notes.append(f"cut: line {numbers}; read one as a whole by its offset, limit=1")
        return notes


def _count_of_chars(data: bytes) -> int:
    return len(data.translate(None, _CONTINUATION))


_BLOCK_BYTES = 1024 * 1024
"""A file of any size is read in such blocks, between which a call can be cancelled."""
MAX_UNKNOWN_BYTES = 16 * 2**20
"""Of a file that says it has no bytes, and has some, such as those of /proc."""
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


class ReadResult(TypedDict):
    """A part of a text file."""

    text: str
    """Its lines, each with its number and a tab before it."""
    token: str
    """The version of the file."""
    truncated: bool
    """Whether lines follow that are not shown, or a line is cut."""


def read_file(
    files: ReachedFiles, context: ToolContext, path: str, offset: int, limit: int
) -> ReadResult | FileChunk:
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
        return ReadResult(text=found.text, token=scan.token, truncated=found.is_cut)


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
