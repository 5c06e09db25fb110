"""TOML files that people write: a pydantic model says what a file may have; mistakes have lines.

A file with a mistake is refused as a whole, with its path, the line and what to write.
"""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from toolbus.untrusted_text import one_line

__all__ = ["MAX_FILE_BYTES", "Place", "TomlFile", "TomlFileError", "TomlTable"]

Place: TypeAlias = tuple[str | int, ...]
"""The keys that lead to a value, and the indexes in lists: `("rule", 3, "tool")`."""
Content = TypeVar("Content", bound="TomlTable")

MAX_FILE_BYTES = 4 * 1024 * 1024
"""The largest file: a program does not start before it is read."""
# Strings and comments, in which no key is to be looked for; but a key may be in quotes.
_OPAQUE = re.compile(
    r"""(?P<quote>["'])(?P<key>[\w-]+)(?P=quote)(?=[ \t]*(?:[.=]|\]\]))"""
    r'|"{3}(?:[^"\\]++|\\.|"(?!""))*+"{0,5}'
    r"|'{3}(?:[^']++|'(?!''))*+'{0,5}"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_LONG_KEY = re.compile(r'(?:\.[ \t]*[\w"-]+[ \t]*){100}')  # `tomllib` takes quadratic time for it
_AT_LINE = re.compile(r" ?\(at line (\d+), column \d+\)\Z| ?\(at end of document\)\Z")
# What is wanted in place of a value of another type, and how it is written.
_WANTED: Mapping[str, tuple[str, str]] = {
    "bool_type": ("true or false", "{} = true"),
    "list_type": ("a list", '{} = ["..."]'),
    "literal_error": ("text", 'it in quotes, {} = "..."'),
    "string_type": ("text", 'it in quotes, {} = "..."'),
}


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


class TomlTable(BaseModel):
    """The keys of a file, or of each table in a list of tables."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, use_attribute_docstrings=True
    )


class TomlFile(Generic[Content]):
    """A file that has been read.

    Args:
        path: The file.
        model: The keys of the file; one of them may be a list of tables.
        error: The class of the errors about it.

    Raises the error if the file cannot be read, is not TOML, or does not fit the model.
    """

    def __init__(
        self, path: str | os.PathLike[str], model: type[Content], error: type[TomlFileError]
    ) -> None:
        self.path: str = os.fspath(path)
        self._error = error
        self._tables: dict[str, type[BaseModel]] = {"": model}
        for name, field in model.model_fields.items():
            for item in get_args(field.annotation):
                if isinstance(item, type) and issubclass(item, TomlTable):
                    self._tables[name] = item
        text = self._read()
        self._outline = _OPAQUE.sub(_without_content, text)
        self._line_ends = [end.start() for end in re.finditer("\n", self._outline)]
        # Where each table of the list begins, and the end: after its line `[[name]]`, or its brace.
        header = rf"^[ \t]*\[\[[ \t]*(?:{'|'.join(filter(None, self._tables))})[ \t]*\]\]"
        starts = list(re.finditer(header, self._outline, re.MULTILINE))
        self._starts = [start.end() for start in starts or re.finditer(r"\{", self._outline)]
        self._starts.append(len(self._outline))
        values = self._parsed(text)
        try:
            self.content: Content = model.model_validate(values)
        except ValidationError as refused:
            faults = refused.errors(include_url=False)
            # A key that is missing may be there with a mistake in its name.
            first = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
            raise self._refusal(first) from None

    def line(self, at: Place) -> int:
        """Return the line of a key, a table or an item, or else of what it is in."""
        start, end, table = 0, self._starts[-1], ""
        if len(at) > 1 and at[0] in self._tables and int(at[1]) + 1 < len(self._starts):
            index = int(at[1])
            start, end = self._starts[index : index + 2]
            table = str(at[0])
            at = at[2:]
        for part in at:
            if isinstance(part, int):
                item = re.compile(rf"(?:[^\[,]*[\[,]){{{part + 1}}}\s*")
                found = item.match(self._outline, start)
            else:
                prefix = rf"(?:^|[{{,])[ \t[]*(?:{table}[ \t]*\.[ \t]*)?"
                key = re.compile(rf"{prefix}{re.escape(part)}[ \t]*[].=]", re.MULTILINE)
                found = key.search(self._outline, start, end)
            if found:
                start = found.end()
        return self._line_at(start)

    def error(self, at: Place, fault: str) -> TomlFileError:
        """Return the error about a key or an item, to be raised."""
        return self._error(self.path, self.line(at), fault)

    def _line_at(self, position: int) -> int:
        return bisect_left(self._line_ends, position) + 1

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
        if long_key := _LONG_KEY.search(self._outline):
            line = self._line_at(long_key.start())
            raise self._error(self.path, line, "a key has more than 100 parts")
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # The attributes for the line are of Python 3.14.
            line = text.rstrip().count("\n") + 1
            if (found := _AT_LINE.search(str(error))) and found[1]:
                line = int(found[1])
            fault = one_line(_AT_LINE.sub("", str(error)), 300)
            raise self._error(self.path, line, f"this is not TOML: {fault}") from None
        except (RecursionError, ValueError) as error:  # a number of too many digits, for instance
            fault = "too deeply nested" if isinstance(error, RecursionError) else str(error)
            fault = f"this cannot be read as TOML: {one_line(fault)[:300]}"
            raise self._error(self.path, 0, fault) from None

    def _refusal(self, fault: ErrorDetails) -> TomlFileError:
        """Return the error about what does not fit the model: where it is, and what to write."""
        at, kind, value = fault["loc"], fault["type"], fault["input"]
        table = str(at[0]) if len(at) > 1 and at[0] in self._tables else ""
        name = str(at[-1])
        if kind == "extra_forbidden":
            words = f"unknown key {one_line(repr(name), 64)}: {self._hint(name, table)}"
        elif kind == "missing":
            at = at[:-1]
            examples = [f'"{choice}"' for choice in self._choices(table, name)] or ['"..."']
            words = f"a {table} must have {name} = {_listed(examples)}"
        elif kind == "too_long":
            most = fault["ctx"]["max_length"]
            at = (*at, most)
            words = f"{name} may be given {most:,} times at most"
        elif kind == "model_type":
            words = f"a {table} must be a table, not {_kind(value)}: write [[{table}]]"
        elif kind == "value_error":
            words = str(fault["ctx"]["error"])
        elif kind == "literal_error" and isinstance(value, str):
            choices = self._choices(table, name)
            near = get_close_matches(value[:64], choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            words = f"{name} must be {_listed(choices)}, not {one_line(repr(value), 64)}{hint}"
        else:
            words = self._type_fault(at, kind, value)
        return self.error(at, words)

    def _type_fault(self, at: Place, kind: str, value: object) -> str:
        name = str(at[-1])
        wanted, example = _WANTED[kind]
        if isinstance(at[-1], int):
            name = str(at[-2])
            return f'each of {name} must be {wanted}, not {_kind(value)}: write {name} = ["..."]'
        if name in self._tables:
            example = "[[{}]]"
        return f"{name} must be {wanted}, not {_kind(value)}: write {example.format(name)}"

    def _choices(self, table: str, name: str) -> Sequence[str]:
        """Return the values that a key may have, if only these are possible."""
        return get_args(self._tables[table].model_fields[name].annotation)

    def _hint(self, name: str, table: str) -> str:
        """Return what to write in place of an unknown key."""
        keys = self._tables[table].model_fields
        if near := get_close_matches(name[:64], keys, n=1):
            return f"did you mean {near[0]}?"
        # A key of a table that stands before its first line [[...]], or one of the file after it.
        for other, model in self._tables.items():
            if name in model.model_fields:
                place = f"below a line [[{other}]]" if other else f"above the first [[{table}]]"
                return f"write it {place}"
        return f"there are {', '.join(keys)}"


def _without_content(opaque: re.Match[str]) -> str:
    """Return a string or a comment without what it says, or a key without its quotes."""
    if opaque[0][0] == "#":
        return ""
    return opaque["key"] or '"' + "\n" * opaque[0].count("\n")


def _listed(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _kind(value: object) -> str:
    """Return what a value is in TOML."""
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")
