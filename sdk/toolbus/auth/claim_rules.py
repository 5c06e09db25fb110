"""Rules that map the claims of another issuer's token to a participant: name, role, rooms, grants.

An identity provider knows nothing of rooms and grants, and its tokens give none. A rule of the key
file says which of them may join, as whom. Pure: claims are passed in, and have been verified.

    [[rule]]
    iss = "https://token.actions.githubusercontent.com"
    match = { repository = "octo-org/*", environment = "production" }
    name = "ci-{repository_id}"
    rooms = ["builds"]
    preset = "host"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from toolbus.auth.grant_options import FIELDS, read_scope
from toolbus.auth.grants import ApiScope, check_room_pattern
from toolbus.auth.participant_names import MAX_RULED_NAME_CHARS, name_fault
from toolbus.auth.token_limits import MAX_ROOM_PATTERNS
from toolbus.untrusted_text import SHOWN_CHARS, json_text, shortened

__all__ = ["ClaimRule", "claim_fault", "read_rule", "table_fault"]

ClaimValue: TypeAlias = str | bool | int
"""What a rule compares a claim with."""
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, kw_only=True)
class ClaimRule:
    """One `[[rule]]`: which tokens of an issuer it is for, and what their participants may do."""

    number: int
    """Its place in the key file, from 1."""
    iss: str
    """The issuer of the tokens."""
    match: Mapping[str, ClaimValue]
    """The value of each claim that decides. A text with `*` at its end matches all that begin like
    it; a claim that is a list has to have one such element."""
    rooms: tuple[str, ...]
    """The rooms, or patterns of rooms, that the participant may join."""
    api: ApiScope
    """The grants."""
    name: str | None = None
    """The participant's name, in which `{claim}` is the value of that claim; None for `sub`."""
    role: str = "user"
    """The participant's role."""

    def matches(self, claims: Mapping[str, Any]) -> bool:
        """Whether every claim that it names is there, with its value."""
        return all(
            claim in claims and _covers(value, claims[claim]) for claim, value in self.match.items()
        )

    def mismatch(self, claims: Mapping[str, Any]) -> str | None:
        """Return the first claim that does not match, as a clause; None if all of them do."""
        for claim, value in self.match.items():
            if claim not in claims or not _covers(value, claims[claim]):
                return claim_fault(claims, claim, value)
        return None

    def fault_of_name(self, claims: Mapping[str, Any]) -> str | None:
        """Return why the name that it gives is not valid, as a clause; None if it is."""
        name = self.name_of(claims)
        if (fault := name_fault(name, MAX_RULED_NAME_CHARS)) is None:
            return None
        for claim in _PLACEHOLDER.findall(self.name or "{sub}"):
            if claim not in claims:
                return f"the token has no claim {claim!r}"
            if type(claims[claim]) not in (str, int):
                return f"{claim} is {_shown(claims[claim])}, neither text nor a whole number"
        return f"{_shown(name)} {fault}"

    def name_of(self, claims: Mapping[str, Any]) -> object:
        """Return what is to be the participant's name.

        It may be of any type and form, as the issuer wrote it; None if the template names a claim
        that is not there, or is neither text nor a whole number.
        """
        if self.name is None:
            return claims.get("sub")
        texts = {claim: claims.get(claim) for claim in _PLACEHOLDER.findall(self.name)}
        # JSON's true is an int in Python, and no name.
        if not all(type(value) in (str, int) for value in texts.values()):
            return None
        return _PLACEHOLDER.sub(lambda found: str(texts[found[1]]), self.name)


def _covers(expected: ClaimValue, claim: object) -> bool:
    if isinstance(claim, list):
        return any(_covers(expected, item) for item in claim if not isinstance(item, list))
    if isinstance(expected, str) and expected.endswith("*"):
        return isinstance(claim, str) and claim.startswith(expected[:-1])
    return type(claim) is type(expected) and claim == expected  # 1 is not true


def claim_fault(claims: Mapping[str, Any], claim: str, expected: ClaimValue) -> str:
    """Return how a claim differs from what is expected of it, as a clause."""
    if claim not in claims:
        return f"the token has no claim {claim!r}, which has to be {_shown(expected)}"
    value = claims[claim]
    if isinstance(value, list):
        return f"{claim} is {_shown(value)}, which does not contain {_shown(expected)}"
    kinds = {str: "the text ", int: "the number ", float: "the number "}
    kind, wanted = kinds.get(type(value), ""), kinds.get(type(expected), "")
    if kind == wanted:
        kind = wanted = ""
    return f"{claim} is {kind}{_shown(value)}, not {wanted}{_shown(expected)}"


def _shown(value: object) -> str:
    return shortened(json_text(value), SHOWN_CHARS)


class _RuleTable(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, defer_build=True)  # type: ignore[misc]

    iss: str
    match: dict[str, ClaimValue]
    name: NotRequired[str]
    role: NotRequired[str]
    rooms: NotRequired[list[str]]
    preset: NotRequired[str]
    allow: NotRequired[list[str]]
    deny: NotRequired[list[str]]
    grants: NotRequired[list[str]]


_RULE_TABLES: TypeAdapter[_RuleTable] = TypeAdapter(_RuleTable)


def read_rule(number: int, table: object) -> ClaimRule:
    """Read one `[[rule]]` of a key file.

    Raises:
        ValueError: It is not valid; the message says what to write.
    """
    try:
        given = _RULE_TABLES.validate_python(table)
        scope = read_scope(
            given.get("preset"),
            given.get("grants", ()),
            given.get("allow", ()),
            given.get("deny", ()),
            syntax=FIELDS,
        )
    except ValidationError as error:
        raise ValueError(table_fault(error)) from None
    rule = ClaimRule(
        number=number,
        iss=given["iss"],
        match=given["match"],
        rooms=tuple(given.get("rooms", ["main"])),
        api=scope,
        name=given.get("name"),
        role=given.get("role", "user"),
    )
    _check(rule)
    return rule


def _check(rule: ClaimRule) -> None:
    if not rule.match:
        # A public issuer gives a token to everyone.
        raise ValueError('match is empty: to admit all tokens of the issuer write { sub = "*" }')
    for claim, value in rule.match.items():
        if isinstance(value, str) and "*" in value[:-1]:
            raise ValueError(f"match.{claim}: '*' may only be at the end")
    if not 0 < len(rule.rooms) <= MAX_ROOM_PATTERNS:
        raise ValueError(f"rooms has 1 to {MAX_ROOM_PATTERNS} rooms or patterns of rooms")
    for pattern in rule.rooms:
        check_room_pattern(pattern)
    if (fault := name_fault(rule.role)) is not None:
        raise ValueError(f"role {fault}")
    if rule.name is None:
        return
    fixed = _PLACEHOLDER.sub("x", rule.name)
    if "{" in fixed or "}" in fixed:
        raise ValueError('name: write the name of a claim in braces, as in "ci-{repository_id}"')
    if (fault := name_fault(fixed)) is not None:
        raise ValueError(f"name {fault}")


def table_fault(error: ValidationError) -> str:
    """Return the first problem of a table of a key file, in one line."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"][:2]))
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown field {place!r}"
        case "missing":
            return f"{place} is missing"
    text = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
