"""How a call is judged: what its tool is asked, and when it is asked a second time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from toolbus.permissions.assessment import Assessment

if TYPE_CHECKING:  # most programs have no permissions
    from toolbus.permissions.decision import JudgedCall, PermissionDecision
    from toolbus.permissions.permissions import Permissions

__all__ = ["AskTool", "judge", "of_same_reach"]

AskTool: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Assessment]]
"""Asks the tool of a call about its input, and about patterns of rules."""


async def judge(
    in_force: Callable[[str], Permissions], call: JudgedCall, ask: AskTool
) -> tuple[PermissionDecision, Assessment]:
    """Ask the tool of a call as often as the rules need it, and decide.

    Args:
        in_force: Returns the permissions, by the tool that the call reaches; "" where its tool does
            not forward, or it is not known yet. Others may be in force after each question.
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
