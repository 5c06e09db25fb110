"""What a person is asked about one call, what the person decides, and what is known of that.

Values only; `toolbus.tools.decisions` decides by them.

A policy, or a tool with `approval`, asks. A host lets its server ask who may approve the call, in
the room (PROTOCOL.md, HOLD-1); in the process of an agent its turn asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from toolbus.auth.participant_names import full_name
from toolbus.errors import InvalidArguments, PermissionDenied, RoomException, TooLarge
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import rule_from_plain, rule_to_plain
from toolbus.permissions.rule import Rule
from toolbus.tools.approvers import DEFAULT_APPROVAL_S, approval_milliseconds
from toolbus.wire import MAX_HOLD_BYTES, BadBody, pack_body, unpack_body

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.decision import JudgedCall, PermissionDecision

__all__ = [
    "SCOPES",
    "ApprovalDecision",
    "ApprovalDemand",
    "ApprovalScope",
    "ApprovalState",
    "AsksPerson",
    "Judged",
    "bound_digest",
    "decider_of",
    "decision_of",
]

ApprovalScope: TypeAlias = Literal["once", "state"]
"""For what a decision holds: for this call, or for the state of the agent."""
SCOPES = ("once", "state")


class Judged(NamedTuple):
    """What is decided about one input of a call, and what that rests on."""

    packed: bytes
    """The arguments, packed: nobody changes these."""
    call: JudgedCall
    """The call with these arguments."""
    decision: PermissionDecision
    assessment: Assessment

    @property
    def asks(self) -> tuple[str, Rule | None, str]:
        """What asks: another ask than this one is not answered yet."""
        source = self.decision.source
        return source, self.decision.rule, self.assessment.message if source == "tool" else ""


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
    by: str = ""
    """Who decided, for records and traces: of a room the name of the participant, with the alias of
    its issuer if it has one. A turn takes an approver that names nobody for the agent itself."""
    hold: str = ""
    """The id of the approval in the room; empty for an approver in this process."""

    @classmethod
    def allow(
        cls,
        scope: ApprovalScope = "once",
        rule: Rule | tuple[Rule, ...] | None = None,
        arguments: Mapping[str, Any] | None = None,
        by: str = "",
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
            by: Who decided, for records and traces.

        Raises `ValueError` for an unknown scope, a rule with the scope "once", and an empty tuple.
        """
        if scope not in SCOPES:
            raise ValueError(f'scope must be "once" or "state", not {scope!r}')
        if rule is not None and scope != "state":
            raise ValueError('a rule is granted with scope="state"')
        if rule == ():
            raise ValueError("an empty tuple of rules grants nothing")
        return cls(True, scope, rule, arguments, by=by)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that are granted; none stands for exactly this call."""
        if self.rule is None:
            return ()
        return self.rule if isinstance(self.rule, tuple) else (self.rule,)

    @classmethod
    def deny(cls, reason: str = "", by: str = "") -> Self:
        """Return the decision that the call may not run, with a reason for the model."""
        return cls(False, reason=reason, by=by)


@dataclass(slots=True, eq=False)
class ApprovalState:
    """What is known of one call over its attempts."""

    denial: RoomException | None = None
    """Why it may not run: what was denied once stays denied, whatever a middleware tries."""
    asked: bytes = b""
    """The packed arguments of the first request to a person."""
    allowed: bytes = b""
    """The packed arguments that the person allows: the same, or changed ones."""
    answered: frozenset[Hashable] = frozenset()
    """The asks that are answered for these."""
    answers: tuple[tuple[ApprovalDecision, Judged], ...] = ()
    """What grants something as soon as the call may run."""
    by: str = ""
    """Who has allowed it last."""
    requests: int = 0
    changes: int = 0
    is_withdrawn: bool = False
    """Whether the last request was withdrawn: until one is approved, the server says for this host
    that the function was not entered."""


@dataclass(frozen=True, slots=True)
class ApprovalDemand:
    """That a person has to approve a call before its function is entered."""

    judged: Judged
    """The call, its packed arguments, and why it is asked about."""
    approvers: tuple[str, ...] = ()
    """Who may approve it: `role:x`, `name:y`, "others"; empty for those with the grant."""
    timeout_s: float | None = DEFAULT_APPROVAL_S
    """Seconds that it waits; 0 never waits, None waits without limit."""
    is_entered: bool = False
    """Whether the function was entered before, by an earlier attempt of a middleware."""
    has_input: bool = False
    """Whether the call sends an attachment or values too, which are not shown."""
    has_patterns: bool = True
    """Whether a rule with a pattern may cover calls of the tool, as far as is known."""

    def to_wire(self, definition: str) -> tuple[str, bytes, bytes, dict[str, Any]]:
        """Return kind, digest, body and options of a `Hold` (PROTOCOL.md, HOLD-2 to HOLD-5).

        Raises `TooLarge` if there is more to be shown than fits.
        """
        judged = self.judged
        assessment = judged.assessment
        body: dict[str, Any] = {"arguments": judged.packed, "reason": judged.decision.reason}
        for name in ("message", "preview", "reaches"):
            if text := getattr(assessment, name):
                body[name] = text
        if judged.decision.suggestions:
            body["suggestions"] = [rule_to_plain(rule) for rule in judged.decision.suggestions]
        if self.has_input:
            body["input"] = True
        if not self.has_patterns:
            body["patterns"] = False
        packed = pack_body(body)
        if len(packed) > MAX_HOLD_BYTES:
            text = f"{len(packed)} bytes would have to be shown to a person, at most"
            raise TooLarge(f"{text} {MAX_HOLD_BYTES} can", executed="no")
        options: dict[str, Any] = {"approval_ms": approval_milliseconds(self.timeout_s)}
        if self.approvers:
            options["approvers"] = list(self.approvers)
        if self.is_entered:
            options["entered"] = True
        return "approve", bound_digest(definition, judged.packed), packed, options


AsksPerson: TypeAlias = Callable[[ApprovalDemand], Awaitable[ApprovalDecision]]
"""Asks a person. Raises `PermissionDenied` if nobody can be asked, and `ApprovalExpired`."""


def bound_digest(definition: str, packed: bytes) -> bytes:
    """Return SHA-256 of what an approval is about: the definition's digest, and the arguments."""
    return sha256(definition.encode() + packed).digest()


