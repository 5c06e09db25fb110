"""One rule: what happens to the calls that it covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from toolbus.auth.grants import ToolPatterns
from toolbus.auth.participant_names import reference_fault
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line, shortened

__all__ = ["MAX_MATCH_CHARS", "Rule", "RuleBehavior", "name_fault_in_rules"]

RuleBehavior: TypeAlias = Literal["allow", "ask", "deny"]
"""What a rule does. Deny counts before ask, and ask before allow."""
MAX_MATCH_CHARS = 4_096
"""The longest `match` of a rule; no person can judge a longer pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allows, asks about, or denies the calls that it covers.

    A rule covers a call if all of its parts do. The order of rules means nothing.

    Raises `ValueError` for what is not a behavior, a pattern or a name, and for an empty `match`.
    """

    behavior: RuleBehavior
    """"allow", "ask" or "deny"."""
    tool: str = "*"
    """Which tools: a pattern as in grants, `toolkit.tool` or `toolkit`, with `*`."""
    match: str | None = None
    """Which calls of the tool, in the tool's own pattern language; None covers every call."""
    owner: str | None = None
    """Whose toolkit: a name, or `alias/name`; None covers those of everybody."""
    principal: str | None = None
    """For whom the call is made: a name, or `alias/name`; None is everybody."""
    caller: str | None = None
    """Who makes the call; for the policy of a host. A name, or `alias/name`; None is everybody."""
    origin: str = field(default="", compare=False)
    """Where it was written, `path:line`; empty for one that a program made."""

    def __post_init__(self) -> None:
        if self.behavior not in ("allow", "ask", "deny"):
            raise ValueError(f"behavior must be allow, ask or deny, not {_shown(self.behavior)}")
        ToolPatterns([self.tool])  # raises
        if self.match is not None and not _is_pattern(self.match):
            raise ValueError(
                f"match must be text of 1 to {MAX_MATCH_CHARS} characters, not"
                f" {_shown(self.match)};"
                " a rule without match covers every call of its tool"
            )
        for name in ("owner", "principal", "caller"):
            value = getattr(self, name)
            if value is not None and (fault := name_fault_in_rules(value)) is not None:
                raise ValueError(f"{name} {fault}")

    def __str__(self) -> str:
        """Return the rule in one line for a person: `deny shell.run "rm:*" (rules.toml:4)`."""
        return self.shown(SHOWN_CHARS)

    def shown(self, max_chars: int | None = None) -> str:
        """Return the rule in one line, with the middle of a pattern or path cut out that is longer.

        Args:
            max_chars: How long they may be; None cuts nothing.
        """
        words = [self.behavior, self.tool]
        if self.match is not None:
            words.append(json_text(shortened(one_line(self.match), max_chars)))
        for name in ("owner", "principal", "caller"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={json_text(one_line(value))}")
        if self.origin:
            words.append(f"({shortened(one_line(self.origin), max_chars)})")
        return " ".join(words)


def name_fault_in_rules(value: object) -> str | None:
    """Return why a rule cannot name a participant so, as the rest of a sentence about it.

    A star is a valid name. But who writes it here means everybody, and a denial that covers only a
    participant called `*` would deny nothing.
    """
    if value == "*" or (isinstance(value, str) and value.endswith("/*")):
        return "must be one name: leave it out to mean everybody"
    return reference_fault(value)


def _is_pattern(match: object) -> bool:
    if not isinstance(match, str) or not 0 < len(match) <= MAX_MATCH_CHARS:
        return False
    try:
        match.encode()  # it goes to the host of the tool
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    return one_line(repr(value), 64)
