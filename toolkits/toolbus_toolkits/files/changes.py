r"""Changes of a text: what is replaced, and which lines one has to know for that.

Callers write `\n` for a line end. It matches each line end of the file, and what they write gets
the line ends of the file. All that is not replaced keeps its bytes.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.files.reached import failure
from toolbus_toolkits.files.seen import Lines, Seen, Span
from toolbus_toolkits.files.text import (
    Text,
    common_start,
    count_of_lines,
    line_end_of,
    with_line_ends,
)

__all__ = ["MAX_FILE_BYTES", "Change", "Changed", "Editing", "Inserting", "Writing"]

MAX_FILE_BYTES = 16 * 2**20
"""Of a file that is changed: it is in memory as bytes and as text, before and after."""
_MAX_PLACES = 100_000
"""Of one `replace_all`: each is an object, and a letter may stand there millions of times."""
_MAX_NAMED = 20
"""Lines or characters in one failure: a model reads it, and a file may have thousands."""
_NUMBERS = re.compile(r"^[ ]*\d+\t", re.MULTILINE)
"""What `read` puts before a line."""


_ALIKE = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u00b4"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"), None),
}
"""Characters that look like others, or like nothing, beside those of NFKD."""


class Changed(NamedTuple):
    """A text after a change."""

    raw: str
    spans: list[Span]
    """The lines that were replaced, ascending."""


class Change(Protocol):
    """A change of the text of one file."""

    def of(self, text: Text | None, seen: Seen | None) -> Changed:
        """Return what becomes of a text.

        Args:
            text: What is there; None if there is no file.
            seen: What the caller has seen of it; None if there is no file.

        Raises `ToolFailed`.
        """


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes the text of a file as a whole."""

    text: str

    def of(self, text: Text | None, seen: Seen | None) -> Changed:
        """Return the text, with the line ends that most lines of the file have."""
        if text is None or seen is None:
            return Changed(self.text, [Span(1, 0, count_of_lines(self.text))])
        if not seen.is_whole:
            raise _unseen("has lines that you have not read", (1, seen.count), "all of them")
        # The BOM stays: one that the text begins with would be a second one.
        plain = self.text.removeprefix("\ufeff") if text.encoding.bom else self.text
        raw = with_line_ends(plain, line_end_of(text.raw))
        return Changed(raw, [Span(1, seen.count, count_of_lines(raw))])


@dataclass(frozen=True, slots=True)
class Making(Writing):
    """Writes the text of a file that is not there; one that is there is not replaced."""


@dataclass(frozen=True, slots=True)
class Inserting:
    """Inserts lines."""

    line: int
    """After which line; 0 is the beginning."""
    text: str

    def of(self, text: Text | None, seen: Seen | None) -> Changed:
        """Return the text with the lines. Where the last line has no line end, it has none then."""
        if text is None or seen is None:
            raise failure("no_such_file", "the file does not exist: `write` makes it")
        count = count_of_lines(text.raw)
        if self.line > count:
            words = f"has {count} lines: there is no line {self.line} to insert after"
            raise failure("no_such_line", f"the file {words}")
        beside = (max(1, self.line), min(count, self.line + 1))
        if count and not any(seen.has(line, line) for line in beside):
            raise _unseen("has lines that you have not read", beside, "one of them")
        end = line_end_of(text.raw) or "\n"
        added = with_line_ends(self.text, end)
        if not added.endswith("\n"):
            added += end
        number = count_of_lines(added)
        if self.line == count and text.raw and not text.raw.endswith("\n"):
            raw = text.raw + end + added.removesuffix(end)
            return Changed(raw, [Span(count, 1, number + 1)])
        at = 0
        for _ in range(self.line):
            at = text.raw.index("\n", at) + 1
        return Changed(text.raw[:at] + added + text.raw[at:], [Span(self.line + 1, 0, number)])


@dataclass(frozen=True, slots=True)
class Editing:
    """Replaces a text that is there once, or wherever it is."""

    old_text: str
    new_text: str
    replace_all: bool = False

    def of(self, text: Text | None, seen: Seen | None) -> Changed:
        """Return the text with the other text in it."""
        if text is None or seen is None:
            raise failure("no_such_file", "the file does not exist: `write` makes it")
        shown = text.shown
        old = self.old_text.replace("\r\n", "\n")
        new = self.new_text.replace("\r\n", "\n")
        if old not in shown and self.old_text in shown:  # `\r\r\n` is shown as `\r\n`
            old, new = self.old_text, self.new_text
        if not old:
            words = "old_text is empty: use `insert` to add lines, `write` to write a whole file"
            raise failure("no_change", words)
        if old == new:
            words = "old_text and new_text are the same: nothing would change"
            raise failure("no_change", words)
        starts = self._places(shown, old)
        numbers = list(_line_numbers(shown, starts))
        reach = old[:-1].count("\n")
        missing = [
            (first, first + reach) for first in numbers if not seen.has(first, first + reach)
        ]
        if missing:
            raise _unseen("is to be changed in lines that you have not read", missing[0], "them")
        # What both texts begin and end with is not touched, also where its line ends are mixed.
        begin = common_start(old, new)
        rest = min(len(old), len(new)) - begin
        end = common_start(old[::-1][:rest], new[::-1][:rest])
        return _replaced(text, starts, old, (begin, end), new)

    def _places(self, shown: str, old: str) -> list[int]:
        """Return where the text is. Raises `ToolFailed` unless it is there as often as it must."""
        first = shown.find(old)
        if first < 0:
            raise failure("not_found", f"old_text is not in the file{_hint(shown, old)}")
        if self.replace_all:
            count = shown.count(old)
            if count > _MAX_PLACES:
                words = f"old_text is there {count:,} times, at most {_MAX_PLACES:,} are replaced"
                raise failure("too_large", words)
            size = len(shown) + count * (len(self.new_text) - len(old))
            if size > MAX_FILE_BYTES:
                words = f"the file would have {size:,} characters, at most {MAX_FILE_BYTES:,} are"
                raise failure("too_large", f"{words} written")
            return list(_found(shown, old))
        # From the next character on: places may overlap, and then too it is unknown which is meant.
        second = shown.find(old, first + 1)
        if second >= 0:
            places = [first, *islice(_found(shown, old, second), _MAX_NAMED)]
            numbers = list(dict.fromkeys(_line_numbers(shown, places)))
            named = ", ".join(map(str, numbers[:_MAX_NAMED]))
            named += ", ..." if len(numbers) > _MAX_NAMED else ""
            count = max(shown.count(old), 2)
            words = f"old_text is there {count:,} times, in the lines {named}: give more of the"
            raise failure("ambiguous", f"{words} text around it, or set replace_all")
        return [first]


