"""Finds the line of each key in TOML text, which `tomllib` does not tell.

The text is valid: `tomllib` has read it. So it is enough to know where strings and comments end,
and which brackets belong together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

__all__ = ["KeyPath", "TomlLines", "line_of_long_key"]

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys that lead to a value, and the indexes in lists: `("rule", 3, "tool")`."""

_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r]|#[^\n]*)+)"
    r"|(?P<newline>\n)"
    r"|(?P<quote>[\"'])"
    r"|(?P<mark>[][{},=.])"
    r"|(?P<word>[^\s#\"'\][{},=.]+)"
)
# What may end a string, and the escapes that it must not be looked for in.
_ENDS = {
    '"': re.compile(r'\\.|(")', re.DOTALL),
    '"""': re.compile(r'\\.|("{3,5})', re.DOTALL),
    "'": re.compile("(')"),
    "'''": re.compile("('{3,5})"),
}
_MAX_PARTS = 8  # of a dotted key; a longer one is found by its first parts


class _Frame(NamedTuple):
    """A list or an inline table whose end has not been read."""

    path: KeyPath
    is_list: bool


class TomlLines:
    """The lines of all keys, tables and items of lists of a valid TOML text."""

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {(): 1}
        self._tables: dict[KeyPath, int] = {}  # how many tables each `[[...]]` has so far
        self._table: KeyPath = ()
        self._frames: list[_Frame] = []
        self._index: list[int] = []  # of each frame: the index of the current item
        self._key: list[str] = []
        self._key_line = 1
        self._is_header = False
        self._is_list_header = False
        self._awaits_value = False
        self._read(text)

    def line(self, path: KeyPath) -> int:
        """Return the line of a key or of an item, or else of the nearest one that contains it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _read(self, text: str) -> None:
        line = 1
        at = 0
        while (match := _TOKEN.match(text, at)) is not None:
            at, kind, token = match.end(), match.lastgroup, match.group()
            if kind == "newline":
                line += 1
                if not self._frames:
                    self._begin_key()
            elif kind == "mark":
                self._mark(token, line)
            elif kind != "space":
                if kind == "quote":
                    at = _string_end(text, match.start())
                    token = text[match.start() : at]
                if self._awaits_value:
                    self._begin_value(line)
                    self._awaits_value = False
                else:
                    self._key_part(token, line)
                line += token.count("\n")

    def _begin_key(self) -> None:
        self._key = []
        self._is_header = self._awaits_value = False

    def _key_part(self, token: str, line: int) -> None:
        if not self._key:
            self._key_line = line
        if len(self._key) < _MAX_PARTS:
            self._key.append(_unquoted(token) if token[0] in "\"'" else token)

    def _mark(self, mark: str, line: int) -> None:
        frame = self._frames[-1] if self._frames else None
        if mark == "=":
            base = self._table if frame is None else frame.path
            for end in range(1, len(self._key) + 1):
                self._lines.setdefault((*base, *self._key[:end]), self._key_line)
            self._awaits_value = True
        elif mark in "[{" and self._awaits_value:
            path = self._begin_value(line)
            self._frames.append(_Frame(path, mark == "["))
            self._index.append(0)
            self._key = []
            self._awaits_value = mark == "["
        elif mark == ",":
            assert frame is not None
            self._index[-1] += 1
            self._key = []
            self._awaits_value = frame.is_list
        elif frame is not None and mark in "]}":
            self._frames.pop()
            self._index.pop()
            self._awaits_value = False
        elif mark == "[":
            # The second one of `[[` finds the first.
            self._is_list_header = self._is_header
            self._is_header = True
        elif mark == "]" and self._is_header:
            self._is_header = False
            self._enter_table(line)

    def _begin_value(self, line: int) -> KeyPath:
        """Return the path of the value that begins here."""
        if not self._frames:
            return (*self._table, *self._key)
        frame = self._frames[-1]
        path = (*frame.path, self._index[-1]) if frame.is_list else (*frame.path, *self._key)
        self._lines.setdefault(path, line)
        return path

    def _enter_table(self, line: int) -> None:
        path: KeyPath = ()
        for part in self._key[:-1]:
            path = (*path, part)
            self._lines.setdefault(path, line)
            if path in self._tables:  # `[rule.x]` means the last `[[rule]]`
                path = (*path, self._tables[path] - 1)
        path = (*path, self._key[-1])
        self._lines.setdefault(path, line)
        if self._is_list_header:
            index = self._tables.get(path, 0)
            self._tables[path] = index + 1
            path = (*path, index)
            self._lines.setdefault(path, line)
        self._table = path


def line_of_long_key(text: str, max_parts: int) -> int | None:
    """Return the line of a dotted key with more parts, for which `tomllib` takes quadratic time.

    The text need not be valid.
    """
    if all(line.count(".") < max_parts for line in text.split("\n")):
        return None
    line, dots, at = 1, 0, 0
    while (match := _TOKEN.match(text, at)) is not None:
        at, kind, token = match.end(), match.lastgroup, match.group()
        if kind == "quote":
            at = _string_end(text, match.start())
            line += text.count("\n", match.start(), at)
        elif kind == "newline":
            line += 1
            dots = 0
        elif kind == "mark":
            dots = dots + 1 if token == "." else 0
            if dots >= max_parts:
                return line
    return None


def _string_end(text: str, start: int) -> int:
    quote = text[start]
    # Two quotes are the empty string unless a third one follows.
    if text.startswith(quote * 3, start):
        quote *= 3
    for match in _ENDS[quote].finditer(text, start + len(quote)):
        if match.group(1):
            return match.end()
    return len(text)  # only of a text that is not valid


def _unquoted(token: str) -> str:
    values: Mapping[str, str] = tomllib.loads(f"key = {token}")
    return values["key"]
