"""The lines of a text file that one `read` shows, found in one pass over its blocks."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

from toolbus_toolkits.files.seen import Lines
from toolbus_toolkits.files.text import Encoding

__all__ = ["Excerpt", "ExcerptScan"]

_MAX_CHARS = 100_000
_NOTE_CHARS = 1_000
"""What the words beside the lines take of them at most."""
_MAX_LINE_CHARS = 2_000
_MAX_BYTES_OF_CHAR = 4
_CONTINUATION = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that begin no character."""
_NUMBER_CHARS = 7
_MAX_CUT_NAMED = 3


class Excerpt(NamedTuple):
    """What a `read` shows."""

    text: str
    is_cut: bool
    """Whether lines follow, or a line is not whole."""
    line_count: int
    """How many lines the file has."""
    seen: tuple[Lines, ...]
    """The lines that are shown as a whole."""


@dataclass(slots=True)
class _LongLine:
    """The beginning of a line that is too long to be shown, or may be, and how long the line is."""

    data: bytes
    size: int
    chars: int
    """If it is UTF-8."""

    @property
    def is_whole(self) -> bool:
        """Whether it was not too long to be kept."""
        return self.size == len(self.data)

    def shown(self, codec: str, max_chars: int, *, has_end: bool) -> tuple[str, bool]:
        """Return the line as it is shown, and whether that is all of it."""
        text = self.data.decode(codec, "ignore")  # the end of a cut line may be half a character
        if has_end and self.is_whole:
            text = text.removesuffix("\r")
        if self.is_whole and len(text) <= max_chars:
            return text, True
        left = (self.chars if codec == "utf-8" else self.size) - max_chars
        return f"{text[:max_chars]}[cut: {left:,} more characters]", False

    def cut_bom(self) -> None:
        """Leave the BOM out."""
        bom = codecs.BOM_UTF8
        if self.data.startswith(bom):
            self.data = self.data[len(bom) :]
            self.size -= len(bom)
            self.chars -= 1


class ExcerptScan:
    r"""Finds the lines of an excerpt in blocks in which a line ends with the byte of `\n`.

    It keeps no more of them than can be shown.

    Args:
        offset: The number of the first line.
        limit: The most lines.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = offset
        self._limit = limit
        self._max_line = _MAX_CHARS - _NOTE_CHARS if limit == 1 else _MAX_LINE_CHARS
        self._ended = 0  # lines that have ended
        self._ends_with_line_end = True
        self._size = 0
        # Nearly all lines are short: those are kept as they are, which takes a third of the time.
        self._lines: list[bytes | _LongLine] = []
        self._kept = 0

    @property
    def _is_full(self) -> bool:
        return self._kept > _MAX_CHARS * _MAX_BYTES_OF_CHAR

    def feed(self, block: bytes) -> None:
        """Take the next block."""
        if not block:
            return
        self._ends_with_line_end = block.endswith(b"\n")
        self._size += len(block)
        last = self._offset - 1 + self._limit
        total = self._ended + block.count(b"\n")
        start = 0
        if self._ended < last and total >= self._offset - 1 and not self._is_full:
            for _ in range(self._offset - 1 - self._ended):
                start = block.index(b"\n", start) + 1
                self._ended += 1
            pieces = block[start:].split(b"\n", last - self._ended)
            # What follows the last line that is wanted is one piece.
            wanted = pieces[: last - self._ended]
            for number, piece in enumerate(wanted):
                is_new = number > 0 or self._ended - self._offset + 1 == len(self._lines)
                self._keep(piece, is_new=is_new)
        self._ended = total

    def _keep(self, piece: bytes, *, is_new: bool) -> None:
        if is_new:
            if self._is_full:
                return
            if len(piece) <= self._max_line:
                self._lines.append(piece)
                self._kept += len(piece)
                return
            self._lines.append(b"")
        line = self._lines[-1]
        if isinstance(line, bytes):
            line = self._lines[-1] = _LongLine(line, len(line), _count_of_chars(line))
        kept = piece[: max(0, self._max_line * _MAX_BYTES_OF_CHAR + 1 - len(line.data))]
        line.data += kept
        line.size += len(piece)
        line.chars += _count_of_chars(piece)
        self._kept += len(kept)

    def excerpt(self, encoding: Encoding) -> Excerpt:
        """Return what is shown, once all blocks were taken."""
        if encoding.bom and self._size == len(codecs.BOM_UTF8):
            self._ends_with_line_end = True  # it has no line
        count = self._ended + (not self._ends_with_line_end)
        codec = "utf-8" if encoding.is_wide else encoding.codec
        if self._offset == 1 and self._lines and encoding.bom:
            self._cut_bom()
        shown: list[str] = []
        cut: list[int] = []
        left = _MAX_CHARS - _NOTE_CHARS
        for number, line in enumerate(
            self._lines[: max(0, count - self._offset + 1)], self._offset
        ):
            has_end = number < count or self._ends_with_line_end
            if isinstance(line, bytes):
                text = line.decode(codec)
                if has_end:
                    text = text.removesuffix("\r")
                is_whole = True
            else:
                text, is_whole = line.shown(codec, self._max_line, has_end=has_end)
            left -= len(text) + _NUMBER_CHARS + 1
            if left < 0 and shown:
                break
            shown.append(f"{number:6}\t{text}")
            if not is_whole:
                cut.append(number)
        last = self._offset + len(shown) - 1
        notes = self._notes(count, last, cut)
        if shown and last == count and not self._ends_with_line_end:
            notes.append("the last line has no line end")
        if encoding.codec != "utf-8":
            notes.append(f"the encoding is {encoding.label}")
        if notes:
            shown.append(f"[{'; '.join(notes)}]")
        seen = _between(self._offset, last, [] if self._limit == 1 else cut)
        return Excerpt("\n".join(shown), bool(cut) or last < count, count, seen)

    def _cut_bom(self) -> None:
        first = self._lines[0]
        if isinstance(first, bytes):
            self._lines[0] = first.removeprefix(codecs.BOM_UTF8)
        else:
            first.cut_bom()

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
            numbers = ", ".join(map(str, cut[:_MAX_CUT_NAMED]))
            more = f" and {len(cut) - _MAX_CUT_NAMED} more" if len(cut) > _MAX_CUT_NAMED else ""
            notes.append(f"cut: line {numbers}{more}; read one as a whole by its offset, limit=1")
        return notes


def _count_of_chars(data: bytes) -> int:
    return len(data.translate(None, _CONTINUATION))


def _between(first: int, last: int, left_out: list[int]) -> tuple[Lines, ...]:
    """Return the lines from one to another, without some, which ascend."""
    found = []
    for number in (*left_out, last + 1):
        if first < number:
            found.append((first, number - 1))
        first = number + 1
    return tuple(found)
