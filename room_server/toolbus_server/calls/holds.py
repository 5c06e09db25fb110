"""The calls of one room that wait for a person: who may decide, and whose time stands still.

Pure: the time is passed in, and a change returns what has to be sent. `rooms.hold_requests` handles
the requests and sends it.

A hold stops the time of its call and of all calls around it, as far as their callers are told of
it (HOLD-6). A call that begins within one that stands still does so too, until that one goes on.
Each of these calls has a `CallWait`, which counts the holds: several calls within one call may wait
side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf
from typing import Any, NamedTuple

from toolbus.auth.grants import ToolPatterns
from toolbus.errors import Executed, PermissionDenied, QuotaExceeded
from toolbus.wire import MAX_PURPOSE_CHARS, NO_APPROVAL_LIMIT_MS, Frame, Held, Resumed
from toolbus_server.calls.call_state import (
    CallHold,
    CallWait,
    Connection,
    HeldTool,
    HoldKeeper,
    HoldOutcome,
    InFlightCall,
)
from toolbus_server.registry.call_checks import bad_option
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import (
    Identity,
    Participant,
    RegisteredToolkit,
    name_between,
)

__all__ = [
    "AWAY_S",
    "OTHERS",
    "SETTLED_S",
    "HoldChange",
    "Outgoing",
    "RoomHolds",
    "approval_seconds",
    "calls_around",
    "describe_hold",
    "executed_of",
    "is_named",
    "may_settle",
    "note_read",
    "note_refused",
    "read_hold_options",
    "refusal_of",
    "time_stopped_s",
    "time_waited_s",
]

OTHERS = "others"
"""The entry of `approvers` that excludes those who make the call and whom it is made for."""
MAX_OF_CALLER, MAX_OF_HOST, MAX_OF_ROOM = 64, 1_024, 4_096
"""Open holds: each holds its body, and a person reads one after another (PROTOCOL.md, HOLD-9)."""
MAX_SETTLED, MAX_SETTLED_OF_ASKER = 1_024, 256
"""Settled holds of a room that a late answer can still find (PROTOCOL.md, HOLD-8); those of one
identity, which would displace all others with questions that it withdraws."""
SETTLED_S = 600.0
"""How long it can find them, and how long a decision waits for a caller that is away."""
AWAY_S = 60.0
"""How long a hold is listed whose caller has lost its connection (PROTOCOL.md, HOLD-19): its SDK
has reconnected by then, or does not do so soon."""
_RETRY_AFTER_S = 1.0
# Compiled once for all participants with the same grants.
_patterns_of = lru_cache(maxsize=1024)(ToolPatterns)


class Outgoing(NamedTuple):
    """A frame to be sent."""

    to: Connection
    frame: Frame


class HoldChange(NamedTuple):
    """What follows from a change."""

    frames: list[Outgoing]
    resumed: list[InFlightCall]
    """The calls whose time goes on."""


def approval_seconds(options: Mapping[str, Any]) -> float:
    """Return how long a call, or a host, lets it wait for a person; infinity for no limit."""
    milliseconds: int = options["approval_ms"]
    return inf if milliseconds >= NO_APPROVAL_LIMIT_MS else max(0, milliseconds) / 1000


def read_hold_options(call: InFlightCall, options: Mapping[str, Any]) -> None:
    """Note what a call is for, and how long it may wait. Raises InvalidArguments."""
    call.purpose = options.get("purpose", "")
    if len(call.purpose) > MAX_PURPOSE_CHARS:
        raise bad_option("purpose", f"must have at most {MAX_PURPOSE_CHARS} characters")
    if "approval_ms" in options:
        call.approval_s = approval_seconds(options)


def time_stopped_s(parent: InFlightCall, now: float) -> float:
    """Return for how long the time of a call has stood still; 0 if it runs."""
    wait = parent.wait
    return now - wait.since if wait is not None and wait.count else 0.0


def time_waited_s(call: InFlightCall, now: float) -> float:
    """Return for how long a call has waited for persons."""
    wait = call.wait
    if wait is None:
        return 0.0
    # The time of a caller that is not told of holds does not stand still.
    return max(wait.waited_s + time_stopped_s(call, now), wait.asked_s)


def calls_around(call: InFlightCall | None) -> Iterator[InFlightCall]:
    """Yield a call, the call around it, and so on."""
    around = call
    while around is not None:
        yield around
        around = around.delegation.parent if around.delegation is not None else None


# Who may settle a hold


def may_settle(participant: Participant, hold: CallHold) -> bool:
    """Whether a participant may settle a hold, and is told of it."""
    return _lacking(participant, hold) == ""


def refusal_of(participant: Participant, hold: CallHold) -> PermissionDenied | None:
    """Return why somebody may not settle a hold that knows of it; None for all others.

    Its host and those behind the call know of it. To others there is no such hold.
    """
    knows = participant.identity in {hold.asked_by, *hold.tool.makers}
    if not knows or not _may_see(participant, hold):
        return None
    lacking = _lacking(participant, hold)
    verb, done = ("answer", "answered") if hold.kind == "answer" else ("approve", "approved")
    text = _WHY[lacking].format(tool=hold.tool.name, verb=verb, done=done)
    return PermissionDenied(text, details={"grant": lacking} if lacking in _GRANTS else {})


_GRANTS = ("approve", "answer", "approve_all", "approve_own")
_WHY = {
    "approve": "no grant to approve calls of {tool} (approve)",
    "answer": "no grant to answer calls of {tool} (answer)",
    "approve_all": "no grant to {verb} calls of {tool} that are made for others (approve_all)",
    "approve_own": "who calls for somebody else may not {verb} that call (approve_own)",
    "host": "the host of {tool} may not {verb} its calls: only a token of a development key may",
    OTHERS: "{tool} is {done} by others than those who make the call, or whom it is made for",
    "approvers": "the host of {tool} has named who may {verb} its calls",
}


def _may_see(participant: Participant, hold: CallHold) -> bool:
    """Whether a participant may know of the toolkit. One in a process is in nobody's list."""
    toolkit = hold.tool.toolkit
    return toolkit is None or toolkit.is_visible_to(participant)


