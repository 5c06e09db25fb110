"""Searches in files with rg, in two passes.

The first run of rg says which files match. They are opened through folders that are open, and a
second run reads the open files. So what is shown is of files below the folder that was asked
about, also where somebody swaps a folder for a symlink meanwhile.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeAlias

from toolbus.chunks.file_io import FILE_THREADS
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import ToolFailed
from toolbus.untrusted_text import one_line
from toolbus_toolkits.callers import LastUsed
from toolbus_toolkits.files.indexing import FileFilter, fitting, indexed, is_path_of_draft
from toolbus_toolkits.files.open_folders import (
    NewestFiles,
    SearchedFolder,
    SecretNames,
    close_files,
    open_files,
)
from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.ripgrep import Ripgrep, running_ripgrep
from toolbus_toolkits.files.text import MAX_LINE_CHARS, MAX_SHOWN_CHARS, NotText, read_text

__all__ = ["MAX_COUNTS", "Answer", "Output", "Question", "Search", "SecretCounts", "ended_early"]

Output: TypeAlias = Literal["files", "content", "count"]

_MAX_FILES = 2000
"""Where more match, and more than four times the limit, the newest of the first ones are shown: to
read all of a large tree for a word that is everywhere helps nobody."""
_BATCH_FILES = 128
"""So many are open at a time. Four searches may run at a time, and a process has 1,024."""
_INDEX_PART = 0.75
"""Of the time; in the rest, what was found is read."""
_COUNT_S = 5.0
"""How long a count of files that may hold secrets is cached."""
_MAX_DECODED_BYTES = 16 * 1024 * 1024
"""A larger file that is not UTF-8 is searched as it is: each is held in memory, and copied. Smaller
ones are read together up to this size."""
_MAX_MULTILINE_BYTES = 64 * 1024 * 1024
"""With `multiline`, rg holds all of a file; larger ones are left out."""
_LINE = re.compile(rb"/proc/self/fd/([0-9]+)(?:\0([0-9]+)([:-])|: )(.*)", re.DOTALL)
_FILE = re.compile(rb"/proc/self/fd/([0-9]+)(?:\0([0-9]+)\r?)?")
_PLACE = re.compile(rb"/proc/self/fd/([0-9]+)\0([0-9]+):([0-9]+):([0-9]+):\r?")
_RETURN = re.compile(
    r"(?<!\\)(?:\\\\)*(?:\r|\\(?:r|x0d|x\{0*d\}|u000d|u\{0*d\}|U0000000d))", re.IGNORECASE
)
"""A carriage return in a regular expression."""
_PIECE = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
"""Where a line end in a regular expression ends a comment, or is nothing."""
_LINE_ENDS = ("\n", r"\n")
_TOKEN = re.compile(r"\\(?:[xuU][0-9A-Fa-f]+|[bpPxuU]\{[^}]*\}|[pP]?.)|\[\^?\]?|.", re.DOTALL)
"""A part of a regular expression: an escape, the start of a set, or one character."""
_HIGH_BYTE = r"(?-u:[\x80-\xff])"
_BYTE_MODE = re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*u")
"""Where a pattern names bytes, as they are in the files."""
_BOUNDARY = re.compile(r"\\[bB<>]")
_BEYOND_ASCII = re.compile(r"\\[wWDsSpPxuU]|\.|[^\x00-\x7f]|\[.*[\^\\\x80-\U0010ffff]", re.DOTALL)
"""The start of what may match a character outside of ASCII."""


def _for_any_encoding(pattern: str) -> str:
    """Return a regular expression that also matches the lines of files that are not UTF-8.

    Where it matches a character outside of ASCII, it also matches one byte that is not ASCII. So
    it matches what the pattern would match if the encoding of one byte were known, and may match
    more. A pattern that matches ASCII alone is returned as it is.
    """
    found = []
    part = ""
    depth = 0  # of sets, which rg has inside of each other
    for token in _TOKEN.findall(pattern):
        part += token
        depth += token.startswith("[") - (token == "]" and depth > 0)
        if depth:
            continue
        if _BOUNDARY.match(part):  # which bytes are of a word is known with the encoding
            part = "(?:)"
        elif _BEYOND_ASCII.match(part):
            part = f"(?:{part}|{_HIGH_BYTE})"
        found.append(part)
        part = ""
    wider = "".join(found) + part
    return wider if _HIGH_BYTE in wider else pattern


def _with_any_line_end(pattern: str) -> str:
    r"""Return a regular expression in which `\n` also matches `\r\n`, but for one in a set."""
    if _VERBOSE.search(pattern):
        return pattern
    found = []
    depth = 0  # of sets, which rg has inside of each other
    for piece in _PIECE.findall(pattern):
        depth = max(0, depth + piece.startswith("[") - (piece == "]"))
        found.append(r"(?:\r?\n)" if piece in _LINE_ENDS and not depth else piece)
    return "".join(found)


@dataclass(frozen=True)
class Question:
    """What is searched in files."""

    pattern: str
    output: Output
    limit: int
    """The most lines of the answer."""
    context: int = 0
    ignore_case: bool = False
    multiline: bool = False

    def arguments(self, *, any_encoding: bool = False) -> list[str]:
        """Return what decides which lines match, for rg.

        Args:
            any_encoding: Whether lines that are not UTF-8 match too, by `_for_any_encoding`.
        """
        pattern = _with_any_line_end(self.pattern) if self.multiline else self.pattern
        if any_encoding:
            pattern = _for_any_encoding(pattern)
        found = [f"--regexp={pattern}"]
        # With it `\r` is no part of a line, and rg refuses a pattern that names it.
        if self.multiline or not _RETURN.search(pattern):
            found.append("--crlf")
        if self.ignore_case:
            found.append("--ignore-case")
        if self.multiline:
            found += ("--multiline", "--multiline-dotall", f"--max-filesize={_MAX_MULTILINE_BYTES}")
        return found


@dataclass
class Answer:
    """What a search has found."""

    lines: list[str] = field(default_factory=list)
    truncated: bool = False
    left_out: int = 0
    """How many files were not searched because they hold secrets."""
    note: str = ""


SecretCounts: TypeAlias = LastUsed[tuple[str, FileFilter], tuple[float, int]]
"""When files that may hold secrets were counted, and how many there are: by the path of the folder
and what is searched there. To count them costs a walk over the tree, a third of a search; and
searches come in bursts."""
MAX_COUNTS = 64
"""Folders whose counts are remembered: callers choose them."""


class Search:
    """A search in files."""

    def __init__(
        self,
        files: ReachedFiles,
        folder: SearchedFolder,
        which: FileFilter,
        question: Question,
        counts: SecretCounts,
    ) -> None:
        self._folder = folder
        self._which = which
        self._question = question
        self._counts = counts
        self._secrets = SecretNames(folder, files.sensitive)
        self._max_files = max(_MAX_FILES, 4 * question.limit)
        self._newest = NewestFiles(
            folder,
            self._max_files,
            lambda names: [n for n in names if not (is_path_of_draft(n) or self._secrets.has(n))],
        )
        self._answer = Answer()
        self._cut_lines: dict[tuple[int, int], tuple[int, str]] = {}
        """Lines that matched and were cut, by descriptor and number: where in the answer they are,
        and what stands before their text."""
        self._chars = 0

    async def run(self, seconds: float) -> Answer:
        """Search, for so long at most. Raises `ToolFailed` for a mistake in a pattern."""
        answer = self._answer
        ends_at = time.monotonic() + seconds
        names = [b""]
        is_in_time = True
        if self._folder.is_folder:
            is_in_time = await self._find(seconds * _INDEX_PART)
            names = self._newest.newest()
            if self._has_enough():
                answer.truncated = True
                answer.note = (
                    f"These are the newest of the first {self._newest.total:,} files that match:"
                    " search a part of the folder for the newest of all. "
                )
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                while names:
                    # One more than is shown tells whether there are more. What rg has found before
                    # may be outside, while a folder is swapped for a link: it must tell nothing.
                    left = self._question.limit - len(answer.lines)
                    count = min(_BATCH_FILES, max(1, left + 1))
                    if await self._read(names[:count]):
                        answer.truncated = True
                        break
                    del names[:count]
        except TimeoutError:
            is_in_time = False
        if answer.left_out:
            answer.note += (
                f"Files left out, as they may hold secrets: {answer.left_out:,}. To search one,"
                " name it by `path`. "
            )
        if not is_in_time:
            answer.truncated = True
            answer.note += ended_early(seconds)
        answer.note = answer.note.strip()
        if len(answer.lines) > (count := fitting(answer.lines)):
            del answer.lines[count:]
            answer.truncated = True
        if answer.lines[-1:] == ["--"]:
            del answer.lines[-1]
        return answer

    async def _find(self, seconds: float) -> bool:
        """Find the files that match, and count those that are left out; return whether in time."""
        mode = "--count" if self._question.output == "count" else "--files-with-matches"
        filters = await FILE_THREADS.run(self._which.arguments, self._folder)
        # The count must not depend on what is in the files, or it would tell that: so it is one of
        # their names.
        counting = asyncio.ensure_future(self._count_secrets(["--files", *filters], seconds))
        counting.add_done_callback(retrieve_error)
        try:
            is_in_time = await self._index([mode, *filters], seconds)
            return await counting and is_in_time
        finally:
            counting.cancel()
            await asyncio.wait([counting])

    async def _index(self, arguments: list[str], seconds: float) -> bool:
        wide = self._question.arguments(any_encoding=True)
        plain = self._question.arguments()
        try:
            return await indexed(self._folder, [*wide, *arguments], self._add, seconds)
        except ToolFailed:
            if wide == plain:
                raise
            # rg refuses the pattern or, as too large for example, the wider one.
            return await indexed(self._folder, [*plain, *arguments], self._add, seconds)

    async def _count_secrets(self, arguments: list[str], seconds: float) -> bool:
        answer = self._answer
        place = (self._folder.path, self._which)
        counted_at, count = self._counts.get(place, (-inf, 0))
        if time.monotonic() - counted_at < _COUNT_S:
            answer.left_out = count
            return True
        # Through open folders: what rg lists may be outside, while a folder is swapped for a link.
        found = NewestFiles(
            self._folder, 0, lambda names: [n for n in names if self._secrets.has(n)]
        )
        is_in_time = await indexed(self._folder, arguments, found.add, seconds)
        answer.left_out = found.total
        if is_in_time:
            self._counts[place] = (time.monotonic(), found.total)
        return is_in_time

    def _add(self, names: list[bytes]) -> bool:
        self._newest.add(names)
        return self._has_enough()

    def _has_enough(self) -> bool:
        return self._newest.total >= self._max_files

    async def _read(self, names: list[bytes]) -> bool:
        """Search in some files; return whether more would be found than is shown."""
        if not self._folder.is_folder:
            return await self._read_open({names[0]: self._folder.descriptor})
        opened = await FILE_THREADS.run(open_files, self._folder, names, undo=close_files)
        try:
            for part in _parts({name: opened[name] for name in names if name in opened}):
                if await self._read_open(part):
                    return True
            return False
        finally:
            close_files(opened)

    async def _read_open(self, opened: dict[bytes, int]) -> bool:
        copies = {}
        if not _BYTE_MODE.search(self._question.pattern):
            copies = await FILE_THREADS.run(_copies_in_utf8, opened, undo=close_files)
        try:
            return await self._read_decoded({copies.get(n, opened[n]): n for n in opened})
        finally:
            close_files(copies)

    async def _read_decoded(self, names: dict[int, bytes]) -> bool:
        """Search in open files of UTF-8, in their order."""
        if not names:
            return False
        if self._question.output == "content":
            return await self._read_lines(names)
        arguments = ["--count"]
        end = b"\n"
        if self._question.output == "files":
            # Each file is read to its first match: to start threads takes longer.
            arguments = ["--files-with-matches", "--threads=1"]
            end = b"\0"
        found: dict[int, str] = {}
        async with self._reading(arguments, names) as rg:
            async for records in rg.records(end):
                for match in filter(None, map(_FILE.fullmatch, records)):
                    number, count = match.groups()
                    found[int(number)] = "" if count is None else f":{int(count)}"
        lines = self._answer.lines
        lines += (self._shown(names[number]) + found[number] for number in names if number in found)
        is_more = len(lines) > self._question.limit
        del lines[self._question.limit :]
        return is_more

    async def _read_lines(self, names: dict[int, bytes]) -> bool:
        arguments = [
            "--line-number",
            "--no-heading",
            f"--context={self._question.context}",
            f"--max-count={self._question.limit + 1}",
            f"--max-columns={4 * MAX_LINE_CHARS}",
            "--max-columns-preview",
            "--threads=1",  # the files in their order
        ]
        async with self._reading(arguments, names) as rg:
            async for records in rg.records(b"\n"):
                for record in records:
                    if not self._add_line(record, names):
                        await self._show_far_matches()
                        return True
        await self._show_far_matches()
        return False

    async def _show_far_matches(self) -> None:
        """Show lines that are cut from a place before their first match, where that is cut off."""
        far = self._cut_lines
        self._cut_lines = {}
        if not far:
            return
        # Only where the matches are: they, and their lines, may be of any length.
        places = ["--only-matching", "--replace=", "--line-number", "--column", "--byte-offset"]
        async with self._reading(
            [*places, "--no-heading", "--threads=1"], dict.fromkeys(file for file, _ in far)
        ) as rg:
            async for records in rg.records(b"\n"):
                for match in filter(None, map(_PLACE.fullmatch, records)):
                    file, line, column, offset = map(int, match.groups())
                    found = far.pop((file, line), None)
                    if found is not None and column > MAX_LINE_CHARS // 2:
                        at, head = found
                        text = await FILE_THREADS.run(_text_around, file, column - 1, offset)
                        self._answer.lines[at] = head + text
                if not far:
                    return

    def _add_line(self, record: bytes, names: dict[int, bytes]) -> bool:
        """Add a line of rg to the answer; return whether there was room."""
        line = "--"
        head = ""
        cut_line = None
        if record not in (b"--", b"--\r"):  # with `--crlf`, rg itself writes `\r\n`
            match = _LINE.fullmatch(record)
            if match is None:
                words = one_line(record[:200].decode(errors="replace"))
                raise failure("failed", f"this rg writes what is not understood: {words}")
            number, line_number, sign, text = match.groups()
            line = self._shown(names[int(number)])
            # Without a number it is what rg says of a file that is binary from some byte on.
            line += ": " if sign is None else f"{sign.decode()}{int(line_number)}{sign.decode()}"
            head = line
            line += _shown_text(text)
            if sign == b":" and len(line) > len(head) + MAX_LINE_CHARS:
                cut_line = (int(number), int(line_number))
        lines = self._answer.lines
        if len(lines) == self._question.limit or self._chars + len(line) > MAX_SHOWN_CHARS:
            return False
        if cut_line:
            self._cut_lines[cut_line] = (len(lines), head)
        lines.append(line)
        self._chars += len(line)
        return True

    def _reading(
        self, arguments: list[str], names: Iterable[int]
    ) -> AbstractAsyncContextManager[Ripgrep]:
        paths = [f"/proc/self/fd/{number}" for number in names]
        question = self._question.arguments()
        return running_ripgrep(
            [*question, "--null", "--with-filename", *arguments, "--", *paths],
            descriptors=[*names],
        )

    def _shown(self, name: bytes) -> str:
        return one_line(self._folder.shown(name))


def ended_early(seconds: float) -> str:
    """Return a note about a search that took too long."""
    return f"The search was ended after {seconds:.3g} s: search a part of the folder."


def _parts(opened: dict[bytes, int]) -> Iterator[dict[bytes, int]]:
    """Return open files in parts, in their order: the copies of one part are in memory together."""
    part: dict[bytes, int] = {}
    size = 0
    for name, descriptor in opened.items():
        length = os.fstat(descriptor).st_size
        if part and size + length > _MAX_DECODED_BYTES:
            yield part
            part = {}
            size = 0
        part[name] = descriptor
        size += length
    if part:
        yield part


def _copies_in_utf8(opened: dict[bytes, int]) -> dict[bytes, int]:
    """Return descriptors of copies of those open files that `read` decodes and rg does not.

    rg reads UTF-8, and UTF-16 with a byte order mark. Blocking.
    """
    copies: dict[bytes, int] = {}
    try:
        for name, descriptor in opened.items():
            data = _bytes_to_decode(descriptor)
            if data is None:
                continue
            try:
                text = read_text(data)[1].raw
            except NotText:
                continue
            copies[name] = os.memfd_create("toolbus-search")
            with open(copies[name], "wb", closefd=False) as copy:
                copy.write(text.encode())
    except BaseException:
        close_files(copies)
        raise
    return copies


def _bytes_to_decode(descriptor: int) -> bytes | None:
    """Return the bytes of a file that is not UTF-8, or has a byte order mark; None for others.

    None too for one that is too large to decode.
    """
    size = os.fstat(descriptor).st_size
    if size > _MAX_DECODED_BYTES:
        return None
    data = os.pread(descriptor, size, 0)
    try:
        data.decode()
    except UnicodeDecodeError:
        return data
    return data if data.startswith(codecs.BOM_UTF8) else None  # rg does not count its bytes


def _text_around(file: int, before: int, offset: int) -> str:
    """Return a part of a line of an open file; blocking.

    Args:
        file: A descriptor.
        before: How many bytes of the line are before the match.
        offset: Where the match is in the file.
    """
    if os.pread(file, 2, 0) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):  # rg counts in UTF-8
        return f"[cut: the match is {before:,} bytes further on; `read` with limit=1 shows more]"
    left_out = max(0, before - MAX_LINE_CHARS // 2)
    data = os.pread(file, 4 * MAX_LINE_CHARS, offset - before + left_out)
    # It may begin within a character.
    text = _shown_text(data.partition(b"\n")[0].lstrip(bytes(range(0x80, 0xC0))))
    return f"[cut: {left_out:,} bytes] {text}"


def _shown_text(data: bytes) -> str:
    r"""Return a line as text, cut; the `\r` of a `\r\n` belongs to its end."""
    text = data.decode(errors="replace").removesuffix("\r")
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]} [cut]"
