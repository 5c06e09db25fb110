"""Rule files: permissions as TOML, for people to write.

One table of keys says what a file may have. Files are read by it, and the JSON Schema for editors
is made of it. A file with a mistake is refused as a whole.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from toolbus.auth.participant_names import MAX_NAME_CHARS
from toolbus.permissions.modes import MODES, Mode, mode_fault
from toolbus.permissions.rule import MAX_MATCH_CHARS, Rule, name_fault_in_rules
from toolbus.permissions.toml_lines import KeyPath, TomlLines, line_of_long_key
from toolbus.untrusted_text import one_line

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_RULES",
    "RuleFile",
    "RuleFileError",
    "read_rule_file",
    "rule_file_schema",
]

MAX_FILE_BYTES = 4 * 1024 * 1024
"""The largest rule file."""
MAX_RULES = 10_000
"""The most rules of one file."""
_MAX_NAMES = 1_000  # of working directories, and of trusted owners: more is no list of a person
_MAX_PATH_CHARS = 4_096
_MAX_KEY_PARTS = 100
_AT_LINE = re.compile(r" ?\(at line (\d+), column \d+\)\Z| ?\(at end of document\)\Z")


class RuleFileError(ValueError):
    """A rule file cannot be used; the text names the file, the line, and what to write."""

    def __init__(self, path: str, line: int, fault: str) -> None:
        self.path = path
        """The file, as it was named."""
        self.line = line
        """The line of the mistake, from 1; 0 if the file cannot be read at all."""
        self.fault = fault
        """What is wrong, and what to write."""
        place = one_line(path, 1_000)
        super().__init__(f"{place}:{line}: {fault}" if line else f"{place}: {fault}")


class RuleFile(NamedTuple):
    """The content of a rule file."""

    mode: Mode
    rules: tuple[Rule, ...]
    workdirs: tuple[str, ...]
    """Absolute paths."""
    trusted_owners: tuple[str, ...]


class _Key(NamedTuple):
    """What a key of a rule file is for, and the schema of its value."""

    help: str
    schema: Mapping[str, Any]
    is_required: bool = False

    @property
    def is_list(self) -> bool:
        return bool(self.schema["type"] == "array")


def _text(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


# What a pattern of ECMA 262 can say of `name_fault_in_rules`. The rest is said when a file is read.
_NAME = _text(
    minLength=1,
    maxLength=MAX_NAME_CHARS + 33,
    pattern=r"^(?! )(?!.*  )(?!.* $)(?!(.*/)?\*$)[^\u0000-\u001f\u007f-\u00a0]+$",
)
# The grammar of `toolbus.auth.grants`: `*` is the only wildcard, never two in a row.
_TOOL = _text(
    pattern=r"^(?!.*\*\*)[a-z*][a-z0-9_*-]{0,63}(\.[A-Za-z0-9_*-]{1,64})?$",
)

_RULE_KEYS: Mapping[str, _Key] = {
    "behavior": _Key(
        "What happens to the calls that the rule covers. Deny counts before ask, and ask before"
        " allow; the order of rules means nothing.",
        _text(enum=["allow", "ask", "deny"]),
        is_required=True,
    ),
    "tool": _Key(
        "Which tools: toolkit.tool or toolkit, with * as the wildcard. Without it: all.", _TOOL
    ),
    "match": _Key(
        "Which calls of the tool, in the tool's own pattern language. Without it: all.",
        _text(minLength=1, maxLength=MAX_MATCH_CHARS),
    ),
    "owner": _Key("Whose toolkit: a name, or alias/name. Without it: everybody's.", _NAME),
    "principal": _Key(
        "For whom the call is made: a name, or alias/name. Without it: for everybody.", _NAME
    ),
    "caller": _Key(
        "Who makes the call, for the policy of a host: a name, or alias/name. Without it:"
        " everybody.",
        _NAME,
    ),
}
_FILE_KEYS: Mapping[str, _Key] = {
    "mode": _Key(
        "What happens to calls that no rule decides: default and accept_edits ask, explore and"
        " dont_ask deny, bypass allows. Without it: default.",
        _text(enum=list(MODES)),
    ),
    "workdirs": _Key(
        "The working directories, relative to this file.",
        {
            "type": "array",
            "items": _text(minLength=1, maxLength=_MAX_PATH_CHARS, pattern=r"^[^\u0000]+$"),
            "maxItems": _MAX_NAMES,
        },
    ),
    "trusted_owners": _Key(
        "Owners of toolkits whose word may loosen: names, or alias/name.",
        {"type": "array", "items": _NAME, "maxItems": _MAX_NAMES},
    ),
    "rule": _Key(
        "The rules, each after a line [[rule]].",
        {"type": "array", "maxItems": MAX_RULES},
    ),
}


def rule_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of rule files, for editors.

    It accepts what `Permissions.from_toml` accepts. That refuses more: some names of participants,
    and what is no text in UTF-8.
    """
    schema = _object_schema(_FILE_KEYS)
    schema["properties"]["rule"]["items"] = _object_schema(_RULE_KEYS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A rule file of toolbus",
        **schema,
    }


def _object_schema(keys: Mapping[str, _Key]) -> dict[str, Any]:
    properties = {name: {"description": key.help, **key.schema} for name, key in keys.items()}
    required = [name for name, key in keys.items() if key.is_required]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def read_rule_file(path: str | os.PathLike[str]) -> RuleFile:
    """Read a rule file. Raises `RuleFileError`."""
    name = os.fspath(path)
    text = _read_text(name)
    return _Reader(name, text, _parsed(name, text)).content()


