"""Text in files: its encoding, its line ends, and the token of a version.

The encoding is that of the byte order mark (BOM), else UTF-8, else Windows-1252, else Latin-1. All
are decoded strictly, and none maps two sequences of bytes to one text: so what was decoded and is
encoded again has the bytes that it had. A file with NUL and without a BOM is no text.
"""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass

__all__ = [
    "MAX_LINE_CHARS",
    "MAX_SHOWN_CHARS",
    "UTF8",
    "Encoding",
    "NotText",
    "Text",
    "TextScan",
    "common_start",
    "count_of_lines",
    "line_end_of",
    "read_text",
    "token_hash",
    "token_of",
    "with_line_ends",
]

MAX_SHOWN_CHARS = 100_000
"""Of the text of one result: a model reads it, some 25,000 tokens."""
MAX_LINE_CHARS = 2_000
"""Of one line of it; of a longer one a part is shown."""
_TOKEN_BYTES = 12
"""Of 96 bits: two versions do not share a token by chance, and a model has to copy it."""


class NotText(ValueError):
    """Bytes that are not text; why, as a clause."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the bytes of a file become text."""

    label: str
    """For people."""
    codec: str
    bom: bytes = b""

    @property
    def is_wide(self) -> bool:
        """Whether a character has at least two bytes, so that a line does not end with one byte."""
        return self.codec.startswith(("utf-16", "utf-32"))

    @property
    def has_one_byte(self) -> bool:
        """Whether each character has one byte."""
        return self.codec in ("cp1252", "latin-1")


UTF8 = Encoding("UTF-8", "utf-8")
_WINDOWS = Encoding("Windows-1252", "cp1252")
_LATIN = Encoding("Latin-1", "latin-1")
_WITH_BOM = (
    # UTF-32 first: its BOM begins with that of UTF-16.
    Encoding("UTF-32", "utf-32-le", codecs.BOM_UTF32_LE),
    Encoding("UTF-32", "utf-32-be", codecs.BOM_UTF32_BE),
    Encoding("UTF-16", "utf-16-le", codecs.BOM_UTF16_LE),
    Encoding("UTF-16", "utf-16-be", codecs.BOM_UTF16_BE),
    Encoding("UTF-8 with a BOM", "utf-8", codecs.BOM_UTF8),
)
_NOT_WINDOWS = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")
"""The bytes that Windows-1252 has no character for."""


def token_of(data: bytes) -> str:
    """Return the token of the version of a file that has these bytes."""
    return hashlib.blake2b(data, digest_size=_TOKEN_BYTES).hexdigest()


def token_hash() -> hashlib.blake2b:
    """Return what makes a token of bytes that come block by block: its `hexdigest` is the token."""
    return hashlib.blake2b(digest_size=_TOKEN_BYTES)


class TextScan:
    """Reads the bytes of a file once, block by block, and tells its token and its encoding."""

    def __init__(self) -> None:
        self._hash = token_hash()
        self._encoding = UTF8
        self._decoder: codecs.IncrementalDecoder | None = None
        self._has_begun = False
        self._is_utf8 = True
        self._is_windows = True

    def feed(self, block: bytes) -> bytes:
        r"""Take the next block; the first one has at least 4 bytes, if the file has.

        Returns its bytes for a search of lines: those of UTF-16 and UTF-32 as UTF-8, so that in all
        encodings a line ends with the byte of `\n`. A BOM is among them.

        Raises `NotText`.
        """
        self._hash.update(block)
        if not self._has_begun:
            self._has_begun = True
            found = (encoding for encoding in _WITH_BOM if block.startswith(encoding.bom))
            self._encoding = next(found, UTF8)
            self._decoder = codecs.getincrementaldecoder(self._encoding.codec)()
        if self._encoding.is_wide:
            return self._decoded(block).encode()
        if 0 in block:
            raise NotText("it has NUL")
        if self._is_utf8:
            try:
                self._decoded(block)
            except NotText:
                self._is_utf8 = False
        if not block.isascii():
            self._is_windows &= not any(byte in block for byte in _NOT_WINDOWS)
        return block

    def _decoded(self, block: bytes, *, is_last: bool = False) -> str:
        if self._decoder is None:
            return ""
        try:
            return self._decoder.decode(block, is_last)
        except UnicodeDecodeError as error:
            raise NotText(f"it is no {self._encoding.label}: {error.reason}") from None

    def encoding(self) -> Encoding:
        """Return the encoding, once all blocks were taken. Raises `NotText`."""
        try:
            self._decoded(b"", is_last=True)
        except NotText:
            if self._encoding.is_wide:
                raise
            self._is_utf8 = False
        if self._is_utf8:
            return self._encoding
        return _WINDOWS if self._is_windows else _LATIN

    @property
    def token(self) -> str:
        """The version of the bytes that were taken until now."""
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a file."""

    encoding: Encoding
    raw: str
    """As it is in the file, without the BOM."""

    @property
    def shown(self) -> str:
        r"""As callers see it: with `\n` for `\r\n`. A `\r` that stands alone is a character."""
        return self.raw.replace("\r\n", "\n")

    def encoded(self, raw: str) -> bytes:
        """Return the bytes of the file with another text. Raises `UnicodeEncodeError`."""
        return self.encoding.bom + raw.encode(self.encoding.codec)


def read_text(data: bytes) -> tuple[str, Text]:
    """Return the token and the text of the bytes of a file. Raises `NotText`."""
    scan = TextScan()
    scan.feed(data)
    encoding = scan.encoding()
    return scan.token, Text(encoding, data[len(encoding.bom) :].decode(encoding.codec))


def line_end_of(raw: str) -> str:
    r"""Return the line end that most lines of a text have, `\n` or `\r\n`; empty if it has none."""
    both = raw.count("\n")
    if not both:
        return ""
    return "\r\n" if 2 * raw.count("\r\n") > both else "\n"


def with_line_ends(text: str, line_end: str) -> str:
    """Return a text whose lines all end alike; as it is for an empty line end."""
    if not line_end:
        return text
    return text.replace("\r\n", "\n").replace("\n", line_end)


def count_of_lines(text: str) -> int:
    """Return how many lines a text has; the last one may have no line end."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def common_start(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their start."""
    least = min(len(one), len(other))
    return next((at for at in range(least) if one[at] != other[at]), least)
