"""Decides about the calls of one turn: rules and the mode, what the tool says, and a person.

It stands right before a call is dispatched, so that what a middleware or a person has changed is
what is judged. The permissions of a turn bind this turn; the tool's host has a policy of its own.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
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
from toolbus.permissions.granted_permissions import GrantedPermissions
from toolbus.permissions.granted_rules import GrantedRule, GrantedRules, arguments_digest
from toolbus.permissions.modes import Mode
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.plain import rule_to_plain
from toolbus.permissions.rule import Rule
from toolbus.permissions.rule_index import People
from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, ApprovalState, Judged
from toolbus.tools.decisions import CallDecision, judge, stricter
from toolbus.tools.middleware import ToolCall
from toolbus.tools.observed_hold import ObservedHold
from toolbus.turns.approvals import ApprovalQueue, ApprovalRequest
from toolbus.turns.tool_use import ToolUse
from toolbus.turns.turn_calls import TurnCall, TurnFacts, context_of
from toolbus.untrusted_text import SHOWN_CHARS, json_text, printable, shortened
from toolbus.wire import unpack_body

__all__ = ["CallJudge", "TurnPermissions"]

# How a call ends that is refused whatever is decided about it. What else goes wrong when a tool is
# asked leaves open what the call would do.
_OWN_ENDS = (InvalidArguments, NotFound, PermissionDenied, DefinitionChanged)


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
        self.grants: GrantedPermissions = GrantedPermissions(granted)
        """What was granted, as it joins these permissions and the policies of toolkits here."""

    @property
    def mode(self) -> Mode:
        """What happens to what no rule decides; setting it counts for the rest of this turn.

        Raises `ValueError` for what is not a mode.
        """
        return self._permissions.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._permissions = replace(self._permissions, mode=mode)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the turn was made with."""
        return self._permissions.rules

    @property
    def granted(self) -> tuple[GrantedRule, ...]:
        """What was granted in this state, the oldest first; each says for whom it holds.

        Other turns with the same state have the same.
        """
        return tuple(self.grants.rules)

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

    def in_force(self, call: JudgedCall, reaches: str, *, has_input: bool) -> Permissions:
        """Return the permissions with the granted rules that concern a call.

        Args:
            call: The call.
            reaches: The tool that it reaches, if its tool only forwards.
            has_input: Whether it sends more than its arguments.
        """
        return self.grants.joined(self._permissions, call, reaches, has_input=has_input)

    def take_back(self, *rules: GrantedRule) -> None:
        """Take granted rules back: what they covered is asked again. Unknown ones are ignored."""
        for rule in rules:
            self.grants.rules.discard(rule)


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
        in_force = partial(self._permissions.in_force, call, has_input=self._call.options.has_input)
        decision, assessment = await judge(in_force, call, partial(self._ask_tool, call))
        via = self._call.via
        if via is not None:
            # Rules that deny or ask about the tool that named this one hold too; none that allows.
            through = replace(call, tool=via)
            orders = in_force("").decide(through, Assessment("pass", read_only=True))
            decision = stricter(decision, orders)
        if decision.behavior == "ask" and assessment.asks and self._trusts_host(call):
            # Else a person would be asked about it twice.
            quoted = json_text(shortened(assessment.asks, SHOWN_CHARS))
            text = f"The host of {call.tool.name} asks a person before it runs: {quoted}"
            decision = PermissionDecision("allow", text, source="host")
        return decision, assessment

    def _trusts_host(self, call: ToolCall) -> bool:
        """Whether a tool runs elsewhere, at an owner that is trusted: others may say anything."""
        return bool(call.tool.owner) and self._trusts(call)

    def _trusts(self, call: JudgedCall) -> bool:
        trusted = frozenset(self._permissions.trusted_owners)
        return People(call).trusts_owner(trusted)

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
        call = self._call
        recorder = None if call.span is None else call.span.recorder
        with ObservedHold(call.recording, recorder) as observed:
            decision = await self._ask_approver(call, judged)
            if isinstance(decision, ApprovalDecision) and not decision.by:
                decision = replace(decision, by=self._facts.agent.full_name)
            observed.settle(decision)
        return decision

    async def _ask_approver(self, call: TurnCall, judged: Judged) -> ApprovalDecision:
        if self._approvals.is_in_room:
            room = self._facts.view(None)
            assert room is not None, "as the options were checked"
            return await self._approvals.ask_in_room(room, call, judged)
        tool = call.entry.info
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
        permissions, reaches = self._permissions, judged.assessment.reaches
        permissions.grants.grant(
            judged.call,
            reaches,
            answer.rules,
            (permissions._permissions,),
            has_input=self._call.options.has_input,
        )

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
            if self._trusts(judged.call):
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

    @property
    def grants(self) -> GrantedPermissions:
        """What was granted in the state of the turn; it counts for policies of toolkits here."""
        return self.permissions.grants

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
            return ApprovalDecision.allow(by=state.by)
        return await TurnDecision(self, call).ask(judged)


def _unknown(why: str) -> Assessment:
    """Return the assessment of a tool that could not be asked."""
    message = shortened(printable(f"there is no answer about this call: {why}"), SHOWN_CHARS)
    return Assessment("ask", immune=True, message=message, source="manifest")
