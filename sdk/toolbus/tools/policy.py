"""The host's half of permission: a `Toolkit(policy=...)` binds every caller of the toolkit.

It is enforced innermost, after all middlewares and right before the function is entered, so that
what a middleware rewrote is judged too. Nobody can be asked at a host: what a policy would ask
about, it refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import PermissionDenied, RoomException
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.permissions.plain import rule_to_plain
from toolbus.tools.assessing import assessed
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.middleware import ToolCall
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.permissions import Permissions
    from toolbus.permissions.permit import Permit

__all__ = ["checked_policy", "enforce", "judge", "refusal_of", "warn_of_asks"]

_logger = bounded_logger(__name__)
_MAX_NAMED_CHARS = 1_000
AskTool = Callable[[Sequence[str]], Awaitable[Assessment]]
"""Asks a tool about the input of a call, and about patterns of rules."""
_NO_PERSON = "A host can ask nobody."


async def judge(
    permissions: Permissions, call: ToolCall, ask_tool: AskTool
) -> tuple[Permit, Assessment | None]:
    """Decide about a call; return the permit, and what the tool said if it was asked.

    Raises what `ask_tool` raises.
    """
    settled = permissions.settles(call)
    if settled is not None:
        return settled, None
    patterns = permissions.patterns(call)
    said = await ask_tool(patterns)
    if said.reaches:
        # Only now it is known which tool the call reaches, and so which rules concern it.
        further = permissions.patterns(call, said.reaches)
        if set(further) - set(patterns):
            said = await ask_tool(further)
    return permissions.decide(call, said), said


async def permit_of(
    policy: Permissions, tool: Tool, call: ToolCall, checked: dict[str, Any]
) -> Permit:
    """Return what a policy decides about a call.

    Args:
        policy: The policy.
        tool: The called tool.
        call: The call.
        checked: Its arguments in the form for `execute`.
    """
    run_of(call.context).workdirs = policy.workdirs

    async def ask_tool(patterns: Sequence[str]) -> Assessment:
        return await assessed(tool, call.tool.name, call.context, checked, patterns)

    permit, _ = await judge(policy, call, ask_tool)
    if permit.behavior == "ask":
        return replace(permit, reason=f"{permit.reason} {_NO_PERSON}")
    return permit


async def enforce(
    policies: Iterable[Permissions], tool: Tool, call: ToolCall, checked: dict[str, Any]
) -> None:
    """Refuse a call that one of the policies of its toolkit does not allow.

    Args:
        policies: That of the toolkit's author, and that of who hosts it.
        tool: The called tool.
        call: The call.
        checked: Its arguments in the form for `execute`.

    Raises `PermissionDenied`, recorded in the run.
    """
    run = run_of(call.context)
    for policy in policies:
        try:
            run.permit = permit = await permit_of(policy, tool, call, checked)
        except RoomException as error:  # of the tool's `assess`, by `context.refuse`
            error.executed = run.executed if run.entered else "no"
            if run.recording is not None:
                run.recording.decide("denied", "tool")
            raise
        is_allowed = permit.behavior == "allow"
        if run.recording is not None:
            run.recording.decide("allowed" if is_allowed else "denied", f"policy: {permit.by}")
        if is_allowed:
            continue
        details: dict[str, Any] = {"source": permit.source}
        if permit.rule is not None:
            details["rule"] = rule_to_plain(permit.rule)
        # An attempt before this one may have run it: a middleware makes several.
        executed = run.executed if run.entered else "no"
        raise run.record(PermissionDenied(permit.reason, executed=executed, details=details))


async def refusal_of(
    policies: Iterable[Permissions], tool: Tool, call: ToolCall, checked: dict[str, Any]
) -> str:
    """Return why the policies of its toolkit would refuse a call; empty if they would not."""
    for policy in policies:
        permit = await permit_of(policy, tool, call, checked)
        if permit.behavior != "allow":
            return permit.reason
    return ""


def warn_of_asks(toolkit: str, policies: Iterable[Permissions], tools: Iterable[ToolInfo]) -> None:
    """Log the tools about which a policy would ask by their flags: it refuses all of their calls.

    Args:
        toolkit: The name of the toolkit.
        policies: Its policies.
        tools: Its tools.
    """
    calls = [ToolCall(tool, {}, ToolContext()) for tool in tools]
    asked = {
        call.tool.tool: None
        for policy in policies
        for call in calls
        if policy.decide(call, assessment_of_flags(call.tool)).behavior == "ask"
    }
    if asked:
        _logger.warning(
            "the policy of toolkit %s refuses calls that it would ask about, as nobody can be asked"
            " at a host; by their flags those of: %s",
            toolkit,
            ", ".join(asked)[:_MAX_NAMED_CHARS],
        )


def checked_policy(value: Any, label: str) -> Permissions | None:
    """Return the value of `policy=`. Raises `TypeError` for anything but permissions and None."""
    if value is None:  # then nothing of permissions is imported
        return None
    from toolbus.permissions.permissions import Permissions

    if not isinstance(value, Permissions):
        raise TypeError(f"{label}: policy must be Permissions(...), not {type(value).__name__}")
    return value
