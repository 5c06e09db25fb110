"""The host's half of permission: a `Toolkit(policy=...)` binds every caller of the toolkit.

It is enforced innermost, after all middlewares and right before the function is entered, so that
what a middleware rewrote is judged too. Nobody can be asked at a host: what a policy would ask
about, it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Never

from toolbus.auth.grants import ToolPatterns
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import packed_json
from toolbus.errors import PermissionDenied, RoomException
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.permissions.plain import (
    MAX_MATCHES,
    MAX_MATCHES_BYTES,
    MAX_MESSAGE_CHARS,
)
from toolbus.tools.assessing import assessed
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.decisions import (
    ApprovalState,
    CallDecision,
    InForce,
    Judged,
    judge,
    of_same_reach,
)
from toolbus.tools.middleware import ToolCall
from toolbus.tools.tool import Tool, read_in_time
from toolbus.tools.tool_info import ToolInfo
from toolbus.untrusted_text import printable
from toolbus.wire import unpack_body
from toolbus.wire.manifest import ToolkitManifest

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.decision import PermissionDecision
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.call_record import Decision

__all__ = [
    "Inquiry",
    "checked_policy",
    "permitted",
    "refusal_of",
    "warn_of_policies",
    "workdirs_of",
]

_logger = bounded_logger(__name__)


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


class _PolicyDecision(CallDecision):
    """What one policy decides about the call of an inquiry."""

    def __init__(self, policy: Permissions, inquiry: Inquiry) -> None:
        self.state = ApprovalState()
        self._policy = policy
        self._inquiry = inquiry

    def call_with(self, packed: bytes) -> ToolCall:
        return self._inquiry.call

    def in_force(self, call: ToolCall) -> InForce:
        return lambda _: self._policy

    async def ask_tool(self, call: ToolCall, patterns: tuple[str, ...]) -> Assessment:
        return await self._inquiry.ask(patterns)

    async def ask(self, judged: Judged) -> Never:
        raise PermissionDenied(_why(judged.decision), executed="no")

    def note(self, word: Decision, by: str) -> None:
        """Let the record of the call show what was decided, and by what."""
        run = run_of(self._inquiry.call.context)
        if self.judged is not None:
            run.decision = self.judged.decision
            if run.recording is not None:
                by = f"policy: {run.decision.by}"
        if run.recording is not None:
            run.recording.decide(word, by)

    def note_denial(self, by: str) -> None:
        self.note("denied", by)


async def permitted(tool: Tool, policies: Sequence[Permissions], call: ToolCall) -> dict[str, Any]:
    """Return the arguments to run a call with, as soon as all policies of its toolkit allow it.

    Raises `PermissionDenied`, recorded in the run, and `InvalidArguments`.
    """
    # Others have these objects too, and may change them while the policies judge.
    packed = packed_json("arguments", dict(call.arguments))
    judged = replace(call, arguments=unpack_body(packed))
    run = run_of(call.context)
    checked = await read_in_time(tool, run, unpack_body(packed))
    run.workdirs = workdirs_of(policies) or run.workdirs
    inquiry = Inquiry(tool, judged, checked, policies[1:])
    for policy in policies:
        decision = _PolicyDecision(policy, inquiry)
        try:
            await decision.decide(packed)
        except RoomException as error:
            # An attempt before this one may have run it: a middleware makes several.
            error.executed = run.executed if run.entered else "no"
            if decision.judged is not None:
                run.record(error)
            else:
                decision.note("denied", "tool")  # its `assess` has refused, by `context.refuse`
            raise
        decision.note("allowed", "")
    arguments: dict[str, Any] = unpack_body(packed)
    return arguments


async def refusal_of(policies: Iterable[Permissions], inquiry: Inquiry) -> str:
    """Return why the policies of its toolkit would refuse a call; empty if they would not."""
    for policy in policies:
        decision = await _decided(policy, inquiry)
        if decision.behavior != "allow":
            return printable(_why(decision), MAX_MESSAGE_CHARS)
    return ""


async def _decided(policy: Permissions, inquiry: Inquiry) -> PermissionDecision:
    decision, _ = await judge(lambda _: policy, inquiry.call, inquiry.ask)
    return decision


def _why(decision: PermissionDecision) -> str:
    """Return why a call is refused that is not allowed."""
    if decision.behavior == "ask":
        return f"{decision.reason} A host can ask nobody."
    return decision.reason


def workdirs_of(policies: Sequence[Permissions]) -> tuple[str, ...]:
    """Return the working directories of who hosts a toolkit, else those of its author."""
    return next((policy.workdirs for policy in reversed(policies) if policy.workdirs), ())


def warn_of_policies(
    toolkit: ToolkitManifest, tools: Sequence[Tool], policies: Sequence[Permissions]
) -> None:
    """Log what the policies of a toolkit do that who wrote them hardly wants.

    Each is in force as it is written: the toolkit is hosted all the same.
    """
    _warn_of_asks(toolkit, tools, policies)
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
    """Whether a pattern can cover a call of a tool: `assess` may compare it too."""
    return tool.has_patterns or tool.has_assess


def _warn_of_asks(
    toolkit: ToolkitManifest, tools: Iterable[Tool], policies: Iterable[Permissions]
) -> None:
    """Log the tools of which the policies of a toolkit refuse every call, as nobody can be asked.

    That is what they would ask about whatever the input and the caller are.
    """
    policies = [_without_conditions(policy) for policy in policies]
    asked = []
    for tool in tools:
        assessment = assessment_of_flags(tool.manifest())
        if tool.has_assess or type(tool).reached is not Tool.reached:
            # It may allow some input, and reach another tool with it; flags are about all inputs.
            assessment = Assessment("allow", read_only=True, within_workdir=True)
        info = ToolInfo.of(toolkit, tool.manifest())
        call = ToolCall(info, {}, ToolContext())
        if any(policy.decide(call, assessment).behavior == "ask" for policy in policies):
            asked.append(tool.name)
    if asked:
        _logger.warning(
            "the policy of toolkit %s refuses what it would ask about, as nobody can be asked at a"
            " host: all calls of %s",
            toolkit.name,
            ", ".join(asked),
        )


def _without_conditions(policy: Permissions) -> Permissions:
    """Return a policy that allows all that the given one may allow on some condition."""
    rules = [
        replace(rule, match=None, owner=None, principal=None, caller=None)
        if rule.behavior == "allow"
        else rule
        for rule in policy.rules
    ]
    return replace(policy, rules=tuple(rules))


def checked_policy(value: Any, label: str) -> Permissions | None:
    """Return the value of `policy=`. Raises `TypeError` for anything but permissions and None."""
    if value is None:  # then nothing of permissions is imported
        return None
    from toolbus.permissions.permissions import Permissions

    if not isinstance(value, Permissions):
        raise TypeError(f"{label}: policy must be Permissions(...), not {type(value).__name__}")
    return value
