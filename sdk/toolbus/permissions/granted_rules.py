"""What people have granted to an agent: kept in its state, and bound to whom it was granted for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, NamedTuple

from toolbus.chunks.json_values import is_encodable
from toolbus.permissions.decision import JudgedCall
from toolbus.permissions.rule import MAX_MATCH_CHARS, Rule
from toolbus.untrusted_text import json_text, one_line, shortened

__all__ = [
    "MAX_GRANTED_RULES",
    "GrantedRule",
    "GrantedRules",
    "arguments_digest",
    "bond_of",
    "granted_for",
    "granted_rule",
]

MAX_GRANTED_RULES = 1_000
"""The most rules that a state keeps; then the oldest is forgotten, and asked about again."""
_MAX_NAME_CHARS = 1_024  # names of participants have at most 256, and issuers may be addresses
_SHOWN_DIGEST_CHARS = 12
"""Enough to distinguish two grants of one tool in a list of them."""


class _Bond(NamedTuple):
    """What a granted rule is bound to: the tool, its owner and folders, and for whom it is called.

    Both names of the tool count: an alias may stand for another toolkit in the next turn, and one
    toolkit of this process may be there twice, with other settings.
    """

    tool: str
    own_name: str
    owner: str
    owner_issuer: str
    principal: str
    principal_issuer: str
    workdirs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedRule:
    """Calls of one tool that a person has allowed for the state of an agent.

    It is for one principal, and for the tool of one owner or, in the agent's process, of some
    folders: it never allows anything for others.
    With `match` it covers the calls that the tool's pattern matches, with `arguments` those with
    exactly these arguments and without attachment or input, and with neither all calls of the tool.

    Raises `ValueError` for a field that cannot be one.
    """

    tool: str
    """`toolkit.tool`, by its name in the turn."""
    own_name: str
    """`toolkit.tool`, by the toolkit's own name."""
    principal: str
    """For whom: the name of the sender of the message, or that of the agent itself."""
    principal_issuer: str = ""
    """The issuer of that name."""
    owner: str = ""
    """Whose toolkit; empty for one of the agent's process."""
    owner_issuer: str = ""
    """The issuer of that name."""
    workdirs: tuple[str, ...] = ()
    """The folders that the tool worked in, as `ToolInfo.workdirs`, in their order."""
    reaches: str = ""
    """The tool that the calls reach, `toolkit.tool`, where the called tool only forwards."""
    match: str | None = None
    """A pattern in the tool's own language."""
    arguments: str = ""
    """SHA-256 of the arguments as canonical JSON, in hex: `arguments_digest`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "match":
                continue
            texts = value if field.name == "workdirs" else (value,)
            if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{field.name} must be text")
            is_long = field.name in ("match", "workdirs")
            if any(len(text) > (MAX_MATCH_CHARS if is_long else _MAX_NAME_CHARS) for text in texts):
                raise ValueError(f"{field.name} is too long")
        if not all(map(is_encodable, self.workdirs)):
            raise ValueError("workdirs has a path that is not Unicode")
        if not self.tool or not self.own_name or not self.principal or self.match == "":
            raise ValueError("tool, own_name, principal and match must not be empty")
        if self.match is not None and self.arguments:
            raise ValueError("a rule has match or arguments, not both")
        self.rules()  # raises for what is not the name of a tool, and not a pattern

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules that allow the calls that it covers.

        Of arguments they say nothing: the caller has compared these before.
        """
        origin = "granted for exactly these arguments" if self.arguments else "granted"
        reached = self.reaches or self.tool
        if "*" in self.tool or "*" in reached:
            raise ValueError("tool and reaches are names, without *")
        rule = Rule(behavior="allow", tool=reached, match=self.match, origin=origin)
        if not self.reaches:
            return (rule,)
        # A tool of an owner that is not trusted needs both: the rule for it, and for the reached.
        return rule, Rule(behavior="allow", tool=self.tool, origin=origin)

    @property
    def bond(self) -> _Bond:
        """What it is bound to, as `GrantedRules.of` looks it up."""
        return _Bond(*(getattr(self, name) for name in _Bond._fields))

    def __str__(self) -> str:
        """Return it in one line for a person: `allow shell.run "git:*" for alice`."""
        words = ["allow", one_line(self.reaches or self.tool, 140)]
        if self.reaches:
            words.append(f"by {one_line(self.tool, 140)}")
        if self.owner:
            words.append(f"of {json_text(one_line(self.owner, 140))}")
        if self.match is not None:
            words.append(json_text(shortened(one_line(self.match), 200)))
        if self.arguments:
            words.append(f"with the arguments {self.arguments[:_SHOWN_DIGEST_CHARS]}")
        words += (f"in {json_text(one_line(folder))}" for folder in self.workdirs)
        return f"{' '.join(words)} for {json_text(one_line(self.principal, 140))}"

    def to_plain(self) -> dict[str, Any]:
        """Return it as a map of JSON values, without what is at its default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["workdirs"] = list(self.workdirs)
        return {name: value for name, value in values.items() if value}


def granted_rule(value: object) -> GrantedRule:
    """Read what `GrantedRule.to_plain` returned. Raises `ValueError`, also for an unknown key."""
    if not isinstance(value, Mapping):
        raise ValueError("a granted rule must be an object")
    names = [field.name for field in fields(GrantedRule)]
    for name in value:
        if name not in names:
            raise ValueError(f"a granted rule has no key {one_line(repr(name), 64)}")
    if isinstance(value.get("workdirs"), list):
        value = {**value, "workdirs": tuple(value["workdirs"])}
    try:
        return GrantedRule(**value)
    except TypeError:
        raise ValueError("a granted rule has a tool, an own_name and a principal") from None


class GrantedRules:
    """The granted rules of one state, the oldest first. A rule is there once."""

    def __init__(self, rules: Iterable[GrantedRule] = ()) -> None:
        self._rules: dict[GrantedRule, None] = {}
        self._bound: dict[_Bond, dict[GrantedRule, None]] = {}
        for rule in rules:
            if not isinstance(rule, GrantedRule):
                raise TypeError(f"rules has {type(rule).__name__}, and not only GrantedRule")
            self.add(rule)

    def add(self, rule: GrantedRule) -> None:
        """Add a rule; beyond 1,000 the oldest one is forgotten."""
        self.discard(rule)
        if len(self._rules) >= MAX_GRANTED_RULES:
            self.discard(next(iter(self._rules)))
        self._rules[rule] = None
        self._bound.setdefault(rule.bond, {})[rule] = None

    def discard(self, rule: GrantedRule) -> bool:
        """Take a rule back; return whether it was there."""
        if rule not in self._rules:
            return False
        del self._rules[rule]
        bound = self._bound[rule.bond]
        del bound[rule]
        if not bound:
            del self._bound[rule.bond]
        return True

    def of(self, bond: _Bond) -> tuple[GrantedRule, ...]:
        """Return the rules that are bound to the same as a call."""
        return tuple(self._bound.get(bond, ()))

    def __iter__(self) -> Iterator[GrantedRule]:
        return iter(tuple(self._rules))

    def __len__(self) -> int:
        return len(self._rules)


def bond_of(call: JudgedCall) -> _Bond:
    """Return what a rule is bound to that is granted for a call."""
    tool, context = call.tool, call.context
    principal = context.on_behalf_of or context.caller
    return _Bond(
        tool.name,
        tool.own_name,
        tool.owner,
        tool.issuer,
        principal.name,
        principal.issuer,
        tool.workdirs,
    )


def granted_for(call: JudgedCall, reaches: str, match: str | None, digest: str) -> GrantedRule:
    """Make the rule that covers a call: by a pattern, by its arguments, or all of its tool."""
    bond = bond_of(call)._asdict()
    return GrantedRule(**bond, reaches=reaches, match=match, arguments=digest)


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Return SHA-256 of plain arguments as canonical JSON: keys are sorted, without spaces."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
