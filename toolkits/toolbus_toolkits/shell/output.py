r"""What a command writes: kept within bounds while it runs, and shown to who asks for it.

Offsets and sizes count characters of the decoded text, in which each line ends with `\n`. What is
shown has its control characters and invisible characters escaped, since models read it; escapes
count only for the limit of one answer.
"""

from __future__ import annotations

import codecs
import io
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from toolbus.untrusted_text import visible

__all__ = ["MAX_CHARS", "Excerpt", "Output", "Page", "decoder"]

MAX_CHARS = 30_000
"""Of one answer, as models read it: some 8,000 tokens."""
_HEAD_CHARS = 256 * 1024
_TAIL_CHARS = 1024 * 1024
"""What is kept of one command, its beginning and its end: the first error of a build is at the
beginning, its summary at the end. Some 40 answers of `read`, and 1.25 MB of ASCII."""


def decoder() -> io.IncrementalNewlineDecoder:
    r"""Return what decodes UTF-8 across the borders of pieces; `\r\n` and `\r` end a line too."""
    # A lone `\r` writes a line of progress anew: then each is a line, and none is hidden.
    return io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("replace"), translate=True
    )


_MAX_PIECES = 1_000


class Page(NamedTuple):
    """A part of an output, for one answer of `read`."""

    text: str
    """With control characters escaped."""
    next: int
    """Where the next part begins."""


class _Ends:
    """The beginning and the end of a text that grows."""

    def __init__(self, head_chars: int, tail_chars: int) -> None:
        self._head_chars = head_chars
        self._tail_chars = tail_chars
        self._heads: list[str] = []
        self._tails = deque[str]()
        self._tail_size = 0
        self.head_size = 0
        self.size = 0
        """Of the whole text."""

    @property
    def tail_start(self) -> int:
        """Where the end begins that is kept; `head_size` if nothing is missing between them."""
        return self.size - self._tail_size

    def add(self, text: str) -> None:
        self.size += len(text)
        room = self._head_chars - self.head_size
        if room > 0:
            self._heads.append(text[:room])
            self.head_size += len(self._heads[-1])
            text = text[room:]
        if not text:
            return
        self._tails.append(text)
        self._tail_size += len(text)
        while self._tail_size - len(self._tails[0]) >= self._tail_chars:
            self._tail_size -= len(self._tails.popleft())
        # Pieces of a few characters each would cost many times what they say.
        if len(self._tails) > _MAX_PIECES:
            self._join_tails()

    def head(self) -> str:
        if len(self._heads) != 1:
            self._heads = ["".join(self._heads)]
        return self._heads[0]

    def tail(self) -> str:
        """Return the end, without what `head` has."""
        self._join_tails()
        return self._tails[0]

    def _join_tails(self) -> None:
        # Cut, because a piece is left out only as a whole: joined ones would grow for ever.
        text = "".join(self._tails)[-self._tail_chars :]
        self._tails = deque([text])
        self._tail_size = len(text)


class Output(_Ends):
    """The output of a command, stdout and stderr in the order of arrival."""

    def __init__(self) -> None:
        super().__init__(_HEAD_CHARS, _TAIL_CHARS)

    @property
    def retained_size(self) -> int:
        """How many characters are retained: the beginning and the end."""
        return self.head_size + self.size - self.tail_start

    def page(self, offset: int) -> Page:
        """Return the part that begins at an offset, of at most `MAX_CHARS` characters."""
        if offset < self.head_size:
            text, used = _shown_start(self.head()[offset : offset + MAX_CHARS], MAX_CHARS)
            return Page(text, offset + used)
        note = ""
        start = self.tail_start
        if offset < start:
            note = f"[{start - offset:,} characters are not kept any more]\n"
            offset = start
        offset = min(offset, self.size)
        begin = offset - start
        limit = MAX_CHARS - len(note)
        text, used = _shown_start(self.tail()[begin : begin + limit], limit)
        return Page(note + text, offset + used)


class Excerpt(_Ends):
    """The beginning and the end of one of the streams of a command, for its result.

    Args:
        output: The whole output, to which it is appended too.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(MAX_CHARS, MAX_CHARS)
        self._output = output
        self._decoder = decoder()
        self._pieces: list[tuple[int, int]] = []

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Append bytes; the last ones may be none."""
        text = self._decoder.decode(data, final=is_last)
        if text:
            if self.head_size < MAX_CHARS:
                self._pieces.append((self.size, self._output.size))
            self.add(text)
            self._output.add(text)

    def last(self, chars: int) -> str:
        """Return the last characters, escaped."""
        text = self.tail()[-chars:]
        if len(text) < chars:
            text = self.head()[len(text) - chars :] + text
        return _shown_end(text, chars)[0]

    def wanted(self) -> int:
        """Return how many characters it shows if there is room; more than `MAX_CHARS` is cut."""
        if self.size > MAX_CHARS:
            return self.size
        return len(visible(self.head()))

    def shown(self, limit: int, job: str) -> str:
        """Return it within a limit of characters; without its middle where it is longer.

        Args:
            limit: More than the line takes that stands for the middle.
            job: The job that has all of it, to be named in that line.
        """
        if self.wanted() <= limit:
            return visible(self.head())
        # The text of the line depends on what it counts; no such line is longer.
        half = (limit - 200) // 2
        first, used = _shown_start(self.head()[:half], half)
        last, end_size = _shown_end((self.head() + self.tail())[-half:], half)
        left_out = self.size - used - end_size
        at = bisect_right(self._pieces, (used, self.size)) - 1
        start, offset = self._pieces[at]
        offset += used - start
        note = f"[{left_out:,} characters are left out here: `read` job {job} from offset {offset}]"
        return f"{first}\n{note}\n{last}"


def _shown_start(text: str, limit: int) -> tuple[str, int]:
    """Escape as much of the beginning of a text as fits; also return how much that is."""
    used = min(len(text), limit)
    while len(shown := visible(text[:used])) > limit:
        used = used * limit // len(shown)
    return shown, used


def _shown_end(text: str, limit: int) -> tuple[str, int]:
    """Escape as much of the end of a text as fits; also return how much that is."""
    used = min(len(text), limit)
    while len(shown := visible(text[len(text) - used :])) > limit:
        used = used * limit // len(shown)
    return shown, used