def _lacking(participant: Participant, hold: CallHold) -> str:
    """Return what a participant lacks to settle a hold: a grant, or a word of `_WHY`."""
    if not _may_see(participant, hold):
        return "hidden"
    if hold.kind == "granted" and participant.identity == hold.asked_by:
        return ""  # it may ask again about anything at its host
    excluded = _excluded(participant, hold)
    if excluded:
        return excluded
    tool = hold.tool
    if hold.named and not is_named(participant, hold):
        return "approvers"
    covers_all = _patterns_of(participant.scope.approve_all).covers(*tool.names)
    if not hold.named and participant.identity != tool.asked_for:
        return "" if covers_all else "approve_all"
    grant = "answer" if hold.kind == "answer" else "approve"
    covers = covers_all or _patterns_of(getattr(participant.scope, grant)).covers(*tool.names)
    return "" if covers else grant


def _excluded(participant: Participant, hold: CallHold) -> str:
    """Return why somebody may not settle a hold whatever its grants are; empty for most."""
    identity, makers = participant.identity, hold.tool.makers
    if OTHERS in hold.approvers and identity in makers:
        return OTHERS
    if participant.is_developer:  # one person tries all of it on one machine
        return ""
    if identity == hold.asked_by and not hold.is_own:
        return "host"
    is_maker = identity in makers and identity != hold.tool.asked_for
    return "approve_own" if is_maker and not participant.scope.approve_own else ""


def is_named(participant: Participant, hold: CallHold) -> bool:
    """Whether the host of a hold has named a participant as approver, by its role or name."""
    name = name_between(participant.identity, hold.asked_by.issuer)
    return f"name:{name}" in hold.named or f"role:{participant.role}" in hold.named


# What was read may be acted upon


def note_read(hold: CallHold, reader: Identity) -> None:
    """Note that somebody who may settle a hold has read it: an answer is made by acting."""
    hold.read_by.add(reader)
    if hold.kind == "answer" and not hold.is_own and hold.call is not None:
        _wait_of(hold.call, hold.keeper).written = True


def executed_of(hold: CallHold) -> Executed:
    """Return whether what is asked for may have been done, for an end without a decision."""
    return "maybe" if hold.kind == "answer" and hold.read_by else "no"


def note_refused(hold: CallHold, by: Identity) -> None:
    """Note that an answer was refused: who refuses has not acted, but others may have."""
    if hold.kind == "answer" and not hold.is_own and hold.call is not None:
        _wait_of(hold.call, hold.keeper).was_read_by_others |= bool(hold.read_by - {by})


