"""The decision about one call: a `PermissionDecision`, and the facts of the call that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from toolbus.auth.participant_names import Named
from toolbus.permissions.rule import Rule, RuleBehavior

__all__ = ["DecisionSource", "JudgedCall", "JudgedContext", "JudgedTool", "PermissionDecision"]

DecisionSource: TypeAlias = Literal["rule", "mode", "tool", "person", "policy", "host"]
"""What decided: a rule, the mode, what the tool said, a person, or the policy of the host; or that
the host of the tool asks a person, so that the caller need not."""


class JudgedTool(Protocol):
    """The facts of a tool that decide, as a `ToolInfo` has them."""

    @property
    def name(self) -> str:
        """`toolkit.tool`, as the caller names it."""

    @property
    def own_name(self) -> str:
        """`toolkit.tool` by the toolkit's own name, which differs where it has an alias."""

    @property
    def owner(self) -> str:
        """The name of the identity that registered its toolkit; empty for one of this process."""

    @property
    def issuer(self) -> str:
        """The issuer of that identity."""

    @property
    def alias(self) -> str:
        """The alias of that issuer, where the server has several."""

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The folders that the tool works in; usually none."""


class JudgedContext(Protocol):
    """Who calls, and for whom, as a `ToolContext` has it."""

    @property
    def caller(self) -> Named:
        """Who makes the call."""

    @property
    def on_behalf_of(self) -> Named | None:
        """The principal, or None."""

    @property
    def forwarded_for(self) -> Sequence[Named]:
        """Those that the caller forwarded the call for, the nearest first."""

    @property
    def is_hosted(self) -> bool:
        """Whether the call came over a room: then the permissions are not the caller's."""


class JudgedCall(Protocol):
    """The facts of a call that decide, as a `ToolCall` has them."""

    @property
    def tool(self) -> JudgedTool:
        """The called tool."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Values by parameter."""

    @property
    def context(self) -> JudgedContext:
        """Who calls, and for whom."""


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """What was decided about a call, and what decided it."""

    behavior: RuleBehavior
    reason: str
    """What decided, in words for a person: the rule with file and line, the mode, the tool."""
    rule: Rule | None = None
    """The rule, where one decided."""
    source: DecisionSource = "mode"
    """What decided: see `DecisionSource`."""
    suggestions: tuple[Rule, ...] = ()
    """Rules that would have allowed it, or parts of it, with an ask, and with a denial in place of
    an ask."""
    mode: str = ""
    """The mode in which it was decided; empty where a person decided."""
    uncertain: bool = False
    """Whether the rule only may cover the call, because the tool could not judge this input."""
    hint: str = ""
    """How the tool says that the call may be changed, so that the rule may not cover it."""

    @property
    def by(self) -> str:
        """What decided, in a few words for a record, such as `mode bypass` or `rule deny shell`."""
        if self.rule is not None:
            return f"rule {self.rule}"
        return f"mode {self.mode}" if self.source == "mode" else self.source
