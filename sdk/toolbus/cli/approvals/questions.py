"""A call that waits for a person in a room: as a question, as columns, as JSON; and its answer.

Its texts are those of its host and its caller: all that is shown here is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from toolbus.errors import InvalidResult
from toolbus.permissions.plain import rule_to_plain
from toolbus.room.holds import GrantedHold, HoldBody, HoldInfo
from toolbus.room.room_client import RoomClient
from toolbus.turns.approvals import ApprovalDecision
from toolbus.turns.terminal_approvals import ApprovalQuestion, Edit, ask_in_terminal
from toolbus.turns.terminal_questions import AnswerQuestion, TypedAnswer, ask_for_answer
from toolbus.untrusted_text import json_text, one_line, printable

__all__ = [
    "SHORT_ID",
    "answer_question_of",
    "ask_about",
    "clock_text",
    "granted_facts",
    "hold_facts",
    "outcome_text",
    "question_of",
    "settle",
    "tool_text",
    "who_text",
]

SHORT_ID = 8
"""Characters of an id that lists show: an id may be typed as any unambiguous beginning of it."""

_HALF_DAY_S = 43_200


def question_of(hold: HoldInfo) -> ApprovalQuestion:
    """Return what a person is asked about a call that waits.

    Raises `InvalidResult` if it was settled before it was read: then nothing is asked.
    """
    body = _body(hold)
    return ApprovalQuestion(
        _about(hold, body), body.arguments, _reasons(hold, body), body.suggestions
    )


def answer_question_of(hold: HoldInfo) -> AnswerQuestion:
    """Return what a person is asked to answer; raises as `question_of`."""
    body = _body(hold)
    reasons = [("asked once more because", printable(body.reason))] if body.reason else []
    if hold.left_s is not None:
        reasons.append(("expires at", _time_text(hold.left_s)))
    return AnswerQuestion(
        _about(hold, body),
        body.question,
        body.arguments if body.is_result else None,
        body.check,
        body.schema,
        body.options,
        reasons,
    )


def _body(hold: HoldInfo) -> HoldBody:
    if hold.body is None:
        raise InvalidResult(f"nothing is asked any more: {outcome_text(hold)}", executed="no")
    return hold.body


async def ask_about(
    hold: HoldInfo, first_key: str = "", edit: Edit | None = None
) -> ApprovalDecision | TypedAnswer | None:
    """Ask in the terminal about a call that waits; None if the person leaves the question.

    Raises as `question_of`, and `Unavailable` without a terminal.
    """
    if hold.kind == "answer":
        return await ask_for_answer(answer_question_of(hold), first_key)
    return await ask_in_terminal(question_of(hold), first_key, edit)


def _about(hold: HoldInfo, body: HoldBody) -> list[tuple[str, str]]:
    """Return the tool, and who asks for whom, with what the caller says about it."""
    about = [("tool", one_line(f"{hold.tool} (of {hold.owner})"))]
    if body.reaches:
        about.append(("reaches", one_line(body.reaches)))
    if hold.is_own:
        text = "the caller itself, before it makes the call; the tool's host may not ask"
        about.append(("asked by", text))
    about.append(("for", one_line(hold.asked_for)))
    if hold.caller is not None:
        text = f"{hold.caller.full_name} (role {hold.caller.role}, connection {hold.caller.id})"
        about.append(("called by", one_line(text)))
    if hold.is_away:
        text = "the connection of the caller was lost; a decision waits for 10 minutes, and is used"
        about.append(("away", f"{text} if the caller makes the same call again"))
    if hold.forwarded_for:
        names = [one_line(participant.full_name) for participant in hold.forwarded_for]
        about.append(("forwarded for", "\n".join(names)))
    if hold.purpose:
        about.append(("purpose, in the caller's words", printable(hold.purpose)))
    if hold.replaces:
        about.append(("once more", "the host or the caller of an earlier attempt was lost"))
    if body.approvers:
        done = "answered" if hold.kind == "answer" else "approved"
        about.append((f"may be {done} by", "\n".join(map(one_line, body.approvers))))
    return about


def _reasons(hold: HoldInfo, body: HoldBody) -> list[tuple[str, str]]:
    reasons = [("asked because", printable(body.reason))]
    if body.message and json_text(body.message) not in body.reason:  # most reasons quote it
        reasons.append(("its owner says", printable(body.message)))
    if body.has_input:
        text = "the call sends an attachment or values too; these are not approved by anybody"
        reasons.append(("not shown", text))
    if body.preview:
        reasons.append(("preview", printable(body.preview)))
    if hold.left_s is not None:
        reasons.append(("expires at", _time_text(hold.left_s)))
    return reasons


async def settle(room: RoomClient, hold: HoldInfo, decision: ApprovalDecision | TypedAnswer) -> str:
    """Answer a question as the person decided about it; return that as a past participle.

    Raises what `RoomClient.approve` and `answer` raise.
    """
    if isinstance(decision, TypedAnswer):
        if decision.is_refused:
            await room.deny(hold, decision.reason)
            return "denied"
        await room.answer(hold, decision.value)
        return "answered"
    if not decision.is_allowed:
        await room.deny(hold, decision.reason)
        return "denied"
    rule = None if decision.scope == "once" else decision.rules or True
    await room.approve(hold, decision.arguments, rule)
    return "approved"


def tool_text(hold: HoldInfo) -> str:
    """Return the tool, with what is asked for if that is no approval: "desk.review (answer)"."""
    return f"{one_line(hold.tool)} (answer)" if hold.kind == "answer" else one_line(hold.tool)


def who_text(hold: HoldInfo) -> str:
    """Return who calls, and for whom: "bot for ann", "ann (away)"."""
    caller = hold.asked_for if hold.caller is None else hold.caller.full_name
    text = caller if caller == hold.asked_for else f"{caller} for {hold.asked_for}"
    return one_line(f"{text} (away)" if hold.is_away and hold.is_open else text)


def outcome_text(hold: HoldInfo) -> str:
    """Return what has become of it: "denied by bob: not now"."""
    text = hold.outcome
    if hold.by is not None:
        text += f" by {hold.by.full_name}"
        if hold.is_away:
            text += " while its caller was away"
    if hold.reason:
        text += f": {hold.reason}"
    return one_line(text)


def clock_text(seconds: float) -> str:
    """Return a length of time: "0:05", "12:00", "1:30:00"."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _time_text(left_s: float) -> str:
    """Return the time of day when something expires: an open question shows it for long."""
    form = "%H:%M:%S" if left_s < _HALF_DAY_S else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(time.time() + left_s))


def hold_facts(hold: HoldInfo) -> dict[str, Any]:
    """Return a hold as one JSON object; without `body` where that was not read."""
    facts = {
        field.name: _plain(getattr(hold, field.name))
        for field in fields(hold)
        if field.name != "body"
    }
    if hold.body is not None:
        facts["body"] = asdict(hold.body)
        facts["body"]["suggestions"] = [rule_to_plain(rule) for rule in hold.body.suggestions]
    return facts


def granted_facts(granted: GrantedHold) -> dict[str, Any]:
    """Return a granted rule as one JSON object."""
    facts = {field.name: getattr(granted, field.name) for field in fields(granted)}
    rule = granted.rule
    return facts | {"digest": granted.digest.hex(), "rule": rule and rule.to_plain()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return asdict(value)
