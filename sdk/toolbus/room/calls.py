"""What a room says about calls: which host would run one, and how those of others ended.

Values only. Reports are for participants with the grant `observe`, and never contain arguments or
results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolbus.auth.participant_names import full_name
from toolbus.errors import ERRORS, Executed, PermissionDenied, RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.telemetry.propagation import parse_traceparent
from toolbus.tools.tool_run import Participant
from toolbus.wire import pack_body, unpack_body

__all__ = ["CallExplanation", "CallReport", "EndedCall", "WaitingCall"]

_NONE = pack_body([])
"""What an older server says of calls that wait."""


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """The decision about a call that was not made: the server's, and that of the host's policy."""

    would_run: bool
    """Whether the call would be sent to a host now."""
    host: Participant | None = None
    """The host that would run it; with several hosts the next call may go to another one."""
    hosts: int = 0
    """How many connections serve the toolkit."""
    generation: int = 0
    """The number of the definition, counting those that the toolkit's owner registered."""
    digest: str = ""
    """The digest of the definition that would run."""
    affinity: bool = False
    """Whether the tool has an affinity: calls that belong together go to one host."""
    node: str = ""
    """The node that the host is connected to, if there are several."""
    assesses: bool = False
    """Whether that host answers `Room.assess` itself."""
    approval: bool = False
    """Whether the tool is one of which a person approves each call."""
    external: bool = False
    """Whether a person, or a program outside the host, gives the result of the tool."""
    code: str = ""
    """The code of the error that the call would end with."""
    message: str = ""
    """The message of that error."""
    details: dict[str, Any] = field(default_factory=dict)
    """The details of that error."""
    assessment: Assessment | None = None
    """What the tool says about these arguments; None if it was not asked, or did not answer."""

    @property
    def asks(self) -> str:
        """Why a person would be asked before the call runs, as far as that is known; else empty.

        The host says it about arguments: its policy may ask too, and what a person has allowed
        always is asked no more. Else the flags of the tool say it.
        """
        if self.assessment is not None and self.assessment.asks:
            return self.assessment.asks
        if self.external:
            return "somebody outside its host gives the result of each call"
        if self.assessment is not None and self.assessment.source == "tool":
            return ""
        return "the tool asks that a person approves each call" if self.approval else ""

    def error(self) -> RoomException:
        """Make the error that the call would end with."""
        kind = ERRORS.get(self.code, RoomException)
        return kind(self.message, executed="no", details=self.details)

    def assessed(self, assessment: Assessment, tool: str) -> CallExplanation:
        """Return this with what the tool says; a call that its policy refuses would not run."""
        if not assessment.refusal:
            return replace(self, assessment=assessment)
        return replace(
            self,
            would_run=False,
            code=PermissionDenied.code,
            message=f"the policy of its host refuses {tool}: {assessment.refusal}",
            details={"source": "policy"},
            assessment=assessment,
        )

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> CallExplanation:
        """Decode the server's reply."""
        if not body["would_run"]:
            return cls(False, code=body["code"], message=body["message"], details=body["details"])
        host = body["host"]
        identity = (host["name"], host["role"], host["issuer"], host.get("alias", ""))
        return cls(
            True,
            host=Participant(host["id"], *identity),
            hosts=body["hosts"],
            generation=body["generation"],
            digest=body["digest"],
            affinity=body["affinity"],
            node=body.get("node", ""),
            assesses=body.get("assesses") is True,
            approval=body.get("approval") is True,
            external=body.get("external") is True,
        )


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended, as the server recorded it."""

    call_id: str
    """The id that the caller chose; the same for every attempt of one call."""
    caller: str
    """The name of the participant that made the call; `alias/name` beside other issuers."""
    caller_id: str
    """The id of the caller's connection."""
    toolkit: str
    """The toolkit's name; for a refused call the text that the caller sent."""
    tool: str
    """The tool's name; for a refused call the text that the caller sent."""
    host: str | None
    """The host's name, likewise; None for a call that was refused before it reached a host."""
    host_id: str | None
    """The id of the host's connection."""
    code: str | None
    """The code of the error; None for a result."""
    executed: Executed
    """Whether the tool ran, as reported to the caller."""
    duration_s: float
    """Seconds from its arrival at the server to its end there; 0 for a refused call."""
    trace_id: str | None
    """The trace id, 32 hex digits, if the call was sampled."""
    parent_id: str | None = None
    """The id of the call whose tool made this one; None for any other, and from older servers."""
    held_s: float = 0.0
    """Seconds of `duration_s` in which it waited for a person, or a call within it did."""
    outcome: str = ""
    """How that ended, if its host asked: "approved", "denied", "answered", "expired", "cancelled",
    "lost"."""

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> EndedCall:
        """Decode a call. Raises ValueError or TypeError for invalid fields.

        Trailing fields that this release does not know are ignored.
        """
        call_id, caller, toolkit, tool, host, code, executed, duration_us, traceparent = fields[:9]
        (caller_id, caller_name), (host_id, host_name) = _seen(caller), _seen(host)
        trace = parse_traceparent(traceparent)
        more = dict(zip(("parent", "held_us", "outcome"), fields[9:], strict=False))
        return cls(
            call_id=call_id,
            caller=caller_name,
            caller_id=caller_id,
            toolkit=toolkit,
            tool=tool,
            host=host_name,
            host_id=host_id,
            code=code,
            executed=executed,
            duration_s=duration_us / 1e6,
            trace_id=trace and f"{trace.trace_id:032x}",
            parent_id=more.get("parent"),
            held_s=more.get("held_us", 0) / 1e6,
            outcome=more.get("outcome") or "",
        )


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits for a person, or has just ended to do so."""

    hold_id: str
    """The id of the approval."""
    call_id: str
    """The id that the caller chose."""
    toolkit: str
    tool: str
    caller: str
    """The name of the participant that makes the call; `alias/name` beside other issuers."""
    host: str
    """The name of who asks, likewise: its host, or the caller before it makes the call."""
    outcome: str
    """"open" while it waits; then "approved", "denied", "answered", "expired", "cancelled",
    "lost"."""
    held_s: float
    """For how long it has waited, in seconds."""

    @property
    def is_open(self) -> bool:
        """Whether it waits."""
        return self.outcome == "open"

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> WaitingCall:
        """Decode one, as `EndedCall.from_wire` does."""
        hold_id, call_id, toolkit, tool, caller, host, outcome, held_us = fields[:8]
        return cls(hold_id, call_id, toolkit, tool, caller, host, outcome, held_us / 1e6)


@dataclass(frozen=True, slots=True)
class CallReport:
    """The calls of a room since the previous report."""

    in_flight: int
    """Calls that are in flight now."""
    started: int
    """Calls that arrived, including refused ones."""
    ended: int
    """Calls that ended."""
    failed: int
    """Calls that ended with an error."""
    calls: tuple[EndedCall, ...] = ()
    """Ended calls, at most 200; failed ones have priority."""
    held: int = 0
    """Calls that wait for a person now, with those that are about to be made."""
    waiting: tuple[WaitingCall, ...] = ()
    """These, the oldest 100, and those that have ended to wait, at most 100."""
    has_gap: bool = False
    """Whether reports before this one may be lost, after a reconnect or because the reader was too
    slow."""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> CallReport:
        """Decode an event's data. Raises LookupError, TypeError or ValueError for invalid data."""
        return cls(
            in_flight=data["in_flight"],
            started=data["started"],
            ended=data["ended"],
            failed=data["failed"],
            calls=tuple(map(EndedCall.from_wire, unpack_body(data["calls"]))),
            held=data.get("held", 0),
            waiting=tuple(map(WaitingCall.from_wire, unpack_body(data.get("holds", _NONE)))),
        )


def _seen(participant: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the id and the name to show of a participant, which has an alias or not."""
    if participant is None:
        return None, None
    return participant[0], full_name(participant[1], "".join(participant[3:4]))
