"""Expands the braces of a word as the manual of bash says: `{a,b}` and `{1..3}`."""

from __future__ import annotations

import re

from toolbus_toolkits.shell.reading.parts import UnreadableError

__all__ = ["expand_braces"]

MAX_WORDS = 64
MAX_BRACES = 16

_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")


def expand_braces(text: str) -> list[str]:
    """Return the words that bash makes of a word without quotes and expansions.

    It drops an empty one later.

    Raises:
        UnreadableError: The braces do not close, or make too many words.
    """
    if text.count("{") > MAX_BRACES:
        raise UnreadableError(f"a word has more than {MAX_BRACES} braces")
    start = text.find("{")
    if start < 0:
        if "}" in text:
            raise UnreadableError("a brace is not opened")
        return [text]
    end, commas = _find_end(text, start)
    inner = text[start + 1 : end]
    if commas:
        bounds = [start, *commas, end]
        items = [text[bounds[i] + 1 : bounds[i + 1]] for i in range(len(bounds) - 1)]
        heads = [word for item in items for word in expand_braces(item)]
    elif ".." in inner:
        heads = _expand_range(inner)
    else:
        heads = ["{" + word + "}" for word in expand_braces(inner)]
    tails = expand_braces(text[end + 1 :])
    if len(heads) * len(tails) > MAX_WORDS:
        raise UnreadableError(f"braces make more than {MAX_WORDS} words")
    return [text[:start] + head + tail for head in heads for tail in tails]


def _find_end(text: str, start: int) -> tuple[int, list[int]]:
    """Return where the brace closes, and where its own commas are."""
    depth = 0
    commas: list[int] = []
    for index in range(start, len(text)):
        mark = text[index]
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                return index, commas
        elif mark == "," and depth == 1:
            commas.append(index)
    raise UnreadableError("a brace is not closed")


def _expand_range(text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UnreadableError(f"the braces of `{text[:40]}` are not read")
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= MAX_WORDS:
        raise UnreadableError(f"braces make more than {MAX_WORDS} words")
    has_zeros = any(re.match(r"-?0[0-9]", side) for side in match.groups())
    width = max(len(side) for side in match.groups()) if has_zeros else 0
    step = 1 if first <= last else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
