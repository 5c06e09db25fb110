"""Decides about the calls of one turn: rules and the mode, what the tool says, and a person.

It stands right before a call is dispatched, so that what a middleware or a person has changed is
what is judged. The permissions of a turn bind this turn; the tool's host has a policy of its own.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from toolbus.auth.participant_names import Named
from toolbus.chunks.json_values import packed_json
from toolbus.errors import (
    DefinitionChanged,
    InvalidArguments,
    NotFound,
    PermissionDenied,
    RoomException,
)
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import JudgedCall, JudgedTool, PermissionDecision
from toolbus.permissions.granted_rules import (
    GrantedRule,
    GrantedRules,
    arguments_digest,
    bond_of,
    granted_for,
)
from toolbus.permissions.modes import Mode
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.plain import rule_to_plain
from toolbus.permissions.rule import Rule
from toolbus.permissions.rule_index import People
from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, ApprovalState, Judged
from toolbus.tools.decisions import CallDecision, judge, stricter
from toolbus.tools.middleware import ToolCall
from toolbus.turns.approvals import ApprovalQueue, ApprovalRequest
from toolbus.turns.tool_use import ToolUse
from toolbus.turns.turn_calls import TurnCall, TurnFacts, context_of
from toolbus.untrusted_text import SHOWN_CHARS, printable, shortened
from toolbus.wire import unpack_body

__all__ = ["CallJudge", "TurnPermissions"]

# How a call ends that is refused whatever is decided about it. What else goes wrong when a tool is
# asked leaves open what the call would do.
_OWN_ENDS = (InvalidArguments, NotFound, PermissionDenied, DefinitionChanged)
_MAX_MERGED = 64
"""Combinations of granted rules of which the index is cached."""


class TurnPermissions:
    """What may run in a turn: `turn.permissions`.

    Args:
        permissions: Those that the turn was made with.
        granted: The granted rules of the agent's state.

    Raises `TypeError` for what is not a `Permissions`.
    """

    def __init__(self, permissions: Permissions, granted: GrantedRules) -> None:
        if not isinstance(permissions, Permissions):
            kind = type(permissions).__name__
            raise TypeError(f"permissions must be toolbus.Permissions, not {kind}")
        self._permissions = permissions
        self._granted = granted
        self._merged: dict[tuple[GrantedRule, ...], Permissions] = {}

    @property
    def mode(self) -> Mode:
        """What happens to what no rule decides; setting it counts for the rest of this turn.

        Raises `ValueError` for what is not a mode.
        """
        return self._permissions.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._permissions = replace(self._permissions, mode=mode)
        self._merged.clear()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the turn was made with."""
        return self._permissions.rules

    @property
    def granted(self) -> tuple[GrantedRule, ...]:
        """What was granted in this state, the oldest first; each says for whom it holds.

        Other turns with the same state have the same.
        """
        return tuple(self._granted)

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The working directories, as tools in this process get them."""
        return self._permissions.workdirs

    @property
    def trusted_owners(self) -> tuple[str, ...]:
        """The owners whose word may loosen, and whose descriptions are not quoted."""
        return self._permissions.trusted_owners

    def trusts(self, tool: JudgedTool, agent: Named) -> bool:
        """Whether the owner of a tool is the agent itself, or trusted."""
        return self._permissions.trusts(tool, agent)

    def take_back(self, *rules: GrantedRule) -> None:
        """Take granted rules back: what they covered is asked again. Unknown ones are ignored."""
        for rule in rules:
            self._granted.discard(rule)

    def _grant(self, call: JudgedCall, granted: GrantedRule) -> None:
        """Keep a rule that a person has granted with an answer about a call."""
        self._granted.add(granted)
        if granted.match is None:
            return
        # A tool is asked about so many patterns at once. One beyond them would never match, so that
        # the person would be asked again and again: older ones make room for it.
        for older in self._granted.of(granted.bond):
            now = self._in_force(call, granted.reaches, compares=False)
            if granted.match in now.patterns(call, granted.reaches) or older == granted:
                return
            if older.match is not None:
                self._granted.discard(older)

    def _in_force(self, call: JudgedCall, reaches: str, *, compares: bool) -> Permissions:
        """Return the permissions with the granted rules that concern a call.

        Args:
            call: The call.
            reaches: The tool that it reaches, if its tool only forwards.
            compares: Whether rules for exactly its arguments count.
        """
        bound = self._granted.of(bond_of(call)) if self._granted else ()
        if not bound:
            return self._permissions
        digest = ""
        if compares and any(granted.arguments for granted in bound):
            digest = arguments_digest(call.arguments)
        covering = tuple(
            granted
            for granted in bound
            if granted.reaches == reaches and granted.arguments in ("", digest)
        )
        if not covering:
            return self._permissions
        merged = self._merged.get(covering)
        if merged is None:
            if len(self._merged) >= _MAX_MERGED:
                self._merged.clear()
            rules = [rule for granted in covering for rule in granted.rules()]
            merged = self._merged[covering] = self._permissions.with_rules(rules)
        return merged


class TurnDecision(CallDecision):
    """The decision of a turn about an attempt of one of its calls."""

    def __init__(self, judge: CallJudge, call: TurnCall) -> None:
        if call.approval_state is None:
            call.approval_state = ApprovalState()
        self.state: ApprovalState = call.approval_state
        self._call = call
        self._permissions = judge.permissions
        self._approvals = judge.approvals
        self._facts = judge.facts

    def call_with(self, packed: bytes) -> ToolCall:
        call = self._call
        context = context_of(call, self._facts)
        return ToolCall(call.entry.info, unpack_body(packed), context, call.id)

    async def judge(self, call: ToolCall) -> tuple[PermissionDecision, Assessment]:
        compares = not self._call.options.has_input
        in_force = partial(self._permissions._in_force, call, compares=compares)
        decision, assessment = await judge(in_force, call, partial(self._ask_tool, call))
        via = self._call.via
        if via is not None:
            # Rules that deny or ask about the tool that named this one hold too; none that allows.
            through = replace(call, tool=via)
            orders = in_force("").decide(through, Assessment("pass", read_only=True))
            decision = stricter(decision, orders)
        return decision, assessment

    async def _ask_tool(self, call: ToolCall, patterns: tuple[str, ...]) -> Assessment:
        dispatch, arguments = self._call.entry.dispatch, unpack_body(self.arguments)
        try:
            assessment = await dispatch.assess(call.context, arguments, patterns)
        except _OWN_ENDS as error:
            error.executed = "no"
            raise
        except RoomException as error:
            return _unknown(error.message)
        except (Exception, SystemExit) as error:  # of a toolkit that has its own `assess`
            return _unknown(type(error).__name__)
        if not isinstance(assessment, Assessment):
            return _unknown(f"its toolkit returned {type(assessment).__name__}")
        return assessment

    def queue(self) -> AbstractAsyncContextManager[bool]:
        return self._approvals.queue(self._call)

    async def ask(self, judged: Judged) -> ApprovalDecision:
        call, tool = self._call, self._call.entry.info
        request = ApprovalRequest(
            use=call.use or ToolUse(call.id, tool.name, unpack_body(judged.packed)),
            tool=tool,
            arguments=unpack_body(judged.packed),
            decision=judged.decision,
            assessment=judged.assessment,
            purpose=call.options.purpose or "",
        )
        return await self._approvals.ask(call, request)

    def grant(self, answer: ApprovalDecision, judged: Judged) -> None:
        call, reaches = judged.call, judged.assessment.reaches
        if answer.rule is None and self._call.options.has_input:
            return  # arguments do not say what else it sends
        with suppress(ValueError):  # the tool says that it reaches what is not the name of a tool
            granted = [granted_for(call, reaches, rule.match, "") for rule in answer.rules]
            if answer.rule is None:
                granted = [granted_for(call, reaches, None, arguments_digest(call.arguments))]
            for rule in granted:
                self._permissions._grant(call, rule)

    def note_denial(self, by: str) -> None:
        self.note()
        if self._call.recording is not None:
            self._call.recording.decide("denied", by)

    def note(self) -> None:
        """Let the trace and the record of a call show what was decided, and what it reaches."""
        call, judged = self._call, self.judged
        assert judged is not None
        decision, reaches = judged.decision, judged.assessment.reaches
        if call.span is not None:
            call.span.set_decision(decision.behavior, decision.by)
        # An owner that is not trusted could hide calls by saying that they reach something else.
        if call.recording is not None and reaches:
            if People(judged.call).trusts_owner(frozenset(self._permissions.trusted_owners)):
                call.recording.reach(reaches)
                call.recording.arguments = None  # those of the reached tool are not known here

    def show_change(self) -> None:
        """Let the result of a use show the arguments that a person has changed."""
        # 1, 1.0 and true are equal, and are not the same arguments.
        changed = unpack_body(self.arguments)
        asked = unpack_body(packed_json("arguments", self._call.arguments))
        is_same = arguments_digest(changed) == arguments_digest(asked)
        self._call.sent = None if is_same else changed

    def details(self, decision: PermissionDecision) -> dict[str, Any]:
        details = super().details(decision)
        if decision.suggestions:
            details["suggestions"] = [rule_to_plain(rule) for rule in decision.suggestions]
        return details


class CallJudge:
    """Lets the calls of one turn through, or denies them."""

    def __init__(
        self, permissions: TurnPermissions, approvals: ApprovalQueue, facts: TurnFacts
    ) -> None:
        self.permissions: TurnPermissions = permissions
        self.approvals: ApprovalQueue = approvals
        self.facts: TurnFacts = facts

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The working directories, as tools in this process get them."""
        return self.permissions.workdirs

    async def permitted(self, call: TurnCall, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments to run a call with, as soon as it may run.

        Raises as `CallDecision.decide`, and `DeadlineExceeded` if the time of the call is over,
        without that of the person.
        """
        decision = TurnDecision(self, call)
        clock, deadline_at = call.begin_clock()
        packed = packed_json("arguments", arguments)
        try:
            async with clock.timeout_at(deadline_at) as limit:
                judged = await decision.decide(packed)
        except TimeoutError:
            if not limit.expired():
                raise
            raise call.late() from None
        finally:
            if decision.arguments != packed:
                decision.show_change()
        if clock.time() >= deadline_at:
            raise call.late()
        decision.note()
        if call.recording is not None:
            is_asked = judged.decision.behavior == "ask"
            call.recording.decide("allowed", "person" if is_asked else judged.decision.by)
        allowed: dict[str, Any] = unpack_body(judged.packed)
        return allowed

    async def ask_for_host(self, call: TurnCall, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask a person about a call for the policy of a toolkit in this process.

        What a person has just allowed for this turn, with these arguments, is not asked again.
        """
        state, judged = call.approval_state, demand.judged
        if state is not None and state.requests and state.allowed == judged.packed:
            return ApprovalDecision.allow()
        return await TurnDecision(self, call).ask(judged)


def _unknown(why: str) -> Assessment:
    """Return the assessment of a tool that could not be asked."""
    message = shortened(printable(f"there is no answer about this call: {why}"), SHOWN_CHARS)
    return Assessment("ask", immune=True, message=message, source="manifest")