def _read_text(path: str) -> str:
    place = Path(path)
    try:
        if place.exists() and not place.is_file():
            raise RuleFileError(path, 0, "this is no regular file")  # a pipe may never end
        with place.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except RuleFileError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RuleFileError(path, 0, f"the file cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise RuleFileError(path, 0, f"the file is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        # Editors of Windows write a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RuleFileError(path, line, "this is not text in UTF-8: save it as UTF-8") from None


def _parsed(path: str, text: str) -> dict[str, Any]:
    if (line := line_of_long_key(text, _MAX_KEY_PARTS)) is not None:
        raise RuleFileError(path, line, f"a key has more than {_MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The attributes for the line are of Python 3.14.
        found = _AT_LINE.search(str(error))
        at = found.group(1) if found else None
        line = int(at) if at else text.rstrip().count("\n") + 1
        fault = one_line(_AT_LINE.sub("", str(error)), 300)
        raise RuleFileError(path, line, f"this is not TOML: {fault}") from None
    except (RecursionError, ValueError) as error:  # a number of too many digits, for instance
        fault = "too deeply nested" if isinstance(error, RecursionError) else one_line(str(error))
        raise RuleFileError(path, 0, f"this cannot be read as TOML: {fault[:300]}") from None


class _Reader:
    """Checks the values of a file, and knows the line of each."""

    def __init__(self, path: str, text: str, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values
        self._lines = TomlLines(text)

    def content(self) -> RuleFile:
        """Return the content. Raises `RuleFileError` for the first mistake that is found."""
        self._check_keys((), self._values, _FILE_KEYS)
        mode = self._values.get("mode", MODES[0])
        if mode not in MODES:
            raise self._error(("mode",), mode_fault(mode))
        rules = self._values.get("rule", [])
        read = tuple(self._rule(index, values) for index, values in enumerate(rules))
        return RuleFile(cast(Mode, mode), read, self._workdirs(), self._owners())

    def _error(self, at: KeyPath, fault: str) -> RuleFileError:
        return RuleFileError(self._path, self._lines.line(at), fault)

    def _check_keys(self, at: KeyPath, values: object, keys: Mapping[str, _Key]) -> None:
        """Refuse unknown keys, and values of the wrong type."""
        if not isinstance(values, dict):
            raise self._error(at, f"a rule must be a table, not {_kind(values)}: write [[rule]]")
        for name, value in values.items():
            key = keys.get(name)
            if key is None:
                raise self._error((*at, name), _unknown(name, keys))
            if not key.is_list:
                self._check_text((*at, name), name, value)
            elif not isinstance(value, list):
                example = "[[rule]]" if name == "rule" else f'{name} = ["..."]'
                fault = f"{name} must be a list, not {_kind(value)}: write {example}"
                raise self._error((*at, name), fault)
            elif len(value) > key.schema["maxItems"]:
                most = key.schema["maxItems"]
                fault = f"{name} may be given {most:,} times at most"
                raise self._error((*at, name, most), fault)

    def _check_text(self, at: KeyPath, name: str, value: object) -> None:
        if not isinstance(value, str):
            fault = f'{name} must be text, not {_kind(value)}: write it in quotes, {name} = "..."'
            raise self._error(at, fault)

    def _rule(self, index: int, values: object) -> Rule:
        at: KeyPath = ("rule", index)
        self._check_keys(at, values, _RULE_KEYS)
        assert isinstance(values, dict)
        if "behavior" not in values:
            raise self._error(at, 'a rule must have behavior = "allow", "ask" or "deny"')
        try:
            return Rule(**values, origin=f"{self._path}:{self._lines.line(at)}")
        except ValueError:
            for name, value in values.items():
                try:
                    Rule(**{"behavior": "deny", name: value})
                except ValueError as error:
                    raise self._error((*at, name), str(error)) from None
            raise

    def _workdirs(self) -> tuple[str, ...]:
        folder = Path(self._path).absolute().parent
        found = []
        for at, text in self._items("workdirs"):
            if not text or "\0" in text or len(text) > _MAX_PATH_CHARS:
                raise self._error(at, f"workdirs: {one_line(repr(text), 64)} is no path")
            try:
                found.append(str(folder / Path(text).expanduser()))
            except RuntimeError as error:
                raise self._error(at, f"workdirs: {error}") from None
        return tuple(found)

    def _owners(self) -> tuple[str, ...]:
        found = []
        for at, text in self._items("trusted_owners"):
            fault = name_fault_in_rules(text)
            if fault is not None:
                raise self._error(at, f"trusted_owners: {one_line(repr(text), 64)} {fault}")
            found.append(text)
        return tuple(found)

    def _items(self, name: str) -> Sequence[tuple[KeyPath, str]]:
        items = self._values.get(name, [])
        for index, item in enumerate(items):
            self._check_text((name, index), f"each of {name}", item)
        return [((name, index), item) for index, item in enumerate(items)]


def _unknown(name: str, keys: Mapping[str, _Key]) -> str:
    near = get_close_matches(name[:64], keys, n=1)
    # A key of a rule that stands before the first [[rule]], or one of the file after it.
    elsewhere = _RULE_KEYS if keys is _FILE_KEYS else _FILE_KEYS
    if near:
        hint = f"did you mean {near[0]}?"
    elif name in elsewhere:
        below = "below a line [[rule]]" if keys is _FILE_KEYS else "above the first [[rule]]"
        hint = f"write it {below}"
    else:
        hint = f"there are {', '.join(keys)}"
    return f"unknown key {one_line(repr(name), 64)}: {hint}"


def _kind(value: object) -> str:
    """Return what a value is in TOML."""
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(type(value), "a date or time")