def decision_of(reply: Mapping[str, Any]) -> ApprovalDecision:
    """Read the decision of a person elsewhere, as the server sends it.

    Raises `InvalidArguments` for changed arguments, and `PermissionDenied` for rules, that cannot
    be read.
    """
    decision = _decision_of(reply)
    return replace(decision, by=decider_of(reply), hold=reply.get("hold", ""))


def decider_of(reply: Mapping[str, Any]) -> str:
    """Return the name of who decided elsewhere, with the alias of its issuer if it has one."""
    by = reply.get("by") or {}
    return full_name(by.get("name", ""), by.get("alias", ""))


def _decision_of(reply: Mapping[str, Any]) -> ApprovalDecision:
    if reply["outcome"] != "approved":
        return ApprovalDecision.deny(reply.get("reason") or "")
    arguments = reply.get("arguments")
    if arguments is not None:
        arguments = _read_arguments(arguments)
    if "rules" not in reply:
        return ApprovalDecision.allow(arguments=arguments)
    try:
        rules = tuple(map(rule_from_plain, unpack_body(reply["rules"])))
    except (BadBody, ValueError, TypeError) as error:
        text = f"the rule of the approval cannot be read: {error}"
        raise PermissionDenied(text, executed="no") from error
    return ApprovalDecision.allow(scope="state", rule=rules or None, arguments=arguments)


def _read_arguments(packed: bytes) -> dict[str, Any]:
    try:
        arguments = unpack_body(packed)
    except BadBody as error:
        text = f"the changed arguments cannot be read: {error.reason}"
        raise InvalidArguments(text, executed="no") from error
    if not isinstance(arguments, dict):
        raise InvalidArguments("the changed arguments are not one object", executed="no")
    return arguments
