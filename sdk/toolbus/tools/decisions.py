"""The decision about one call, read from the top: from its first judgement until it may run or not.

It stands right before a call runs, so that what a middleware or a person has changed is what is
judged. A turn decides so about the calls that it makes, and the policy of a toolkit about those
that arrive; what differs between them stands first in `CallDecision`.

1. `judge`: a denial that no assessment can change ends the call, and nothing is asked. Else the
   tool is asked about this very input, and rules and mode decide: allow, deny or ask.
2. A person is asked: by a turn one call at a time, by a host whoever may approve it in its room.
3. What the answer allows is judged as in 1, with the arguments that it gives, so that nothing runs
   that was not judged; perhaps a person is asked once more.
4. What the answers grant beyond this call is granted, and the call runs with what was judged last.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from toolbus.chunks.json_values import packed_json
from toolbus.errors import (
    ApprovalDenied,
    ApprovalExpired,
    InvalidArguments,
    PermissionDenied,
)
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import decision_details
from toolbus.permissions.rule import Rule
from toolbus.tools.approvals import SCOPES, ApprovalDecision, ApprovalState, Judged
from toolbus.tools.middleware import ToolCall
from toolbus.untrusted_text import json_text, printable
from toolbus.wire.frames import MAX_REASON_CHARS

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.decision import JudgedCall, PermissionDecision
    from toolbus.permissions.permissions import Permissions

__all__ = [
    "AskTool",
    "CallDecision",
    "InForce",
    "judge",
    "of_same_reach",
    "stricter",
]

AskTool: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Assessment]]
"""Asks the tool of a call about its input, and about patterns of rules."""
InForce: TypeAlias = "Callable[[str], Permissions]"
"""Returns the permissions that are in force now, by the tool that a call reaches; "" where its tool
does not forward, or it is not known yet."""
# A person decides about one input; after so many requests what is still asked counts as answered.
_MAX_REQUESTS = 2


class CallDecision:
    """The decision about one attempt of a call. A turn and a host have a subclass each."""

    state: ApprovalState
    """What is known of the call."""
    judged: Judged | None = None
    """What was decided last."""
    arguments: bytes
    """The packed arguments of the attempt, or what a person has made of them."""

    # What differs between a turn and a host

    @abstractmethod
    def call_with(self, packed: bytes) -> ToolCall:
        """Return the call with these arguments: a copy, since all who get it may keep it."""

    @abstractmethod
    async def judge(self, call: ToolCall) -> tuple[PermissionDecision, Assessment]:
        """Decide about the call by rules and mode, and by what its tool says; see `judge`.

        Raises what the tool refuses the call with.
        """

    def asks(self, judged: Judged) -> Hashable:
        """Return what asks a person, and what the person is shown: the same is asked once."""
        return judged.asks

    def asks_again(self, judged: Judged) -> bool:
        """Whether a person who answered twice is asked once more. May raise `ApprovalDenied`."""
        return False

    def queue(self) -> AbstractAsyncContextManager[bool]:
        """Hold the right to ask a person; gives whether the call waited for it."""
        return nullcontext(False)

    @abstractmethod
    async def ask(self, judged: Judged) -> ApprovalDecision:
        """Ask a person. Raises `PermissionDenied` without one, and `ApprovalExpired`."""

    def grant(self, answer: ApprovalDecision, judged: Judged) -> None:
        """Grant what an answer allows beyond this call."""

    @abstractmethod
    def note_denial(self, by: str) -> None:
        """Let the record of the call show that it is denied as things are, and by what."""

    def details(self, decision: PermissionDecision) -> dict[str, Any]:
        """Return the details of the error of a denied call."""
        return decision_details(decision)

    # What is the same

    async def decide(self, packed: bytes) -> Judged:
        """Return what may run of an attempt with these arguments, as soon as it may.

        Raises:
            PermissionDenied: A rule, the mode or the tool denies it, or nobody can be asked.
            ApprovalDenied: A person denies it.
            ApprovalExpired: No person has answered in time.
            InvalidArguments: The arguments are invalid.
        """
        state = self.state
        self.arguments = state.allowed if packed == state.asked else packed
        if state.denial is not None:
            raise state.denial
        try:
            judged = await self._judge()
            if not self._needs_person(judged):
                return judged
            async with self.queue() as waited:
                if waited:  # the answer before may cover this call too; a file may have changed
                    judged = await self._judge()
                while self._needs_person(judged):
                    judged = await self._ask(judged)
                for answer, of in state.answers:
                    self.grant(answer, of)
                state.answers = ()
            return judged
        except (PermissionDenied, ApprovalDenied, ApprovalExpired) as error:
            state.denial = error
            raise

    def _needs_person(self, judged: Judged) -> bool:
        """Whether a person has to be asked. Raises `PermissionDenied` for what is denied."""
        decision = judged.decision
        if decision.behavior == "deny":
            self.note_denial(decision.by)
            raise PermissionDenied(decision.reason, executed="no", details=self.details(decision))
        if decision.behavior == "allow":
            return False
        state = self.state
        if judged.packed != state.allowed:
            return True
        if self.asks(judged) in state.answered:
            return False
        return state.requests < _MAX_REQUESTS or self.asks_again(judged)

    async def _ask(self, judged: Judged) -> Judged:
        """Ask a person, and judge what the answer allows."""
        decision = judged.decision
        self.note_denial("approval")  # for a call that ends before an answer comes
        try:
            answer = await self.ask(judged)
            _check(answer, judged)
        except (PermissionDenied, ApprovalExpired) as error:
            if isinstance(error, PermissionDenied):
                self.note_denial(decision.by)
            error.details |= self.details(decision)
            raise
        if not answer.is_allowed:
            self.note_denial("person")
            reason = printable(answer.reason, MAX_REASON_CHARS)
            quote = f", and says: {json_text(reason)}" if reason else ""
            details = self.details(decision) | {"source": "person"}
            text = f"a person denied this call{quote}"
            raise ApprovalDenied(text, executed="no", details=details)
        is_changed = self._take_changes(judged, answer)
        state = self.state
        if judged.packed != state.allowed:  # the first request about these arguments
            state.asked = judged.packed
            state.answered = frozenset()
            state.answers = ()
            state.requests = 0
        state.allowed, state.by = self.arguments, answer.by
        state.answered |= {self.asks(judged)}
        state.requests += 1
        try:
            judged_again = await self._judge()
        except InvalidArguments as error:
            if is_changed:
                error.message = f"a person has changed the arguments: {error.message}"
            raise
        if answer.scope == "state":
            try:
                _check(answer, judged_again)
            except PermissionDenied:
                self.note_denial(decision.by)
                raise
            state.answers += ((answer, judged_again),)
        return judged_again

    def _take_changes(self, judged: Judged, answer: ApprovalDecision) -> bool:
        """Take the arguments of an answer; return whether they are others."""
        if answer.arguments is None:
            return False
        try:
            changed = dict(answer.arguments)
        except Exception as error:
            text = f"the changed arguments cannot be read: {type(error).__name__}"
            raise InvalidArguments(text, executed="no") from error
        self.arguments = packed_json("the changed arguments", changed)
        if self.arguments == judged.packed:
            return False
        self.state.changes += 1
        if self.state.changes > 1:
            self.note_denial("person")
            text = "the person has changed the arguments of this call a second time"
            raise PermissionDenied(text, executed="no", details=self.details(judged.decision))
        return True

    async def _judge(self) -> Judged:
        """Decide about the arguments as they are now, and what the tool says about them."""
        packed = self.arguments
        call = self.call_with(packed)
        decision, assessment = await self.judge(call)
        self.judged = Judged(packed, call, decision, assessment)
        return self.judged


def _check(decision: Any, judged: Judged) -> None:
    """Raise `PermissionDenied` for what is not a decision of a person, or grants other calls."""
    if not isinstance(decision, ApprovalDecision):
        raise _mistake(f"it returned {type(decision).__name__} in place of an ApprovalDecision")
    if not isinstance(decision.is_allowed, bool) or not isinstance(decision.reason, str):
        raise _mistake("its ApprovalDecision was made by neither ApprovalDecision.allow nor .deny")
    if decision.scope not in SCOPES:
        raise _mistake("the scope of its ApprovalDecision is neither once nor state")
    if not isinstance(decision.arguments, Mapping | None):
        raise _mistake("the arguments of its ApprovalDecision are not one mapping")
    if decision.rule == ():
        raise _mistake("its ApprovalDecision grants an empty tuple of rules")
    for rule in decision.rules:
        _check_rule(rule, judged.call, judged.assessment.reaches)


def _check_rule(rule: Any, call: JudgedCall, reaches: str) -> None:
    """Raise `PermissionDenied` for a rule that is beyond the call that was asked about."""
    if not isinstance(rule, Rule):
        raise _mistake(f"the rule of its ApprovalDecision is {type(rule).__name__}")
    from toolbus.permissions.permissions import Permissions

    target = reaches or call.tool.name
    if rule.behavior != "allow" or rule.tool != target:
        raise _mistake(f"it granted the rule {rule}, which is not an allow rule of {target} alone")
    # The engine itself says whether owner, principal and caller of the rule are those of the call.
    rules = [replace(rule, match=None), Rule(behavior="allow", tool=call.tool.name)]
    only = Permissions("dont_ask", rules if reaches else rules[:1])
    if only.decide(call, Assessment("pass", reaches=reaches)).behavior != "allow":
        raise _mistake(f"it granted the rule {rule}, which does not cover this call")


def _mistake(what: str) -> PermissionDenied:
    text = f"the approver made a mistake: {what}"
    return PermissionDenied(text, executed="no", details={"cause": "ApprovalDecision"})


def stricter(first: PermissionDecision, second: PermissionDecision) -> PermissionDecision:
    """Return the stricter one of two decisions, the first of equals."""
    order = ("allow", "ask", "deny")
    return max(first, second, key=lambda decision: order.index(decision.behavior))


async def judge(
    in_force: InForce, call: JudgedCall, ask: AskTool
) -> tuple[PermissionDecision, Assessment]:
    """Ask the tool of a call as often as the rules need it, and decide.

    Args:
        in_force: Returns the permissions; others may be in force after each question.
        call: The call.
        ask: Asks its tool. What it raises is raised.

    Returns the decision, and the tool's assessment; "pass" where it was not asked.
    """
    settled = in_force("").settles(call)
    if settled is not None:
        return settled, Assessment("pass")
    asked = in_force("").patterns(call)
    assessment = await ask(asked)
    if assessment.reaches:
        # Only now it is known which tool the call reaches, and so which rules concern it.
        further = in_force(assessment.reaches).patterns(call, assessment.reaches)
        if not set(further) <= set(asked):
            assessment = of_same_reach(await ask(further), assessment)
    return in_force(assessment.reaches).decide(call, assessment), assessment


def of_same_reach(assessment: Assessment, former: Assessment | None) -> Assessment:
    """Return an assessment with the tool that the call reaches by the former one.

    Else the rules about one of the two would be passed by.
    """
    if former is None or not former.reaches or assessment.reaches == former.reaches:
        return assessment
    if assessment.source == "manifest" and not assessment.reaches:
        # This time it could not be asked.
        return replace(assessment, reaches=former.reaches)
    message = "it gave two answers about what this call reaches"
    return Assessment("deny", message=message, reaches=former.reaches)