def _found(shown: str, old: str, start: int = 0) -> Iterator[int]:
    at = shown.find(old, start)
    while at >= 0:
        yield at
        at = shown.find(old, at + len(old))


def _line_numbers(shown: str, places: list[int]) -> Iterator[int]:
    """Return the number of the line of each place; they ascend."""
    number = 1
    before = 0
    for place in places:
        number += shown.count("\n", before, place)
        before = place
        yield number


def _replaced(
    text: Text, starts: list[int], old: str, common: tuple[int, int], new_text: str
) -> Changed:
    """Replace a text at all its places, apart from what it has in common with the new one."""
    begin, end = common
    shown = text.shown
    raw = text.raw
    # Where line ends of the file have two characters, as places of the shown text.
    found = enumerate(re.finditer("\r\n", raw))
    wide = array("q", (match.start() - number for number, match in found))
    most = line_end_of(raw)
    core = new_text[begin : len(new_text) - end]
    old_ends = old.count("\n", begin, len(old) - end)
    new_ends = core.count("\n")
    pieces: list[str] = []
    spans: list[Span] = []
    before = 0
    for start, number in zip(
        starts, _line_numbers(shown, [s + begin for s in starts]), strict=True
    ):
        first = start + begin
        stop = start + len(old) - end
        raw_first = first + bisect_left(wide, first)
        raw_stop = stop + bisect_left(wide, stop)
        raw_start = start + bisect_left(wide, start)
        raw_end = start + len(old) + bisect_left(wide, start + len(old))
        line_end = line_end_of(raw[raw_start:raw_end]) or most
        pieces += (raw[before:raw_first], core.replace("\n", line_end or "\n"))
        before = raw_stop
        begins_line = shown[first - 1 : first] in ("", "\n")
        ends_line = shown[stop - 1 : stop] in ("", "\n")
        is_of_lines = begins_line and ends_line and core[-1:] in ("", "\n")
        partial = 0 if is_of_lines else 1
        spans.append(Span(number, old_ends + partial, new_ends + partial))
    return Changed("".join((*pieces, raw[before:])), spans)


def _unseen(words: str, lines: Lines, which: str) -> Exception:
    first, last = lines
    shown = f"line {first}" if first == last else f"lines {first} to {last}"
    return failure("never_read", f"the file {words}: {shown}; read {which} first")


def _hint(shown: str, old: str) -> str:
    """Return why a text is not found, as far as it is known, to follow that it is not."""
    bare = _NUMBERS.sub("", old)
    if bare != old and bare in shown:
        return ": it has the line numbers that `read` shows; leave them and the tab out"
    wanted = _folded(old)
    if not wanted:
        return ""
    shown_lines = shown.split("\n")
    lines = list(map(_folded, shown_lines))
    at = "".join(lines).find(wanted)
    if at < 0:
        return ": read the file again, and copy the text from there"
    number = 0
    while at >= len(lines[number]):
        at -= len(lines[number])
        number += 1
    found = "\n".join(shown_lines[number:])
    words = _differences(_part_of(found, at, len(wanted)), old) or "white space alone"
    return (
        f" as it is written: a text that differs from it in {words} begins in"
        f" line {number + 1}: {one_line(shown_lines[number], SHOWN_CHARS)!r}"
    )


def _folded(text: str) -> str:
    """Return a text without white space, in which characters that look alike are the same."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_ALIKE)).translate(_ALIKE)
    return "".join(text.split())


def _part_of(text: str, start: int, length: int) -> str:
    """Return the part of a text that has so many folded characters, from one of them on."""
    first = None
    folded = 0
    for at, character in enumerate(text):
        folded += len(_folded(character))
        if first is None and folded > start:
            first = at
        if folded >= start + length:
            return text[first : at + 1]
    return text[first:]


def _differences(found: str, old: str) -> str:
    """Return which characters one text has and the other has not; empty if there are none."""
    sides = []
    for name, one, other in (("the file", found, old), ("old_text", old, found)):
        only = [c for c in dict.fromkeys(one) if c not in other and c not in " \n"]
        codes = [f"U+{ord(c):04X}" for c in only[:_MAX_NAMED]]
        if codes:
            sides.append(f"characters that {name} has ({', '.join(codes)})")
    return " and ".join(sides)
