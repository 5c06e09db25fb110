"""What a turn asks a person about one call, and what the person decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import PermissionDecision
from toolbus.permissions.rule import Rule
from toolbus.public_names import missing
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.tool_use import ToolUse

__all__ = [
    "ApprovalDecision",
    "ApprovalRequest",
    "ApprovalScope",
    "Approver",
]

ApprovalScope: TypeAlias = Literal["once", "state"]
"""For what a decision holds: for this call, or for the state of the agent."""
_SCOPES = ("once", "state")


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits until a person has decided about it."""

    use: ToolUse
    """What the model asks for. A call of a program has one too, with the id of the call."""
    tool: ToolInfo
    """The called tool."""
    arguments: Mapping[str, Any]
    """The values by parameter with which it would run: a copy, after all middlewares."""
    decision: PermissionDecision
    """Why a person is asked; `decision.suggestions` are rules that would have allowed it, or parts
    of it."""
    assessment: Assessment
    """What the tool says about this input. `reaches` names the tool that the call would reach, if
    it only forwards. `message`, `preview` and suggestions are words of the tool's owner."""

    if not TYPE_CHECKING:  # for checkers it has no such attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What a person decided: made by `ApprovalDecision.allow` or `ApprovalDecision.deny`."""

    is_allowed: bool
    """Whether the call may run."""
    scope: ApprovalScope = "once"
    """Whether it holds for this call or for the state of the agent."""
    rule: Rule | tuple[Rule, ...] | None = None
    """What is granted with the scope "state": a rule, or several for the parts of one input; None
    stands for exactly this call."""
    arguments: Mapping[str, Any] | None = None
    """The arguments to run it with in place of those asked about."""
    reason: str = ""
    """Why not, in the words of the person; a model reads it."""

    @classmethod
    def allow(
        cls,
        scope: ApprovalScope = "once",
        rule: Rule | tuple[Rule, ...] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the decision that the call may run.

        Args:
            scope: "once" is for this call. "state" is for all calls of this principal with the
                same `AgentState`: those that `rule` covers, or, without a rule, those of this tool
                with exactly these arguments; of a tool that works in folders (`tool.workdirs`) in
                the same folders alone.
            rule: One of `ApprovalRequest.decision.suggestions`, all of them, or another allow rule
                of this tool alone. An input of several parts needs a rule for each, to be allowed
                later.
            arguments: Changed arguments. They are validated and judged before the call runs.

        Raises `ValueError` for an unknown scope, a rule with the scope "once", and an empty tuple.
        """
        if scope not in _SCOPES:
            raise ValueError(f'scope must be "once" or "state", not {scope!r}')
        if rule is not None and scope != "state":
            raise ValueError('a rule is granted with scope="state"')
        if rule == ():
            raise ValueError("an empty tuple of rules grants nothing")
        return cls(True, scope, rule, arguments)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that are granted; none stands for exactly this call."""
        if self.rule is None:
            return ()
        return self.rule if isinstance(self.rule, tuple) else (self.rule,)

    @classmethod
    def deny(cls, reason: str = "") -> Self:
        """Return the decision that the call may not run, with a reason for the model."""
        return cls(False, reason=reason)


Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[ApprovalDecision]]
"""Asks a person. It is cancelled when the time for an answer or the turn has ended."""
