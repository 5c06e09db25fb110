"""Asks a person about the calls of one turn: one request is open at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import shown
from toolbus.client.call_options import MAX_TIMEOUT_S, is_time
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import ApprovalExpired, PermissionDenied, Unavailable
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule import Rule
from toolbus.tools.middleware import ToolCall
from toolbus.turns.approvals import ApprovalDecision, ApprovalRequest, Approver
from toolbus.turns.granted_rules import GrantedRule, arguments_digest, granted_for
from toolbus.turns.turn_calls import TurnCall

__all__ = ["ApprovalQueue", "checked_decision", "granted_rules"]

_logger = bounded_logger(__name__)
# An approver that is cancelled puts a terminal back in order. A turn waits 5 s for the end of a
# call.
_END_S = 2.0
_left: set[asyncio.Task[ApprovalDecision]] = set()


class ApprovalQueue:
    """The approval requests of one turn.

    Args:
        approve: Asks a person; None if nobody can be asked.
        timeout_s: Seconds that a request is open; 0 asks nobody.

    Raises `TypeError` for what is not a function, and `ValueError` for what is not a time.
    """

    def __init__(self, approve: Approver | None, timeout_s: float) -> None:
        if approve is not None and not callable(approve):
            raise TypeError(
                f"approve must be an async function of an ApprovalRequest, not {shown(approve)}"
            )
        if not is_time(timeout_s) or timeout_s >= MAX_TIMEOUT_S:
            text = f"approval_timeout_s must be a number of seconds, not {shown(timeout_s)}"
            raise ValueError(text)
        self._approve = approve
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._users = 0

    @asynccontextmanager
    async def queue(self, call: TurnCall) -> AsyncIterator[bool]:
        """Hold the right to ask while the block runs; gives whether the call waited for it.

        The time of the call stands still while it waits: it waits for the person too.
        """
        clock, _ = call.begin_clock()
        waits = self._users > 0
        self._users += 1
        try:
            with clock.paused():
                await self._lock.acquire()
            try:
                yield waits
            finally:
                self._lock.release()
        finally:
            self._users -= 1

    async def ask(self, call: TurnCall, request: ApprovalRequest) -> ApprovalDecision:
        """Ask, and return the decision; the time of the call stands still meanwhile.

        Raises:
            PermissionDenied: There is no approver, or it gave no decision.
            ApprovalExpired: The time for an answer is over.
        """
        reason = request.decision.reason
        if self._approve is None:
            text = f"{reason} Nobody can be asked: the turn has no approver (approve=)."
            raise PermissionDenied(text, executed="no")
        if self._timeout_s == 0:
            raise ApprovalExpired(f"{reason} Nobody is waited for.", executed="no")
        clock, _ = call.begin_clock()
        task = asyncio.ensure_future(_call_approver(self._approve, request))
        with clock.paused():
            try:
                done, _ = await asyncio.wait([task], timeout=self._timeout_s)
            finally:
                if not task.done():
                    await _end(task)
        if not done:
            text = f"{reason} Nobody has answered within {self._timeout_s:g} s."
            raise ApprovalExpired(text, executed="no")
        name = getattr(self._approve, "__qualname__", type(self._approve).__name__)
        if task.cancelled():
            raise _no_decision(request, f"its approver, {name}, was cancelled", "CancelledError")
        error = task.exception()
        if isinstance(error, Unavailable):  # no failure of it, as without a terminal
            _logger.warning("nobody is asked about %s: %s", request.tool.name, error.message)
            raise _no_decision(request, error.message, "Unavailable")
        if error is not None:
            _logger.error("the approver of a turn, %s, raised", name, exc_info=error)
            kind = type(error).__name__
            raise _no_decision(request, f"its approver, {name}, raised {kind}", kind)
        return task.result()


async def _call_approver(approve: Approver, request: ApprovalRequest) -> ApprovalDecision:
    try:
        answering = approve(request)
        if not isawaitable(answering):
            raise TypeError("approve must be an async function of an ApprovalRequest")
        return await answering
    except SystemExit as error:  # it would end the program from within a task
        raise RuntimeError("SystemExit") from error


async def _end(task: asyncio.Task[ApprovalDecision]) -> None:
    """Cancel the task of an approver, and wait for its end; leave it behind if it does not end."""
    task.cancel()
    task.add_done_callback(retrieve_error)
    _left.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_left.discard)
    await asyncio.wait([task], timeout=_END_S)


def _no_decision(request: ApprovalRequest, why: str, cause: str) -> PermissionDenied:
    text = f"{request.decision.reason} Nobody has decided: {why}."
    return PermissionDenied(text, executed="no", details={"cause": cause})


def checked_decision(decision: Any, call: ToolCall, reaches: str) -> None:
    """Raise `PermissionDenied` for what is not a decision about a call, and for a rule beyond it.

    Args:
        decision: What the approver returned.
        call: The call that was asked about.
        reaches: The tool that it reaches, if its tool only forwards.
    """
    if not isinstance(decision, ApprovalDecision):
        raise _mistake(f"it returned {type(decision).__name__} in place of an ApprovalDecision")
    if not isinstance(decision.is_allowed, bool) or not isinstance(decision.reason, str):
        raise _mistake("its ApprovalDecision was made by neither ApprovalDecision.allow nor .deny")
    if decision.scope not in ("once", "state"):
        raise _mistake("the scope of its ApprovalDecision is neither once nor state")
    if not isinstance(decision.arguments, Mapping | None):
        raise _mistake("the arguments of its ApprovalDecision are not one mapping")
    if decision.rule == ():
        raise _mistake("its ApprovalDecision grants an empty tuple of rules")
    for rule in decision.rules:
        _check_rule(rule, call, reaches)


def _check_rule(rule: Any, call: ToolCall, reaches: str) -> None:
    """Raise `PermissionDenied` for a rule that is beyond the call that was asked about."""
    if not isinstance(rule, Rule):
        raise _mistake(f"the rule of its ApprovalDecision is {type(rule).__name__}")
    target = reaches or call.tool.name
    if rule.behavior != "allow" or rule.tool != target:
        raise _mistake(f"it granted the rule {rule}, which is not an allow rule of {target} alone")
    # The engine itself says whether owner, principal and caller of the rule are those of the call.
    rules = [replace(rule, match=None), Rule(behavior="allow", tool=call.tool.name)]
    only = Permissions("dont_ask", rules if reaches else rules[:1])
    if only.decide(call, Assessment("pass", reaches=reaches)).behavior != "allow":
        raise _mistake(f"it granted the rule {rule}, which does not cover this call")


def granted_rules(
    decision: ApprovalDecision, call: ToolCall, reaches: str, *, has_input: bool
) -> list[GrantedRule]:
    """Return what a decision about a call grants for the state; nothing for what no rule covers."""
    if decision.rule is None and has_input:
        return []  # arguments do not say what else it sends
    try:
        if decision.rule is not None:
            return [granted_for(call, reaches, rule.match, "") for rule in decision.rules]
        return [granted_for(call, reaches, None, arguments_digest(call.arguments))]
    except ValueError:
        return []  # the tool says that it reaches what is not the name of a tool


def _mistake(what: str) -> PermissionDenied:
    text = f"the approver of the turn made a mistake: {what}"
    return PermissionDenied(text, executed="no", details={"cause": "ApprovalDecision"})
