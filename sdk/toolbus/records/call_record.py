"""One recorded call, what is chosen among recorded calls, and what the codes of errors mean here.

Pure: it reads no clock and stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from toolbus.auth.grants import ToolPatterns
from toolbus.errors import ERRORS, Executed

__all__ = [
    "MAX_TEXT_CHARS",
    "OK",
    "CallFilter",
    "CallRecord",
    "Decision",
    "Settlement",
    "decision_of",
    "stored",
]

Decision: TypeAlias = Literal["allowed", "denied"]
"""Whether a call was let through to its tool, or refused before."""
OK = "ok"
"""The outcome of a call that returned its result; the others are codes of errors."""
PARKED = "parked"
"""The outcome of one whose use waits for its result; the call that brings it is recorded too."""
MAX_TEXT_CHARS = 256
"""Of a name or an id: others choose it, and each record has it."""

_DENIED_BY: Mapping[str, str] = MappingProxyType(
    {
        "invalid_arguments": "schema",
        "not_found": "name",
        "permission_denied": "grant",
        "tool_inactive": "group",
        "approval_denied": "approval",
        "approval_expired": "approval",
        "overloaded": "limit",
        "quota_exceeded": "limit",
        "loop_detected": "limit",
        "definition_changed": "pin",
        "already_exists": "name",
        "duplicate_call_id": "call id",
        "definition_conflict": "definition",
        "tool_failed": "middleware",
    }
)
"""What refuses a call with this code, if the tool was not entered."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that has ended. Names and ids are as others wrote them: escape them for display."""

    tool: str
    """`toolkit.tool`."""
    started_at: float
    """When it arrived: seconds since the epoch."""
    duration_s: float
    """Seconds until it ended, with the time in queues."""
    outcome: str
    """"ok", or the code of the error."""
    executed: Executed
    """Whether the tool's function ran, as on errors."""
    caller: str = ""
    """Who called: the name, with the alias of its issuer if it has one."""
    issuer: str = ""
    """The issuer of the caller's token."""
    principal: str = ""
    """For whom the caller acted; empty if for itself."""
    principal_issuer: str = ""
    """The issuer of the principal's token."""
    call_id: str = ""
    """The id of the call, the same for every attempt."""
    owner: str = ""
    """Who hosts the toolkit; empty for one in the caller's own process."""
    digest: str = ""
    """The digest of the toolkit's definition, where it is known."""
    decision: Decision = "allowed"
    """"denied" if the call was refused before its tool was entered."""
    decided_by: str = ""
    """What decided: for a refused call for instance "schema", "grant" or "limit"."""
    trace_id: str = ""
    """The trace of the call: 32 hex digits, or empty."""
    arguments: str | None = None
    """The arguments as JSON, cut; None unless the records keep arguments."""
    settled: str = ""
    """What a person decided: "approved", "changed" (approved with other arguments), "denied",
    "answered" (what the tool has asked), or "expired" without an answer in time; empty if nobody
    was asked. Of several questions the last one counts."""
    settled_by: str = ""
    """Who decided: the name, with the alias of its issuer if it has one."""
    settled_at: float | None = None
    """When: seconds since the epoch."""
    settled_reason: str = ""
    """Why it was denied, in the words of that person."""
    granted: str = ""
    """What is allowed always from then on: the rules; empty for this call alone."""
    waited_s: float = 0.0
    """Seconds of `duration_s` in which it waited for a person."""


class Settlement(NamedTuple):
    """What a person decided about a call, as its record says it: see `CallRecord.settled`."""

    outcome: str
    by: str = ""
    reason: str = ""
    granted: str = ""


def decision_of(outcome: str, executed: Executed) -> tuple[Decision, str]:
    """Return the decision that an outcome implies, and what decided."""
    if executed == "no" and outcome in _DENIED_BY:
        return "denied", _DENIED_BY[outcome]
    return "allowed", ""


def stored(text: object) -> str:
    """Return text as a record may hold it: cut, and without lone surrogates."""
    short = str(text)[:MAX_TEXT_CHARS]
    if short.isascii():
        return short
    return short.encode("utf-8", "backslashreplace").decode("utf-8")


def _seconds(since: float | datetime | None) -> float | None:
    """Return a time as seconds since the epoch. Raises `ValueError` for any other value."""
    if since is None:
        return None
    try:
        at = since.timestamp() if isinstance(since, datetime) else float(since)
        if isfinite(at):
            return at
    except (OverflowError, OSError):
        pass
    raise ValueError("since must be a time that a datetime can have")


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls are chosen; None chooses all."""

    patterns: ToolPatterns | None = None
    who: str | None = None
    """The caller, with or without the alias of its issuer."""
    outcome: str | None = None
    since: float | None = None
    """Calls that began then or later: seconds since the epoch."""
    call_tree: tuple[str, str] | None = None
    """The id of a call and of its trace: that call, and the others of the trace."""

    @classmethod
    def of(
        cls,
        tool: str | None = None,
        who: str | None = None,
        outcome: str | None = None,
        since: float | datetime | None = None,
    ) -> CallFilter:
        """Check the values. Raises `ValueError` that says what to write instead."""
        for name, text in (("tool", tool), ("who", who), ("outcome", outcome)):
            if not isinstance(text, str | None):
                raise ValueError(f"{name} must be text, not {type(text).__name__}")
        if outcome is not None and outcome not in (OK, PARKED, *ERRORS):
            raise ValueError(f"{outcome[:64]!r} is no outcome: write ok, or the code of an error")
        if isinstance(since, bool) or not isinstance(since, int | float | datetime | None):
            raise ValueError(
                f"since must be a datetime, or seconds since the epoch, not {type(since).__name__}"
            )
        patterns = None if tool is None else ToolPatterns([tool])
        return cls(patterns, None if who is None else stored(who), outcome, _seconds(since))

    def covers(self, tool: str) -> bool:
        """Whether the pattern covers the name of a tool."""
        toolkit, _, name = tool.partition(".")
        return self.patterns is None or self.patterns.covers(toolkit, name)

    def matches(self, record: CallRecord) -> bool:
        """Whether a record passes all conditions."""
        return (
            (self.since is None or record.started_at >= self.since)
            and self.outcome in (None, record.outcome)
            and (
                self.call_tree is None
                or self.call_tree[0] == record.call_id
                or self.call_tree[1] == record.trace_id
            )
            and self.who in (None, record.caller, record.caller.split("/", 1)[-1])
            and self.covers(record.tool)
        )