# What others are shown


def describe_hold(hold: CallHold, issuers: Issuers, now: float) -> dict[str, Any]:
    """Describe a hold to those who may settle it, from the tables of the server alone."""
    tool = hold.tool
    shown: dict[str, Any] = {
        "id": hold.id,
        "kind": hold.kind,
        "toolkit": tool.names[0],
        "tool": tool.names[1],
        "owner": _named(tool.owner, issuers),
        "definition": tool.definition,
        "digest": hold.digest,
        "asked_for": _named(tool.asked_for, issuers),
        "age_ms": int((now - hold.opened_at) * 1000),
        "outcome": hold.outcome,
    }
    if tool.caller is not None:
        shown |= {"caller": tool.caller.shown, "call_id": tool.call_id}
    if hold.is_own:
        shown["own"] = True
    if hold.is_away and (hold.by is not None or not hold.ended):
        shown["away"] = True
    if tool.principal is not None:
        shown["on_behalf_of"] = tool.principal.shown
    if tool.forwarded_for:
        shown["forwarded_for"] = [caller.shown for caller in tool.forwarded_for]
    if tool.purpose:
        shown["purpose"] = tool.purpose
    if hold.replaces:
        shown["replaces"] = hold.replaces
    return shown | _standing(hold, now)


def _standing(hold: CallHold, now: float) -> dict[str, Any]:
    """Return how long an open hold waits, or who settled it."""
    if not hold.ended:
        return {} if hold.ends_at == inf else {"left_ms": max(0, int((hold.ends_at - now) * 1000))}
    if hold.by is None:
        return {}
    return {"by": hold.by.shown} | ({"reason": hold.reason} if hold.reason else {})


def _named(identity: Identity, issuers: Issuers) -> dict[str, str]:
    named = {"name": identity.name, "issuer": identity.issuer}
    if alias := issuers.alias_before(identity):
        named["alias"] = alias
    return named


class _Quota(NamedTuple):
    """What a limit of open holds counts."""

    text: str
    limit: int
    identity: Identity | None


def _quotas_of(tool: HeldTool, asker: Identity) -> list[_Quota]:
    """Return where a hold counts. Rules take no places of calls, nor the other way round."""
    if tool.caller is None:
        return [
            _Quota("rules at one host are listed", MAX_OF_HOST, asker),
            _Quota("rules of one room are listed", MAX_OF_ROOM, None),
        ]
    return [
        _Quota("calls at one host wait for a person", MAX_OF_HOST, asker),
        _Quota("calls of one room wait for a person", MAX_OF_ROOM, None),
        _Quota("calls of one caller wait for a person", MAX_OF_CALLER, tool.caller.identity),
    ]


