"""TOML files that people write: a table of keys says what a file may have, and mistakes have lines.

A file with a mistake is refused as a whole, with its path, the line and what to write.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from toolbus.permissions.toml_lines import KeyPath, TomlLines, line_of_long_key
from toolbus.untrusted_text import one_line

__all__ = ["MAX_FILE_BYTES", "TomlFile", "TomlFileError", "TomlKey"]

MAX_FILE_BYTES = 4 * 1024 * 1024
"""The largest file."""
_MAX_KEY_PARTS = 100
_TYPES: Mapping[str, type] = {"array": list, "boolean": bool, "string": str}
_WORDS: Mapping[str, str] = {"array": "a list", "boolean": "true or false", "string": "text"}
_AT_LINE = re.compile(r" ?\(at line (\d+), column \d+\)\Z| ?\(at end of document\)\Z")


class TomlFileError(ValueError):
    """A file cannot be used; the text names the file, the line, and what to write."""

    def __init__(self, path: str, line: int, fault: str) -> None:
        self.path = path
        """The file, as it was named."""
        self.line = line
        """The line of the mistake, from 1; 0 if the file cannot be read at all."""
        self.fault = fault
        """What is wrong, and what to write."""
        place = one_line(path, 1_000)
        super().__init__(f"{place}:{line}: {fault}" if line else f"{place}: {fault}")


class TomlKey(NamedTuple):
    """What a key of a file is for, and the JSON Schema of its value: text, a boolean or a list."""

    help: str
    schema: Mapping[str, Any]
    is_required: bool = False


class TomlFile:
    """A file that has been read: its values, and the line of each.

    Args:
        path: The file.
        tables: The keys of the file itself, and of the tables in each of its lists of tables: the
            value of `""` and of the list's name.
        error: The class of the errors about it.

    Raises the error if the file cannot be read, or is no TOML.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: Mapping[str, Mapping[str, TomlKey]],
        error: type[TomlFileError] = TomlFileError,
    ) -> None:
        self.path: str = os.fspath(path)
        self._tables = tables
        self._error = error
        text = self._read()
        self.values: dict[str, Any] = self._parsed(text)
        self._lines = TomlLines(text)
        self._check_table((), "", self.values)

    def line(self, at: KeyPath) -> int:
        """Return the line of a key or an item."""
        return self._lines.line(at)

    def error(self, at: KeyPath, fault: str) -> TomlFileError:
        """Return the error about a key or an item, to be raised."""
        return self._error(self.path, self._lines.line(at), fault)

    def tables(self, name: str) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        """Yield each table of a list of tables, checked, and where it is. Raises the error."""
        for index, values in enumerate(self.values.get(name, ())):
            at: KeyPath = (name, index)
            self._check_table(at, name, values)
            yield at, values

    def items(self, at: KeyPath, values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
        """Yield each text of a list, and where it is. Raises the error for what is no text.

        Args:
            at: Where the list is.
            values: The table that has it.
        """
        name = str(at[-1])
        for index, item in enumerate(values.get(name, ())):
            place = (*at, index)
            self._check_type(place, f"each of {name}", item, "string", f'{name} = ["..."]')
            yield place, item

    def _read(self) -> str:
        place = Path(self.path)
        data = None
        try:
            if place.is_file() or not place.exists():  # a pipe may never end
                with place.open("rb") as file:
                    data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self._error(self.path, 0, f"the file cannot be read: {reason}") from None
        if data is None:
            raise self._error(self.path, 0, "this is no regular file")
        if len(data) > MAX_FILE_BYTES:
            raise self._error(self.path, 0, f"the file is larger than {MAX_FILE_BYTES:,} bytes")
        try:
            # Editors of Windows write a byte order mark.
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            fault = "this is not text in UTF-8: save it as UTF-8"
            raise self._error(self.path, line, fault) from None

    def _parsed(self, text: str) -> dict[str, Any]:
        if (line := line_of_long_key(text, _MAX_KEY_PARTS)) is not None:
            raise self._error(self.path, line, f"a key has more than {_MAX_KEY_PARTS} parts")
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # The attributes for the line are of Python 3.14.
            found = _AT_LINE.search(str(error))
            at = found.group(1) if found else None
            line = int(at) if at else text.rstrip().count("\n") + 1
            fault = one_line(_AT_LINE.sub("", str(error)), 300)
            raise self._error(self.path, line, f"this is not TOML: {fault}") from None
        except (RecursionError, ValueError) as error:  # a number of too many digits, for instance
            fault = "too deeply nested" if isinstance(error, RecursionError) else str(error)
            fault = f"this cannot be read as TOML: {one_line(fault)[:300]}"
            raise self._error(self.path, 0, fault) from None

    def _check_table(self, at: KeyPath, table: str, values: object) -> None:
        """Refuse unknown keys, values of the wrong type, and required keys that are missing."""
        keys = self._tables[table]
        if not isinstance(values, dict):
            fault = f"a {table} must be a table, not {_kind(values)}: write [[{table}]]"
            raise self.error(at, fault)
        for name, value in values.items():
            key = keys.get(name)
            if key is None:
                raise self.error((*at, name), self._unknown(name, table))
            kind = key.schema["type"]
            self._check_type((*at, name), name, value, kind, self._example(name, kind))
            if kind == "array" and len(value) > key.schema["maxItems"]:
                most = key.schema["maxItems"]
                fault = f"{name} may be given {most:,} times at most"
                raise self.error((*at, name, most), fault)
        for name, key in keys.items():
            if key.is_required and name not in values:
                *others, last = (f'"{choice}"' for choice in key.schema.get("enum", ["..."]))
                wanted = f"{', '.join(others)} or {last}" if others else last
                raise self.error(at, f"a {table} must have {name} = {wanted}")

    def _check_type(self, at: KeyPath, name: str, value: object, kind: str, example: str) -> None:
        if not isinstance(value, _TYPES[kind]):
            fault = f"{name} must be {_WORDS[kind]}, not {_kind(value)}: write {example}"
            raise self.error(at, fault)

    def _example(self, name: str, kind: str) -> str:
        if kind == "array":
            return f"[[{name}]]" if name in self._tables else f'{name} = ["..."]'
        return f"{name} = true" if kind == "boolean" else f'it in quotes, {name} = "..."'

    def _unknown(self, name: str, table: str) -> str:
        keys = self._tables[table]
        near = get_close_matches(name[:64], keys, n=1)
        # A key of a table that stands before its first line [[...]], or one of the file after it.
        elsewhere = next((other for other, found in self._tables.items() if name in found), None)
        if near:
            hint = f"did you mean {near[0]}?"
        elif elsewhere == "":
            hint = f"write it above the first [[{table}]]"
        elif elsewhere is not None:
            hint = f"write it below a line [[{elsewhere}]]"
        else:
            hint = f"there are {', '.join(keys)}"
        return f"unknown key {one_line(repr(name), 64)}: {hint}"


def _kind(value: object) -> str:
    """Return what a value is in TOML."""
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")
