"""Rule files: permissions as TOML, for people to write.

One table of keys says what a file may have. Files are read by it, and the JSON Schema for editors
is made of it. A file with a mistake is refused as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from toolbus.auth.participant_names import MAX_NAME_CHARS
from toolbus.permissions.modes import MODES, Mode, mode_fault
from toolbus.permissions.rule import MAX_MATCH_CHARS, Rule, name_fault_in_rules
from toolbus.permissions.toml_file import TomlFile, TomlFileError, TomlKey
from toolbus.permissions.toml_lines import KeyPath
from toolbus.settings import expanded
from toolbus.untrusted_text import one_line

__all__ = [
    "MAX_RULES",
    "RuleFile",
    "RuleFileError",
    "read_rule_file",
    "rule_file_schema",
]

MAX_RULES = 10_000
"""The most rules of one file."""
_MAX_NAMES = 1_000  # of working directories, and of trusted owners: more is no list of a person
_MAX_PATH_CHARS = 4_096


class RuleFileError(TomlFileError):
    """A rule file cannot be used; the text names the file, the line, and what to write."""


class RuleFile(NamedTuple):
    """The content of a rule file."""

    mode: Mode
    rules: tuple[Rule, ...]
    workdirs: tuple[str, ...]
    """Absolute paths."""
    trusted_owners: tuple[str, ...]


def _text(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


# What a pattern of ECMA 262 can check of `name_fault_in_rules`; reading a file checks the rest.
_NAME = _text(
    minLength=1,
    maxLength=MAX_NAME_CHARS + 33,
    pattern=r"^(?! )(?!.*  )(?!.* $)(?!(.*/)?\*$)[^\u0000-\u001f\u007f-\u00a0]+$",
)
# The grammar of `toolbus.auth.grants`: `*` is the only wildcard, never two in a row.
_TOOL = _text(
    pattern=r"^(?!.*\*\*)[a-z*][a-z0-9_*-]{0,63}(\.[A-Za-z0-9_*-]{1,64})?$",
)

_RULE_KEYS: Mapping[str, TomlKey] = {
    "behavior": TomlKey(
        "What happens to the calls that the rule covers. Deny counts before ask, and ask before"
        " allow; the order of rules means nothing.",
        _text(enum=["allow", "ask", "deny"]),
        is_required=True,
    ),
    "tool": TomlKey(
        "Which tools: toolkit.tool or toolkit, with * as the wildcard. Without it: all.", _TOOL
    ),
    "match": TomlKey(
        "Which calls of the tool, in the tool's own pattern language. Without it: all.",
        _text(minLength=1, maxLength=MAX_MATCH_CHARS),
    ),
    "owner": TomlKey("Whose toolkit: a name, or alias/name. Without it: everybody's.", _NAME),
    "principal": TomlKey(
        "For whom the call is made: a name, or alias/name. Without it: for everybody.", _NAME
    ),
    "caller": TomlKey(
        "Who makes the call, for the policy of a host: a name, or alias/name. Without it:"
        " everybody.",
        _NAME,
    ),
}
_FILE_KEYS: Mapping[str, TomlKey] = {
    "mode": TomlKey(
        "What happens to calls that no rule decides: default and accept_edits ask, explore and"
        " dont_ask deny, bypass allows. Without it: default.",
        _text(enum=list(MODES)),
    ),
    "workdirs": TomlKey(
        "The working directories, relative to this file.",
        {
            "type": "array",
            "items": _text(minLength=1, maxLength=_MAX_PATH_CHARS, pattern=r"^[^\u0000]+$"),
            "maxItems": _MAX_NAMES,
        },
    ),
    "trusted_owners": TomlKey(
        "Owners of toolkits whose word may loosen: names, or alias/name.",
        {"type": "array", "items": _NAME, "maxItems": _MAX_NAMES},
    ),
    "rule": TomlKey(
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


def _object_schema(keys: Mapping[str, TomlKey]) -> dict[str, Any]:
    properties = {name: {"description": key.help, **key.schema} for name, key in keys.items()}
    required = [name for name, key in keys.items() if key.is_required]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def read_rule_file(path: str | os.PathLike[str]) -> RuleFile:
    """Read a rule file. Raises `RuleFileError` for the first mistake that is found."""
    file = TomlFile(path, {"": _FILE_KEYS, "rule": _RULE_KEYS}, RuleFileError)
    mode = file.values.get("mode", MODES[0])
    if mode not in MODES:
        raise file.error(("mode",), mode_fault(mode))
    rules = tuple(_rule(file, at, values) for at, values in file.tables("rule"))
    return RuleFile(cast(Mode, mode), rules, _workdirs(file), _owners(file))


def _rule(file: TomlFile, at: KeyPath, values: dict[str, Any]) -> Rule:
    try:
        return Rule(**values, origin=f"{file.path}:{file.line(at)}")
    except ValueError:
        for name, value in values.items():
            try:
                Rule(**{"behavior": "deny", name: value})
            except ValueError as error:
                raise file.error((*at, name), str(error)) from None
        raise


def _workdirs(file: TomlFile) -> tuple[str, ...]:
    folder = Path(file.path).absolute().parent
    found = []
    for at, text in file.items(("workdirs",), file.values):
        if not text or "\0" in text or len(text) > _MAX_PATH_CHARS:
            raise file.error(at, f"workdirs: {one_line(repr(text), 64)} is no path")
        try:
            found.append(str(folder / expanded(text, strict=True)))
        except ValueError as error:
            raise file.error(at, f"workdirs: {one_line(str(error))}") from None
    return tuple(found)


def _owners(file: TomlFile) -> tuple[str, ...]:
    found = []
    for at, text in file.items(("trusted_owners",), file.values):
        fault = name_fault_in_rules(text)
        if fault is not None:
            raise file.error(at, f"trusted_owners: {one_line(repr(text), 64)} {fault}")
        found.append(text)
    return tuple(found)
