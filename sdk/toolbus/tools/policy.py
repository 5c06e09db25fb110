"""The host's half of permission: a `Toolkit(policy=...)` binds every caller of the toolkit.

It is enforced innermost, after all middlewares and right before the function is entered, so that
what a middleware rewrote is judged too. What it asks about waits until a person approves it, and so
does each call of a tool with `approval`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from toolbus.auth.grants import ToolPatterns
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import packed_json
from toolbus.errors import ApprovalDenied, ApprovalExpired, Executed, RoomException, Unavailable
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import (
    MAX_MATCHES,
    MAX_MATCHES_BYTES,
    MAX_MESSAGE_CHARS,
)
from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, ApprovalState, Judged
from toolbus.tools.assessing import assessed, of_patterns
from toolbus.tools.context import run_of
from toolbus.tools.decisions import CallDecision, InForce, judge, of_same_reach, stricter
from toolbus.tools.middleware import ToolCall
from toolbus.tools.tool import Tool, read_in_time
from toolbus.tools.tool_run import ToolRun
from toolbus.untrusted_text import printable
from toolbus.wire import unpack_body
from toolbus.wire.manifest import ToolkitManifest

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.decision import PermissionDecision
    from toolbus.permissions.permissions import Permissions
    from toolbus.permissions.rule import Rule
    from toolbus.records.call_record import Decision

__all__ = [
    "Inquiry",
    "JudgedToolkit",
    "checked_policy",
    "foreseen",
    "permitted",
    "warn_of_policies",
    "workdirs_of",
]

_logger = bounded_logger(__name__)


@cache
def _no_permissions() -> Permissions:
    """Return permissions that allow nothing but what is granted."""
    from toolbus.permissions.permissions import Permissions

    return Permissions("dont_ask")


_CHANGED = "what the call would do has changed since a person approved it"


class JudgedToolkit(Protocol):
    """What of a toolkit decides about the calls of its tools; read when it is needed."""

    approvers: tuple[str, ...]
    """Who may approve calls of the tools that do not say it themselves."""
    unentered: Executed
    """`executed` of a call whose function was not entered."""

    @property
    def policies(self) -> tuple[Permissions, ...]:
        """What has to allow a call."""


class Inquiry:
    """What a tool is asked about one call. One answer serves all who ask, where it can.

    Each question may take the tool seconds, and the tools that forward a way through the room.
    Policies of `later` ask after the first asker: the first answer has their patterns too.
    """

    def __init__(
        self,
        tool: Tool,
        call: ToolCall,
        checked: dict[str, Any],
        later: Iterable[Permissions],
    ) -> None:
        self.call = call
        self._tool = tool
        self._checked = checked
        self._ahead = [pattern for policy in later for pattern in policy.patterns(call)]
        self._asked: frozenset[str] = frozenset()
        self._answer: Assessment | None = None

    async def ask(self, patterns: Sequence[str]) -> Assessment:
        """Return the answer; its `matches` are of these patterns and perhaps of others.

        Raises a `RoomException` that the tool refuses the call with.
        """
        if self._answer is None or not self._asked.issuperset(patterns):
            asked = tuple(dict.fromkeys((*patterns, *self._ahead)))
            size = sum(len(pattern.encode()) for pattern in asked)
            if len(asked) > MAX_MATCHES or size > MAX_MATCHES_BYTES:
                asked = tuple(patterns)
            call = self.call
            found = await assessed(self._tool, call.tool.name, call.context, self._checked, asked)
            self._answer = of_same_reach(found, self._answer)
            self._asked = frozenset(asked)
        return self._answer


class HostJudgement:
    """How the policies of a toolkit, its tool, and what people have granted judge a call.

    Args:
        tool: The tool.
        policies: Those of the toolkit, all of which have to allow the call; there is at least one,
            or the tool wants a person to approve each call.
        run: The run that the call is judged for.
        has_input: Whether the call sends an attachment or values too.
    """

    def __init__(
        self, tool: Tool, policies: Sequence[Permissions], run: ToolRun, *, has_input: bool = False
    ) -> None:
        self._tool = tool
        self._policies = policies
        self._demands = tool.approval and run.enforces_approval
        granted = run.granted
        self._granted = granted if granted is not None and granted.rules else None
        self._has_input = has_input

    async def judge(
        self, call: ToolCall, inquiry: Inquiry
    ) -> tuple[PermissionDecision, Assessment]:
        """Return the strictest decision, with what the tool says.

        Raises what the tool refuses the call with.
        """
        granted = await self._granted_by_person(call, inquiry)
        ask = inquiry.ask if granted is None else partial(self._ask_without_flag, inquiry)
        decided: tuple[PermissionDecision, Assessment] | None = None
        for policy in self._policies:
            found = await judge(self._in_force(policy, call), call, ask)
            if answer := self._answer_of(call, *found):
                found = replace(found[0], behavior="allow", rule=answer), found[1]
            if decided is None or stricter(found[0], decided[0]) is found[0]:
                decided = found
        if self._demands and (decided is None or decided[0].behavior == "allow"):
            decided = granted or await self._demand(call, inquiry)
        assert decided is not None, "it is judged for a policy or for its tool"
        return decided

    def _in_force(self, policy: Permissions, call: ToolCall) -> InForce:
        """Return the policy, with the granted rules that concern the call."""
        if self._granted is None:
            return lambda _: policy
        return partial(self._granted.joined, policy, call, has_input=self._has_input)

    def _answer_of(
        self, call: ToolCall, decision: PermissionDecision, assessment: Assessment
    ) -> Rule | None:
        """Return what was granted for exactly these arguments, if a rule asks about them.

        A granted pattern answers none: it may cover calls that another rule asks about. What the
        tool itself asks about, such as a file that has changed, it asks each time.
        """
        is_asked = decision.behavior == "ask" and decision.source == "rule"
        if self._granted is None or not is_asked or assessment.immune:
            return None
        reaches = assessment.reaches
        covering = self._granted.covering(call, reaches, has_input=self._has_input)
        return next((granted.rules()[0] for granted in covering if granted.arguments), None)

    async def _granted_by_person(
        self, call: ToolCall, inquiry: Inquiry
    ) -> tuple[PermissionDecision, Assessment] | None:
        """Return the decision that granted rules alone make; None if they do not cover the call."""
        if self._granted is None or not self._tool.approval:
            return None

        async def ask(patterns: tuple[str, ...]) -> Assessment:
            # Without what loosens: a call that changes nothing is approved by a person too.
            answer = await self._ask_without_flag(inquiry, patterns)
            behavior = "pass" if answer.behavior == "allow" else answer.behavior
            return replace(answer, behavior=behavior, read_only=False, within_workdir=False)

        decision, _ = await judge(self._in_force(_no_permissions(), call), call, ask)
        return (decision, await inquiry.ask(())) if decision.behavior == "allow" else None

    async def _ask_without_flag(self, inquiry: Inquiry, patterns: tuple[str, ...]) -> Assessment:
        """Ask the tool, where a person has answered what its flag `approval` asks.

        That is an immune ask, unless the tool has an assessment of its own, which asks each time.
        """
        answer = await inquiry.ask(patterns)
        return answer if self._tool.has_assess else replace(answer, immune=False)

    async def _demand(
        self, call: ToolCall, inquiry: Inquiry
    ) -> tuple[PermissionDecision, Assessment]:
        from toolbus.permissions.decision import PermissionDecision

        assessment = await inquiry.ask(())
        reason = f"{call.tool.name} asks that a person approves each call."
        suggestions = assessment.suggestions
        return PermissionDecision("ask", reason, source="tool", suggestions=suggestions), assessment


class _HostDecision(CallDecision):
    """What the policies of a toolkit and its tool decide about an attempt, where the call runs.

    Args:
        toolkit: The toolkit; all of its policies have to allow the call.
        tool: The tool.
        call: The attempt.
        has_input: Whether the call sends an attachment or values too.
    """

    def __init__(
        self, toolkit: JudgedToolkit, tool: Tool, call: ToolCall, *, has_input: bool
    ) -> None:
        self._toolkit = toolkit
        self._tool = tool
        self._policies = toolkit.policies
        self._run = run_of(call.context)
        self._run.workdirs = workdirs_of(self._policies) or self._run.workdirs
        if workdirs := self._run.own_workdirs:
            call = replace(call, tool=replace(call.tool, workdirs=workdirs))
        self._call = call
        self._has_input = has_input
        # What a person has decided holds for all attempts; what a policy has denied for this one.
        self.state = self._run.approval_states.get(call.tool.name) or ApprovalState()

    def call_with(self, packed: bytes) -> ToolCall:
        return replace(self._call, arguments=unpack_body(packed))

    async def judge(self, call: ToolCall) -> tuple[PermissionDecision, Assessment]:
        """Ask the tool anew each time: a file may have changed while a person was asked."""
        tool, run = self._tool, self._run
        # A person may take hours: a rule that denies since then counts. Where no policy is left,
        # those count that asked.
        self._policies = self._toolkit.policies or self._policies
        checked = await read_in_time(tool, run, unpack_body(self.arguments))
        judgement = HostJudgement(tool, self._policies, run, has_input=self._has_input)
        return await judgement.judge(call, Inquiry(tool, call, checked, self._policies[1:]))

    def asks(self, judged: Judged) -> Hashable:
        # A person approves what was shown: another preview is another question.
        return judged.asks, judged.assessment.preview

    def asks_again(self, judged: Judged) -> bool:
        self.note_denial("approval")
        raise ApprovalDenied(
            "what the call would do has changed again since a person approved it",
            executed="no",
            details=self.details(judged.decision),
        )

    def grant(self, answer: ApprovalDecision, judged: Judged) -> None:
        granted, reaches = self._run.granted, judged.assessment.reaches
        if granted is not None:
            bases = (*self._policies, *([_no_permissions()] if self._tool.approval else []))
            granted.grant(judged.call, reaches, answer.rules, bases, has_input=self._has_input)

    async def ask(self, judged: Judged) -> ApprovalDecision:
        run, state = self._run, self.state
        if state.requests:
            since = "a person has changed the arguments" if state.changes else _CHANGED
            reason = f"{since}: {judged.decision.reason}"
            judged = judged._replace(decision=replace(judged.decision, reason=reason))
        demand = ApprovalDemand(
            judged,
            tuple(self._tool.approvers) or self._toolkit.approvers,
            self._tool.approval_timeout_s,
            is_entered=run.executed != "no",
            has_input=self._has_input,
            has_patterns=_may_match(self._tool),
        )
        try:
            decision = await run.ask_person(demand)
        except asyncio.CancelledError:  # such as by the time limit of a middleware
            state.is_withdrawn = True
            run.approval_states[self._call.tool.name] = state
            raise
        state.is_withdrawn = False
        return decision

    def note(self, word: Decision, by: str) -> None:
        """Let the record of the call show what was decided, and by what."""
        run = self._run
        if self.judged is not None:
            run.decision = self.judged.decision
        if run.recording is not None:
            run.recording.decide(word, by)

    def note_denial(self, by: str) -> None:
        self.note("denied", self._by(by))

    def _by(self, by: str) -> str:
        if self.judged is None or by in ("person", "approval"):
            return by
        return f"policy: {self.judged.decision.by}" if self._policies else self.judged.decision.by

    async def arguments_to_run(self) -> dict[str, Any]:
        """Return the arguments to run the call with, as soon as it may.

        Raises as `decide`; the error says whether the call may have run before.
        """
        run = self._run
        # Others have these objects too, and may change them while the policies judge.
        packed = packed_json("arguments", dict(self._call.arguments))
        was_denied = self.state.denial is not None
        try:
            judged = await self.decide(packed)
            if self.state.is_withdrawn and not run.entered:
                text = "it may run now, and a person was asked before: call it again"
                raise Unavailable(text, executed="no")
        except RoomException as error:
            # An attempt before this one may have run it: a middleware makes several.
            error.executed = run.executed if run.entered else "no"
            if isinstance(error, ApprovalDenied | ApprovalExpired):
                run.approval_states[self._call.tool.name] = self.state
            if was_denied or self.judged is not None:
                run.record(error)
            else:
                self.note("denied", "tool")  # its `assess` has refused, by `context.refuse`
            raise
        if self.state.requests:
            run.approval_states[self._call.tool.name] = self.state
        is_asked = judged.decision.behavior == "ask"
        self.note("allowed", "person" if is_asked else self._by(""))
        arguments: dict[str, Any] = unpack_body(judged.packed)
        if self.state.changes and run.recording is not None:
            run.recording.keep_arguments(arguments)
        return arguments


async def permitted(
    toolkit: JudgedToolkit, tool: Tool, call: ToolCall, *, has_input: bool
) -> dict[str, Any]:
    """Return the arguments to run a call with, as soon as the toolkit, and who is asked, allow it.

    Raises `PermissionDenied`, `ApprovalDenied` and `ApprovalExpired`, recorded in the run, and
    `InvalidArguments`.
    """
    return await _HostDecision(toolkit, tool, call, has_input=has_input).arguments_to_run()


async def foreseen(
    tool: Tool, policies: Sequence[Permissions], inquiry: Inquiry, patterns: Sequence[str]
) -> Assessment:
    """Return what a tool says about a call, with what its host would do about it.

    As of `HostJudgement`, there is a policy, or the tool wants a person to be asked.
    """
    found = of_patterns(await inquiry.ask(patterns), patterns)
    call = inquiry.call
    decision, _ = await HostJudgement(tool, policies, run_of(call.context)).judge(call, inquiry)
    reason = printable(decision.reason, MAX_MESSAGE_CHARS)
    if decision.behavior == "deny":
        return replace(found, refusal=reason, asks="")
    asks = reason if decision.behavior == "ask" else ""
    # What a tool passes the call on to may ask a person too.
    return replace(found, refusal="", asks=asks or found.asks)


def workdirs_of(policies: Sequence[Permissions]) -> tuple[str, ...]:
    """Return the working directories of who hosts a toolkit, else those of its author."""
    return next((policy.workdirs for policy in reversed(policies) if policy.workdirs), ())


def warn_of_policies(
    toolkit: ToolkitManifest, tools: Sequence[Tool], policies: Sequence[Permissions]
) -> None:
    """Log what the policies of a toolkit do that who wrote them hardly wants.

    Each is in force as it is written: the toolkit is hosted all the same.
    """
    named = {tool.name: tool for tool in tools}
    for rule in dict.fromkeys(rule for policy in policies for rule in policy.rules):
        # A rule for several toolkits is not held against each of them.
        if rule.tool.partition(".")[0] != toolkit.name:
            continue
        covering = ToolPatterns([rule.tool])
        covered = [tool for name, tool in named.items() if covering.covers(toolkit.name, name)]
        if not covered:
            near = get_close_matches(rule.tool.partition(".")[2], named, n=1)
            hint = f": did you mean {toolkit.name}.{near[0]}?" if near else ""
            _logger.warning(
                "no tool of toolkit %s has the name in the rule %s%s", toolkit.name, rule, hint
            )
        elif rule.match is not None and not any(map(_may_match, covered)):
            _logger.warning(
                "the rule %s covers no call: %s compares no input with `match`, as it has no"
                " patterns (match_rule); without `match` the rule covers every call of it",
                rule,
                rule.tool,
            )


def _may_match(tool: Tool) -> bool:
    """Whether a pattern can cover a call: `assess`, or the tool that it reaches, may compare it."""
    return tool.has_patterns or tool.has_assess or type(tool).reached is not Tool.reached


def checked_policy(value: Any, label: str) -> Permissions | None:
    """Return the value of `policy=`. Raises `TypeError` for anything but permissions and None."""
    if value is None:  # then nothing of permissions is imported
        return None
    from toolbus.permissions.permissions import Permissions

    if not isinstance(value, Permissions):
        raise TypeError(f"{label}: policy must be Permissions(...), not {type(value).__name__}")
    return value