@dataclass(slots=True, eq=False)
class RoomHolds:
    """The holds of one room: those that are open, and those that were settled lately."""

    open: dict[str, CallHold] = field(default_factory=dict)
    """By id, the oldest first."""
    settled: dict[str, CallHold] = field(default_factory=dict)
    """By id, the first settled first."""
    settled_of: Counter[Identity] = field(default_factory=Counter)
    """Their number, by who asked."""
    data_for_node: Callable[[CallHold, bool], dict[str, Any]] = lambda *_: {}
    """Makes what the node of a caller is sent with `Held`, for a hold and whether the function was
    entered before; that node makes of it what its participants are sent."""
    last_number: int = 0
    last_change: int = 0
    """The number of the last change of a hold of this node."""
    last_unlisted: int = 0
    """The last of these after which the hold was, or is now, not listed any more."""
    counts: Counter[_Quota] = field(default_factory=Counter)
    """Open holds, by what limits them."""

    def check_quotas(self, tool: HeldTool, asker: Identity) -> None:
        """Refuse one more hold of a caller, a host or the room. Raises QuotaExceeded."""
        for quota in _quotas_of(tool, asker):
            if self.counts[quota] >= quota.limit:
                text = f"{quota.limit} {quota.text} already"
                raise QuotaExceeded(text, retry_after_s=_RETRY_AFTER_S)

    def begin(
        self,
        hold: CallHold,
        now: float,
        *,
        is_entered: bool,
        has_settlers: bool,
    ) -> HoldChange:
        """Open a hold of this node, and let its call, and those around it, stand still.

        Args:
            hold: The hold.
            now: The time by the loop's clock.
            is_entered: Whether the function of the tool was entered before.
            has_settlers: Whether somebody in the room may settle it.
        """
        asker = hold.open_connection
        asker.usage.held_bytes += len(hold.body)
        asker.asked[hold.request_id] = hold
        hold.replaces = self._lost_hold_of(hold, now)
        self.add(hold)
        return self.stop(hold, now, is_entered=is_entered, has_settlers=has_settlers)

    def add(self, hold: CallHold) -> None:
        """List an open hold, of this node or of another one."""
        self.last_number += 1
        hold.number = self.last_number
        self.open[hold.id] = hold
        self.changed(hold)
        self._count(hold, 1)

    def changed(self, hold: CallHold) -> None:
        """Count a change of a hold, which other nodes are sent if it is one of this node."""
        if not hold.node:
            self.last_change += 1
            hold.changed = self.last_change

    def changes_after(self, change: int) -> list[CallHold]:
        """Return the holds of this node that changed after a change, in this order."""
        listed = (*self.open.values(), *self.settled.values())
        later = (hold for hold in listed if hold.changed > change)
        return sorted(later, key=lambda hold: hold.changed)

    def stop(
        self, hold: CallHold, now: float, *, is_entered: bool, has_settlers: bool
    ) -> HoldChange:
        """Let the time of the call of a hold, and of those around it, stand still at this node."""
        frames: list[Outgoing] = []
        if hold.call is not None:
            wait = _wait_of(hold.call, hold.keeper)
            wait.holds.append(hold)
            if not (is_entered or hold.is_own):
                wait.written = False
        for around in calls_around(hold.call):
            if around.caller.reads_holds and not around.ended:
                _stop(around, hold.keeper, now)
                hold.stopped.append(around)
                if around.caller.participant.is_remote:
                    is_outer = around is not hold.call
                    data = self.data_for_node(hold, is_entered or hold.is_own or is_outer)
                else:
                    data = _shown_to(around.caller.participant, hold, now)
                if not has_settlers:
                    data["nobody"] = True
                frames.append(Outgoing(around.caller, Held(around.request_id, data)))
        return HoldChange(frames, [])

    def settle(self, hold: CallHold, outcome: HoldOutcome, now: float) -> HoldChange:
        """End an open hold of this node, and let go on what stands still because of it alone."""
        asker = hold.open_connection
        asker.usage.held_bytes -= len(hold.body)
        del asker.asked[hold.request_id]
        self.close(hold, outcome, now)
        return self.release(hold, outcome, now)

    def close(self, hold: CallHold, outcome: HoldOutcome, now: float) -> None:
        """List a hold as settled; what stands still because of it does so until `release`."""
        del self.open[hold.id]
        self._count(hold, -1)
        hold.outcome, hold.settled_at, hold.body = outcome, now, b""
        self.changed(hold)
        if hold.kind != "granted" or outcome == "taken_back":  # a decision that may come again
            self.settled[hold.id] = hold
            self.settled_of[hold.asked_by] += 1
            if self.settled_of[hold.asked_by] > MAX_SETTLED_OF_ASKER:
                same = (old for old in self.settled.values() if old.asked_by == hold.asked_by)
                self.forget(next(same))
            self.drop_old(now)
        else:
            self.last_unlisted = max(self.last_unlisted, hold.changed)
        hold.asker = None
        # What has ended is not held in memory for `SETTLED_S`: a call, connections, a definition.
        if isinstance(hold.tool.toolkit, RegisteredToolkit):
            hold.tool = hold.tool._replace(toolkit=hold.tool.toolkit.visibility)

    def release(self, hold: CallHold, outcome: HoldOutcome, now: float) -> HoldChange:
        """Let go on at this node what stands still because of a hold alone."""
        if hold.call is not None and hold.call.wait is not None:
            hold.call.wait.holds.remove(hold)
            if not hold.is_own:
                hold.call.wait.outcome = outcome
            if not (hold.is_own or hold.node):
                hold.call.wait.asked_s += now - hold.opened_at
        change = HoldChange([], [])
        for call in hold.stopped:
            if not call.ended or call is hold.call:
                data = _known_to(call.caller.participant, hold) | {"outcome": outcome}
                if hold.is_changed:
                    data["changed"] = True
                _go_on(call, now, change, data)
        hold.stopped.clear()
        hold.call = None
        return change

    def drop_old(self, now: float) -> None:
        """Forget the settled holds that are too old, or too many."""
        while self.settled:
            oldest = next(iter(self.settled.values()))
            if len(self.settled) <= MAX_SETTLED and now - oldest.settled_at < SETTLED_S:
                return
            self.forget(oldest)

    def forget(self, hold: CallHold) -> None:
        """List a settled hold no more."""
        del self.settled[hold.id]
        self.last_unlisted = max(self.last_unlisted, hold.changed)
        self.settled_of[hold.asked_by] -= 1
        if not self.settled_of[hold.asked_by]:
            del self.settled_of[hold.asked_by]

    def _count(self, hold: CallHold, sign: int) -> None:
        for quota in _quotas_of(hold.tool, hold.asked_by):
            self.counts[quota] += sign
            if not self.counts[quota]:
                del self.counts[quota]

    def is_asked_again(self, hold: CallHold) -> bool:
        """Whether a later attempt of its call waits too: its caller is back already."""
        later = (other for other in self.open.values() if other.number > hold.number)
        return any(_is_same_call(hold.tool, other.tool) for other in later)

    def _lost_hold_of(self, hold: CallHold, now: float) -> str:
        """Return the hold of an earlier attempt of the call, if its host or caller was lost."""
        self.drop_old(now)
        for former in reversed(self.settled.values()):
            if _is_same_call(hold.tool, former.tool):
                return former.id if former.is_away or former.outcome == "lost" else ""
        return ""


