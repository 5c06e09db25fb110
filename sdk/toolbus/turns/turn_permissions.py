"""Decides about the calls of one turn: rules and the mode, what the tool says, and a person.

It stands right before a call is dispatched, so that what a middleware or a person has changed is
what is judged. The permissions of a turn bind this turn; the tool's host has a policy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Never

from toolbus.auth.participant_names import Named
from toolbus.chunks.json_values import packed_json
from toolbus.errors import (
    ApprovalDenied,
    ApprovalExpired,
    DefinitionChanged,
    InvalidArguments,
    NotFound,
    PermissionDenied,
    RoomException,
)
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import JudgedTool, PermissionDecision
from toolbus.permissions.modes import Mode
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.plain import decision_details, rule_to_plain
from toolbus.permissions.rule import Rule
from toolbus.permissions.rule_index import People
from toolbus.permissions.tool_inquiry import judge
from toolbus.tools.middleware import ToolCall
from toolbus.turns.approval_queue import ApprovalQueue, checked_decision, checked_rules
from toolbus.turns.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalRequest,
    ApprovalState,
)
from toolbus.turns.granted_rules import GrantedRule, GrantedRules, arguments_digest, bond_of
from toolbus.turns.tool_use import ToolUse
from toolbus.turns.turn_calls import TurnCall, TurnFacts, context_of
from toolbus.untrusted_text import json_text, printable, shortened
from toolbus.wire import unpack_body

__all__ = ["CallJudge", "TurnPermissions"]

# How a call ends that is refused whatever is decided about it. What else goes wrong when a tool is
# asked leaves open what the call would do.
_OWN_ENDS = (InvalidArguments, NotFound, PermissionDenied, DefinitionChanged)
# A person decides about one input; after so many requests what is still asked counts as answered.
_MAX_REQUESTS = 2
_MAX_MERGED = 64
"""Combinations of granted rules of which the index is cached."""
_MAX_REASON_CHARS = 2_000
_MAX_WHY_CHARS = 500


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

    def _grant(self, call: ToolCall, granted: GrantedRule) -> None:
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

    def _in_force(self, call: ToolCall, reaches: str, *, compares: bool) -> Permissions:
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


class _JudgedInput:
    """A decision about one input, and what it rests on."""

    __slots__ = ("assessment", "call", "decision", "packed")

    def __init__(
        self, packed: bytes, call: ToolCall, decision: PermissionDecision, assessment: Assessment
    ) -> None:
        self.packed = packed
        """The arguments, packed: nobody changes these."""
        self.call = call
        self.decision = decision
        self.assessment = assessment

    @property
    def asks(self) -> tuple[str, Rule | None, str]:
        """What asks: another ask than this one was not answered yet."""
        decision = self.decision
        message = self.assessment.message if decision.source == "tool" else ""
        return decision.source, decision.rule, message


class CallJudge:
    """Lets the calls of one turn through, or denies them.

    Args:
        permissions: What is in force.
        approvals: Asks a person; one request is open at a time.
        facts: Who calls.
    """

    def __init__(
        self, permissions: TurnPermissions, approvals: ApprovalQueue, facts: TurnFacts
    ) -> None:
        self._permissions = permissions
        self._approvals = approvals
        self._facts = facts

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The working directories, as tools in this process get them."""
        return self._permissions.workdirs

    async def permitted(self, call: TurnCall, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments to run a call with, as soon as it may run.

        A use that was denied once stays denied, whatever a middleware tries.

        Raises:
            PermissionDenied: A rule, the mode or the tool denies it, or nobody can be asked.
            ApprovalDenied: A person denies it.
            ApprovalExpired: No person has answered in time.
            InvalidArguments: The arguments are invalid.
            DeadlineExceeded: The time of the call is over, without that of the person.
        """
        state = call.approval_state
        if state is None:
            state = call.approval_state = ApprovalState()
        if state.denial is not None:
            raise state.denial
        clock, deadline_at = call.begin_clock()
        packed = packed_json("arguments", arguments)
        try:
            async with clock.timeout_at(deadline_at) as limit:
                judged = await self._judged_use(call, state, packed)
        except TimeoutError:
            if not limit.expired():
                raise
            raise call.late() from None
        except RoomException as error:
            if isinstance(error, PermissionDenied | ApprovalDenied | ApprovalExpired):
                state.denial = error
            raise
        if clock.time() >= deadline_at:
            raise call.late()
        return self._let_through(call, state, judged, packed)

    async def _judged_use(
        self, call: TurnCall, state: ApprovalState, packed: bytes
    ) -> _JudgedInput:
        """Judge an attempt of a use; ask about it until it is allowed."""
        approval = state.approval
        if approval is not None and approval.asked == packed:
            packed = approval.packed
        judged = await self._judge(call, packed)
        if not self._needs_person(call, state, judged):
            return judged
        async with self._approvals.queue(call) as waited:
            if waited:  # the answer before may cover this use too, and a file may have changed
                judged = await self._judge(call, packed)
            while self._needs_person(call, state, judged):
                judged = await self._ask(call, state, judged)
            if state.approval is not None:
                while state.approval.granted:
                    self._permissions._grant(judged.call, state.approval.granted.pop(0))
        return judged

    async def _judge(self, call: TurnCall, packed: bytes) -> _JudgedInput:
        """Decide about a call with these arguments, and what its tool says about them."""
        entry, options = call.entry, call.options
        # A fresh copy, since all who get it may keep it.
        tool_call = ToolCall(
            entry.info, unpack_body(packed), context_of(call, self._facts), call.id
        )
        in_force = partial(self._permissions._in_force, tool_call, compares=not options.has_input)
        ask = partial(self._assess, call, tool_call, packed)
        decision, assessment = await judge(in_force, tool_call, ask)
        if call.via is not None and decision.behavior != "deny":
            # Rules that deny or ask about the tool that named this one hold too; none that allows.
            through = ToolCall(call.via, unpack_body(packed), tool_call.context, call.id)
            orders = in_force("").decide(through, Assessment("pass", read_only=True))
            if orders.behavior == "deny" or (orders.behavior, decision.behavior) == (
                "ask",
                "allow",
            ):
                decision = orders
        return _JudgedInput(packed, tool_call, decision, assessment)

    async def _assess(
        self, call: TurnCall, tool_call: ToolCall, packed: bytes, patterns: tuple[str, ...]
    ) -> Assessment:
        dispatch = call.entry.dispatch
        try:
            assessment = await dispatch.assess(tool_call.context, unpack_body(packed), patterns)
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

    def _needs_person(self, call: TurnCall, state: ApprovalState, judged: _JudgedInput) -> bool:
        """Whether a person has to be asked. Raises `PermissionDenied` for what is denied."""
        decision = judged.decision
        if decision.behavior == "deny":
            self._note(call, judged)
            error = PermissionDenied(decision.reason, executed="no", details=_details(decision))
            self._deny(call, error, decision.by)
        return decision.behavior == "ask" and not _is_approved(state, judged)

    async def _ask(
        self, call: TurnCall, state: ApprovalState, judged: _JudgedInput
    ) -> _JudgedInput:
        """Ask a person, and judge again what the answer allows."""
        self._note(call, judged)
        if call.recording is not None:  # the record of a call that ends before an answer comes
            call.recording.decide("denied", "approval")
        decision, tool = judged.decision, call.entry.info
        request = ApprovalRequest(
            use=call.use or ToolUse(call.id, tool.name, unpack_body(judged.packed)),
            tool=tool,
            arguments=unpack_body(judged.packed),
            decision=decision,
            assessment=judged.assessment,
        )
        try:
            answer = await self._approvals.ask(call, request)
            checked_decision(answer, judged.call, judged.assessment.reaches)
        except ApprovalExpired as error:
            error.details |= _details(decision)
            self._deny(call, error, "approval")
        except PermissionDenied as error:
            error.details |= _details(decision)
            self._deny(call, error, decision.by)
        if not answer.is_allowed:
            self._deny(call, _denied_by_person(answer, decision), "person")
        return await self._judge_answer(call, state, judged, answer)

    async def _judge_answer(
        self, call: TurnCall, state: ApprovalState, judged: _JudgedInput, answer: ApprovalDecision
    ) -> _JudgedInput:
        """Note what an answer allows, and judge it with the arguments that it gives."""
        packed = judged.packed
        if answer.arguments is not None:
            packed = packed_json("the changed arguments", _read_changes(answer.arguments))
        is_changed = packed != judged.packed
        if is_changed:
            state.changes += 1
            self._show_change(call, packed)
            if state.changes > 1:
                error = PermissionDenied(
                    "the person has changed the arguments of this call a second time",
                    executed="no",
                    details=_details(judged.decision),
                )
                self._deny(call, error, "person")
        approval = state.approval
        if approval is None or approval.packed != judged.packed:
            approval = state.approval = Approval(judged.packed, packed)
        approval.packed = packed
        approval.requests += 1
        approval.answered.add(judged.asks)
        try:
            judged_again = await self._judge(call, packed)
        except InvalidArguments as error:
            if is_changed:
                error.message = f"a person has changed the arguments: {error.message}"
            raise
        if answer.scope == "state":
            reaches, has_input = judged_again.assessment.reaches, call.options.has_input
            try:
                granted = checked_rules(answer, judged_again.call, reaches, has_input=has_input)
            except PermissionDenied as error:
                self._deny(call, error, judged.decision.by)
            approval.granted += granted
        return judged_again

    def _let_through(
        self, call: TurnCall, state: ApprovalState, judged: _JudgedInput, packed: bytes
    ) -> dict[str, Any]:
        """Record that a call may run, and return its arguments."""
        self._note(call, judged)
        is_asked = judged.decision.behavior == "ask"
        if call.recording is not None:
            call.recording.decide("allowed", "person" if is_asked else judged.decision.by)
        if judged.packed != packed:
            self._show_change(call, judged.packed)
        arguments: dict[str, Any] = unpack_body(judged.packed)
        return arguments

    def _show_change(self, call: TurnCall, packed: bytes) -> None:
        """Let the result of a use show the arguments that a person has changed."""
        # 1, 1.0 and true are equal, and are not the same arguments.
        changed, asked = unpack_body(packed), unpack_body(packed_json("arguments", call.arguments))
        is_same = arguments_digest(changed) == arguments_digest(asked)
        call.sent = None if is_same else changed

    def _note(self, call: TurnCall, judged: _JudgedInput) -> None:
        """Let the trace and the record of a call show what was decided, and what it reaches."""
        decision, reaches = judged.decision, judged.assessment.reaches
        if call.span is not None:
            call.span.set_decision(decision.behavior, decision.by)
        # An owner that is not trusted could hide calls by saying that they reach something else.
        if call.recording is not None and reaches:
            if People(judged.call).trusts_owner(frozenset(self._permissions.trusted_owners)):
                call.recording.reach(reaches)
                call.recording.arguments = None  # those of the reached tool are not known here

    def _deny(self, call: TurnCall, error: RoomException, by: str) -> Never:
        if call.recording is not None:
            call.recording.decide("denied", by)
        raise error


def _unknown(why: str) -> Assessment:
    """Return the assessment of a tool that could not be asked."""
    message = shortened(printable(f"there is no answer about this call: {why}"), _MAX_WHY_CHARS)
    return Assessment("ask", immune=True, message=message, source="manifest")


def _read_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(arguments)
    except Exception as error:
        text = f"the changed arguments cannot be read: {type(error).__name__}"
        raise InvalidArguments(text, executed="no") from error


def _is_approved(state: ApprovalState, judged: _JudgedInput) -> bool:
    approval = state.approval
    if approval is None or approval.packed != judged.packed:
        return False
    return judged.asks in approval.answered or approval.requests >= _MAX_REQUESTS


def _details(decision: PermissionDecision) -> dict[str, Any]:
    details = decision_details(decision)
    if decision.suggestions:
        details["suggestions"] = [rule_to_plain(rule) for rule in decision.suggestions]
    return details


def _denied_by_person(answer: ApprovalDecision, decision: PermissionDecision) -> ApprovalDenied:
    reason = printable(answer.reason, _MAX_REASON_CHARS)
    quote = f", and says: {json_text(reason)}" if reason else ""
    details = _details(decision) | {"source": "person"}
    return ApprovalDenied(f"a person denied this call{quote}", executed="no", details=details)
