"""Text as words for the index of tools: what is written and what is asked for is cut alike.

The words are ASCII, so that SQLite's tokenizer, which knows the Unicode of its own release, has
nothing to decide, and no text is syntax. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

__all__ = ["MAX_WORD_CHARS", "Word", "name_words", "words_of"]

Word = str
"""A word of the index: lower-case, of `a-z 0-9`."""
MAX_WORD_CHARS = 48
"""A longer word is cut: nobody types the rest of it."""

# Scripts that write no spaces between words: each character is a word, and a run of them a phrase.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_SYMBOLS = "\u2600-\u27bf\U0001f000-\U0001faff"
_RUN = re.compile(f"[{_UNSPACED}]+|[{_SYMBOLS}]|[^\\W_{_UNSPACED}{_SYMBOLS}]+")
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def words_of(text: str) -> Iterator[tuple[Word, ...]]:
    """Cut a text into words: at `_`, `-`, `.`, any other mark, and where camelCase has a hump.

    Case and accents do not count. A run of a script without spaces is one tuple of several words,
    a phrase; each other word is a tuple of one.
    """
    if text.isascii():
        for word in _RUN.findall(_CAMEL_CASE.sub(" ", text)):
            yield (word[:MAX_WORD_CHARS].lower(),)
        return
    folded = unicodedata.normalize("NFKD", _CAMEL_CASE.sub(" ", text))
    plain = "".join(char for char in folded if not unicodedata.combining(char)).casefold()
    for run in _RUN.findall(plain):
        if _UNSPACED_RUN.match(run):
            yield tuple(_ascii(character) for character in run)
        else:
            yield (_ascii(run),)


def name_words(name: str) -> Iterator[Word]:
    """Return the words of a name, `toolkit` or `tool`, and all of them as one."""
    words = [word for phrase in words_of(name) for word in phrase]
    yield from words
    if len(words) > 1:
        yield "".join(words)[:MAX_WORD_CHARS]


def _ascii(word: str) -> Word:
    """Return a word with each other character as its number, of one width: prefixes stay so."""
    return "".join(char if char.isascii() else f"{ord(char):06x}" for char in word)[:MAX_WORD_CHARS]