def _is_same_call(one: HeldTool, other: HeldTool) -> bool:
    if one.caller is None or other.caller is None or not one.call_id:
        return False
    return one.call_id == other.call_id and one.caller.identity == other.caller.identity


def call_began(call: InFlightCall, parent: InFlightCall, keeper: HoldKeeper, now: float) -> Frame:
    """Let a call stand still that begins within one that does; return what tells its caller."""
    assert parent.wait is not None, "the call around it stands still"
    parent.wait.begun[call] = None
    _stop(call, keeper, now)
    return Held(call.request_id, {})


def _wait_of(call: InFlightCall, keeper: HoldKeeper) -> CallWait:
    if call.wait is None:
        call.wait = CallWait(keeper)
    return call.wait


def _stop(call: InFlightCall, keeper: HoldKeeper, now: float) -> None:
    wait = _wait_of(call, keeper)
    if not wait.count:
        wait.since = now
    wait.count += 1


def _go_on(call: InFlightCall, now: float, change: HoldChange, data: dict[str, Any]) -> None:
    """Count one hold less for a call; with the last one its deadline moves, and its time goes on.

    Its caller is sent the length of the wait, by which it moves its own deadline.
    """
    wait = call.wait
    assert wait is not None, "its time stood still"
    wait.count -= 1
    waited_s = 0.0
    if not wait.count:
        waited_s = now - wait.since
        wait.waited_s += waited_s
        call.deadline_at += waited_s
        if call.streams is not None:
            # What was silent before goes on to count; what moved meanwhile has moved just now.
            call.streams.active_at = min(call.streams.active_at, wait.since) + waited_s
        change.resumed.append(call)
    # A call that has ended is sent this before its end, as a retry of it goes by the new deadline.
    resumed = Resumed(call.request_id, ceil(waited_s * 1000), data)
    change.frames.append(Outgoing(call.caller, resumed))
    if not wait.count:
        begun = list(wait.begun)
        wait.begun.clear()
        for nested in begun:
            _go_on(nested, now, change, {})


def _shown_to(informed: Participant, hold: CallHold, now: float) -> dict[str, Any]:
    """Return what the caller of a call that waits, or around one that does, may know of that."""
    data = _known_to(informed, hold) | {"kind": hold.kind}
    if hold.ends_at != inf:
        data["left_ms"] = max(0, int((hold.ends_at - now) * 1000))
    if may_settle(informed, hold):
        data["may_settle"] = True
    return data


def _known_to(informed: Participant, hold: CallHold) -> dict[str, Any]:
    tool = hold.tool
    is_readable = _may_see(informed, hold) and informed.rights.may_read(*tool.names)
    return {"hold": hold.id, "tool": tool.name} if is_readable else {"hold": hold.id}
