"""Rule files: permissions as TOML, for people to write.

A model says what a file may have. Files are read by it, and the JSON Schema for editors is made of
it. A file with a mistake is refused as a whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import GenerateJsonSchema

from toolbus.auth.participant_names import MAX_RULED_NAME_CHARS
from toolbus.permissions.modes import Mode
from toolbus.permissions.rule import MAX_MATCH_CHARS, Rule, RuleBehavior, name_fault_in_rules
from toolbus.permissions.toml_file import TomlFile, TomlFileError, TomlTable
from toolbus.settings import expanded
from toolbus.untrusted_text import one_line

__all__ = ["RuleFileError", "read_rule_file", "rule_file_schema"]


class RuleFileError(TomlFileError):
    """A rule file cannot be used; the text names the file, the line, and what to write."""


def _checked_folder(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError(f"workdirs: {one_line(repr(text), 64)} is no path")
    try:
        return str(expanded(text, strict=True))
    except ValueError as error:
        raise ValueError(f"workdirs: {one_line(str(error))}") from None


def _checked_owner(text: str) -> str:
    fault = name_fault_in_rules(text)
    if fault is not None:
        raise ValueError(f"trusted_owners: {one_line(repr(text), 64)} {fault}")
    return text


def _schema(**limits: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **limits})


# What a pattern of ECMA 262 can check of `name_fault_in_rules`; reading a file checks the rest.
_NAME = _schema(
    minLength=1,
    maxLength=MAX_RULED_NAME_CHARS + 33,
    pattern=r"^(?! )(?!.*  )(?!.* $)(?!(.*/)?\*$)[^\u0000-\u001f\u007f-\u00a0]+$",
)
# The grammar of `toolbus.auth.grants`: `*` is the only wildcard, never two in a row.
_TOOL = _schema(pattern=r"^(?!.*\*\*)[a-z*][a-z0-9_*-]{0,63}(\.[A-Za-z0-9_*-]{1,64})?$")
_MATCH = _schema(minLength=1, maxLength=MAX_MATCH_CHARS)
_PATH = _schema(minLength=1, pattern=r"^[^\u0000]+$")


class RuleKeys(TomlTable):
    """One rule, after a line `[[rule]]`."""

    behavior: RuleBehavior
    """What happens to the calls that the rule covers. Deny counts before ask, and ask before allow;
    the order of rules means nothing."""
    tool: Annotated[str, _TOOL] = ""
    """Which tools: toolkit.tool or toolkit, with * as the wildcard. Without it: all."""
    match: Annotated[str, _MATCH] = ""
    """Which calls of the tool, in the tool's own pattern language. Without it: all."""
    owner: Annotated[str, _NAME] = ""
    """Whose toolkit: a name, or alias/name. Without it: everybody's."""
    principal: Annotated[str, _NAME] = ""
    """For whom the call is made: a name, or alias/name. Without it: for everybody."""
    caller: Annotated[str, _NAME] = ""
    """Who makes the call, for the policy of a host: a name, or alias/name. Without it:
    everybody."""

    @field_validator("*")
    @classmethod
    def _check(cls, value: Any, info: ValidationInfo) -> Any:
        Rule(**{"behavior": "deny", str(info.field_name): value})  # raises
        return value


class RuleFileKeys(TomlTable):
    """A rule file of toolbus."""

    mode: Mode = "default"
    """What happens to calls that no rule decides: default and accept_edits ask, explore and
    dont_ask deny, bypass allows. Without it: default."""
    workdirs: list[Annotated[str, AfterValidator(_checked_folder), _PATH]] = Field([])
    """The working directories, relative to this file."""
    trusted_owners: list[Annotated[str, AfterValidator(_checked_owner), _NAME]] = Field([])
    """Owners of toolkits whose word may loosen: names, or alias/name."""
    rule: list[RuleKeys] = Field([], max_length=10_000)
    """The rules, each after a line [[rule]]."""


class _EditorSchema(GenerateJsonSchema):
    """Leaves out titles, and defaults: a key with an empty text is a mistake."""

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def rule_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of rule files, for editors.

    It accepts what `Permissions.from_toml` accepts. That refuses more: some names of participants,
    and what is not text in UTF-8.
    """
    schema = RuleFileKeys.model_json_schema(schema_generator=_EditorSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


def read_rule_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of `Permissions`. Raises `RuleFileError` for a mistake in the file."""
    file = TomlFile(path, RuleFileKeys, RuleFileError)
    folder = Path(file.path).absolute().parent
    rules = [
        Rule(**keys.model_dump(exclude_unset=True), origin=f"{file.path}:{file.line(('rule', n))}")
        for n, keys in enumerate(file.content.rule)
    ]
    return {
        "mode": file.content.mode,
        "rules": rules,
        "workdirs": [folder / name for name in file.content.workdirs],
        "trusted_owners": file.content.trusted_owners,
    }
