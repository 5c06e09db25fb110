"""Handles the requests about calls that wait for a person: hold, list, read, settle.

What follows from a change is in `calls.holds`. Here are the checks of the requests, the timers and
the order of what is sent: first callers learn that a call goes on, then its host gets the decision,
and last the subscribers of the topic.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import shield
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf
from typing import Any

from toolbus.auth.grants import covers_topic, is_tool_name, is_toolkit_name
from toolbus.auth.participant_names import MAX_NAME_CHARS, full_name
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import (
    AlreadyExists,
    ApprovalExpired,
    Cancelled,
    HostLost,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.wire import (
    MAX_HOLD_BYTES,
    MAX_PURPOSE_CHARS,
    MAX_REASON_CHARS,
    Frame,
    Hold,
    Holds,
    Result,
    Resumed,
    Settle,
    encode,
    failed,
)
from toolbus_server import identity_usage
from toolbus_server.calls.call_state import (
    CallHold,
    Connection,
    HeldTool,
    HoldAnswer,
    HoldOutcome,
    InFlightCall,
    Replication,
    RoutedRoom,
    ShownParticipant,
)
from toolbus_server.calls.delegation import has_authority
from toolbus_server.calls.holds import (
    OTHERS,
    HoldChange,
    RoomHolds,
    approval_seconds,
    call_began,
    calls_around,
    describe_hold,
    executed_of,
    is_named,
    may_settle,
    note_read,
    note_refused,
    refusal_of,
)
from toolbus_server.calls.router import Router
from toolbus_server.registry.call_checks import (
    MAX_PAGE_BYTES,
    bad_option,
    check_pin,
    cursor_text,
    need_grant,
    page_limit,
    read_cursor,
    read_option,
)
from toolbus_server.registry.models import Identity, Participant, read_name_between
from toolbus_server.rooms.away_holds import AwayHolds
from toolbus_server.rooms.event_feed import EventFeeds
from toolbus_server.rooms.scheduling import Walk, pack_reply

__all__ = ["HoldRequests"]

_logger = bounded_logger(__name__)

MAX_GRANTED_BYTES = 16 * 1024
"""A rule that was granted: lists show the rules in full (PROTOCOL.md, HOLD-13)."""
MAX_APPROVERS = 256
"""Each is compared with each participant that may settle, as those of `shared_with`."""
MAX_APPROVERS_CHARS = 8_192
"""Of all entries: they stay with a settled hold, of which a room has 1,024."""
MAX_RULES_BYTES = 64 * 1024
"""The rules that are granted with an approval; each has a pattern of at most 4 KiB."""
_DIGEST_BYTES = 32
_OUTCOMES: Mapping[str, Mapping[str, HoldOutcome]] = {
    "approve": {"approve": "approved", "deny": "denied"},
    "answer": {"answer": "answered", "deny": "denied"},
    "granted": {"take_back": "taken_back"},
}
"""What follows from each decision about a hold, by its kind."""
_ACKNOWLEDGED_S = 5.0
"""How long the node of a caller has to say that it knows that the call goes on, and to end it after
the hold's own end: a message between nodes arrives in milliseconds, or not at all."""


class HoldRequests:
    """Handles the requests of one room; tells the room's feeds of holds."""

    def __init__(
        self,
        room: RoutedRoom,
        feeds: EventFeeds,
        router: Router,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._room = room
        self._feeds = feeds
        self._router = router
        self._loop = loop
        self._decisions: dict[str, _Decision] = {}
        """What was decided, by the id of its hold, while the node of a caller has not read it."""
        self.table: RoomHolds = RoomHolds(data_for_node=self._data_for_node)
        self.away: AwayHolds = AwayHolds(loop, self.withdraw)
        """The holds whose callers are away."""
        feeds.monitor.holds = self.table.open

    # Requests of askers

    def hold(self, asker: Connection, request: Hold) -> None:
        """Let something wait for a person; the decision is the reply, sent later.

        Raises:
            Unavailable: The host, or this server, leaves.
            PermissionDenied: The call is not one that the participant runs.
            NotFound: There is no such toolkit or tool.
            DefinitionChanged: The toolkit is not the one that is asked about.
            InvalidArguments: A field is invalid, or the call waits already.
            TooLarge: There is more to show than fits.
            QuotaExceeded: Too many calls wait.
            ApprovalExpired: The call may not wait at all.
        """
        _check_fields(request)
        if request.id in asker.asked:
            raise bad_option("id", "is that of an open hold")
        call = _call_of(asker, request)
        is_own = request.kind != "granted" and "tool" in request.options
        tool = self._tool_of(asker, request, call)
        is_entered = bool(read_option(request.options, "entered", bool))
        is_entered = is_entered or (call is not None and call.has_sent)
        goes_on = request.kind == "granted" or (is_entered and not is_own)
        if not (goes_on or self._router.may_wait(asker, None if is_own else call)):
            raise self._router.leaving_error(is_nested=_is_nested(call, is_own=is_own))
        approvers = self._read_approvers(asker, request.options)
        former = None if is_own or call is None else self.away.end(tool)
        self.table.check_quotas(tool, asker.participant.identity)
        if asker.usage.held_bytes + len(request.body) > identity_usage.MAX_HELD_BYTES:
            raise QuotaExceeded("too much waits for a person at the hosts of this identity")
        now = self._loop.time()
        ends_at = now + _waiting_s(call, request, is_own=is_own)
        if ends_at <= now:
            raise ApprovalExpired("the call does not wait for a person", executed="no")
        ends_at = min([ends_at, *_deadlines_of(call)])
        hold = CallHold(
            id=secrets.token_hex(8),
            number=0,
            keeper=self,
            kind=request.kind,
            tool=tool,
            asked_by=asker.participant.identity,
            asker=asker,
            request_id=request.id,
            call=call,
            is_own=is_own,
            digest=request.digest,
            body=request.body,
            approvers=approvers,
            named=frozenset(approvers) - {OTHERS},
            opened_at=now,
            ends_at=ends_at,
        )
        # Only the callers of a call are told; without one, nobody is looked for.
        has_settlers = call is None or any(may_settle(who, hold) for who in self._candidates(hold))
        self._send(self.table.begin(hold, now, is_entered=is_entered, has_settlers=has_settlers))
        self._expire_at(ends_at, hold)
        self._router.holds.begin(hold)
        self._publish("hold_added", hold)
        if former is not None and (decision := former.decision_about(hold)):
            self._pass_on(hold, former.hold.outcome, Result(request.id, decision))

    def _tool_of(self, asker: Connection, request: Hold, call: InFlightCall | None) -> HeldTool:
        """Return what a request is about: the call that the asker runs, or one that it makes."""
        options, state = request.options, self._room.state
        name = read_option(options, "tool", str)
        if name is None:
            return _tool_of_call(call)
        toolkit_name, _, tool_name = name.partition(".")
        definition = read_option(options, "definition", str) or ""
        if not (is_toolkit_name(toolkit_name) and is_tool_name(tool_name)) or len(definition) > 64:
            raise bad_option("tool", "must be toolkit.tool, with the digest of its definition")
        names, identity = (toolkit_name, tool_name), asker.participant.identity
        if request.kind == "granted":
            public = read_option(options, "public", bool) is True
            toolkit = state.own(identity, toolkit_name, public)
            if toolkit is None:
                raise NotFound("this participant hosts no such toolkit")
            asked_for = [read_option(options, key, str) or "" for key in ("issuer", "name")]
            if max(map(len, asked_for)) > MAX_NAME_CHARS:
                raise bad_option("name", f"must have at most {MAX_NAME_CHARS} characters")
            return HeldTool(toolkit, names, identity, definition, None, Identity(*asked_for))
        toolkit, owner = None, identity
        if not read_option(options, "local", bool):
            named = read_option(options, "participant", str)
            toolkit = state.resolve(asker.participant, toolkit_name, named)
            owner = toolkit.owner
            definition = definition or toolkit.serving.definition.digest
            check_pin(toolkit, definition)  # it is shown as what the server itself knows
            if toolkit.serving.definition.tool(tool_name) is None:
                raise NotFound(f"tool {name} not found")
        principal = None if call is None else call.asked_for
        if principal is not None and principal.identity == identity:
            principal = None
        purpose = read_option(options, "purpose", str) or ""
        return HeldTool(
            toolkit,
            names,
            owner,
            definition,
            ShownParticipant.of(asker.participant),
            identity if principal is None else principal.identity,
            None if principal is None else ShownParticipant.of(principal),
            call_id=(read_option(options, "call_id", str) or "")[:64],
            purpose=purpose[:MAX_PURPOSE_CHARS],
        )

    def _read_approvers(self, host: Connection, options: Mapping[str, Any]) -> tuple[str, ...]:
        given = read_option(options, "approvers", list) or []
        if len(given) > MAX_APPROVERS or not all(map(_is_approver, given)):
            raise bad_option("approvers", "must be a list of name:x, role:x or others")
        if sum(map(len, given)) > MAX_APPROVERS_CHARS:
            raise bad_option("approvers", f"must have at most {MAX_APPROVERS_CHARS} characters")
        identity = host.participant.identity
        return tuple(self._room.state.issuers.read_share(entry, identity) for entry in given)

    def _candidates(self, hold: CallHold) -> Iterator[Participant]:
        """Return those of whom one may settle a hold, the likely ones first."""
        state = self._room.state
        yield from state.participants_of(hold.tool.asked_for)
        for participant in state.participants(None):  # there may be 10,000 without such a grant
            scope = participant.scope
            own = scope.answer if hold.kind == "answer" else scope.approve
            if scope.approve_all or (hold.named and own and is_named(participant, hold)):
                yield participant

    # The ends of a hold

    def _expire_at(self, when: float, hold: CallHold) -> None:
        if when != inf:
            # A timer of its own: once it is cancelled, it refers to nothing, also not to the room.
            hold.timer = self._loop.call_at(when, self._expire, hold)

    def _expire(self, hold: CallHold) -> None:
        if hold.node:
            if hold.call is not None:
                lost = Unavailable("the server of the host does not say whether the call goes on")
                self._router.abort(hold.call, lost, "lost")
            return
        done = "answered" if hold.kind == "answer" else "decided about the call"
        text = f"nobody has {done} in time"
        details = {"hold": hold.id, "kind": hold.kind}
        error = ApprovalExpired(text, executed=executed_of(hold), details=details)
        self._end(hold, "expired", failed(hold.request_id, error))

    def call_ended(self, call: InFlightCall) -> None:
        """End the holds of a call that has ended, before its caller gets the end."""
        wait = call.wait
        assert wait is not None, "it has waited for a person"
        parent = None if call.delegation is None else call.delegation.parent
        if parent is not None and parent.wait is not None:
            parent.wait.begun.pop(call, None)
        wait.ended = True
        may_be_away = wait.may_be_made_again and call.executed == "no"
        for hold in list(wait.holds):
            is_decided = hold.is_own or hold.id in self._decisions
            waits = may_be_away and not is_decided and not self.table.is_asked_again(hold)
            if hold.node:
                self._release(hold, "cancelled")
            elif waits and hold.open_connection.participant.is_present:
                self._caller_lost(call, hold)
            else:
                self.withdraw(hold)

    def _caller_lost(self, call: InFlightCall, hold: CallHold) -> None:
        """List a hold a while longer; its host waits for the decision no more."""
        self._send(self.table.release(hold, "cancelled", self._loop.time()))
        error = Cancelled("the caller disconnected", executed="no")
        hold.open_connection.port.send_message(encode(failed(hold.request_id, error)))
        self.away.add(hold, call.caller.participant)
        self.table.changed(hold)
        self._publish("hold_added", hold)

    def withdraw(self, hold: CallHold) -> None:
        """End a hold whose asker does not wait for the decision any more."""
        outcome: HoldOutcome = "cancelled"
        error: RoomException = Cancelled("the call has ended", executed=executed_of(hold))
        if not hold.open_connection.participant.is_present:
            outcome = "lost"
            error = HostLost("the host disconnected", executed=executed_of(hold))
        self._end(hold, outcome, failed(hold.request_id, error))

    def leave(self, hold: CallHold) -> None:
        """End a hold as lost: its host, or this server, leaves and waits for no person."""
        if hold.node:  # which ends it too, by the cancel of the call
            self._release(hold, "lost")
            return
        error = self._router.leaving_error(is_nested=_is_nested(hold.call, is_own=hold.is_own))
        self._end(hold, "lost", failed(hold.request_id, error))

    def _end(
        self,
        hold: CallHold,
        outcome: HoldOutcome,
        reply: Frame,
        ticket: Any = None,
        knows: Connection | None = None,
    ) -> None:
        """End a hold of this node; `knows` is a caller that knows already that it goes on."""
        asker, decision = hold.open_connection, self._decisions.pop(hold.id, None)
        if decision is not None:
            hold.by = hold.answer = None
        change = self.table.settle(hold, outcome, self._loop.time())
        self._send(change._replace(frames=[sent for sent in change.frames if sent.to is not knows]))
        _cancel_timer(hold)
        self._router.holds.end(hold)
        if hold.is_away:
            self.away.hold_ended(hold)
        else:
            asker.port.send_message(encode(reply), ticket)
        self._publish("hold_settled", hold)
        if decision is not None:
            decision.end(_settled_error(hold))

    def call_began(self, call: InFlightCall, parent: InFlightCall) -> None:
        """Let a call stand still that began within one that does."""
        if parent.stands_still and call.caller.reads_holds:
            frame = call_began(call, parent, self, self._loop.time())
            call.caller.port.send_message(encode(frame))

    def _send(self, change: HoldChange) -> None:
        for connection, frame in change.frames:
            connection.port.send_message(encode(frame))
        for call in change.resumed:
            self._router.resume(call)

    def _publish(self, name: str, hold: CallHold) -> None:
        if hold.kind != "granted":
            self._feeds.publish_hold(name, hold)
        if self._room.replication is not None and not hold.node:
            self._room.replication.publish_hold(hold)

    # Holds of other nodes: the host is there, and decides who has a part in it here

    @property
    def _replication(self) -> Replication:
        assert self._room.replication is not None, "it is shared with other nodes"
        return self._room.replication

    def _data_for_node(self, hold: CallHold, is_entered: bool) -> dict[str, Any]:
        return self._replication.wait_data(hold, is_entered=is_entered)

    def receive(self, hold: CallHold) -> None:
        """List a hold that another node has published, or that it was settled."""
        known = self.table.open.get(hold.id) or self.table.settled.get(hold.id)
        if known is not None and _name_of(known.node) != _name_of(hold.node):
            _logger.error("two nodes have a hold %s: that of %s counts", hold.id, known.node)
            return
        if known is not None and known.outcome == "lost":
            self.table.forget(known)  # its node was perhaps away, and knows how it stands
            known = None
        if known is None:
            outcome, hold.outcome = hold.outcome, "open"
            self.table.add(hold)
            if outcome == "open":
                if not (hold.is_own or hold.kind == "granted"):
                    self.away.end(hold.tool)  # a host there asks now
                self._publish("hold_added", hold)
            else:  # it ended before this node heard of it
                self.table.close(hold, outcome, self._loop.time())
            return
        known.node = hold.node  # it may have another lease now
        if hold.is_away and not (known.is_away or hold.ended or known.ended):
            known.is_away, known.ends_at = True, hold.ends_at
            self._publish("hold_added", known)
        if hold.ended and not known.ended:
            known.by, known.reason, known.is_changed = hold.by, hold.reason, hold.is_changed
            self._close(known, hold.outcome)

    def _close(self, hold: CallHold, outcome: HoldOutcome) -> None:
        self.table.close(hold, outcome, self._loop.time())
        self._publish("hold_settled", hold)

    def close_elsewhere(self, node: str, remaining: Iterable[str] = ()) -> None:
        """End the holds of a node, all but some: they have ended there, or the node has."""
        beyond = set(remaining)
        for hold in list(self.table.open.values()):
            if hold.node == node and hold.id not in beyond:
                self._close(hold, "lost")

    def held_elsewhere(self, call: InFlightCall, hold: CallHold, data: Mapping[str, Any]) -> None:
        """Let a call stand still whose host, or one within it, is at another node and asks."""
        if hold.id not in self.table.open and hold.id not in self.table.settled:
            self.receive(replace(hold))
        # What is listed has no call: one hold may stop several calls of this node, and its own.
        hold.call = call
        # Who has read a question, the other node alone knows (HOLD-17).
        is_entered = data["entered"] or hold.kind == "answer"
        change = self.table.stop(
            hold,
            self._loop.time(),
            is_entered=is_entered,
            has_settlers="nobody" not in data,
        )
        self._send(change)
        self._expire_at(hold.ends_at + _ACKNOWLEDGED_S, hold)
        self._router.end_held(call)

    def resumed_elsewhere(self, call: InFlightCall, data: dict[str, Any]) -> None:
        """Let a call go on; from an approval on its host may enter the function."""
        wait, outcome = call.wait, data["outcome"]
        for hold in [] if wait is None else list(wait.holds):
            if hold.id == data["hold"]:
                hold.is_changed = data.get("changed") is True
                if outcome == "approved" and not hold.is_own and wait is not None:
                    wait.written = True
                self._release(hold, outcome)

    def _release(self, hold: CallHold, outcome: HoldOutcome) -> None:
        """Let go on at this node what a hold of another one has stopped."""
        change = self.table.release(hold, outcome, self._loop.time())
        hold.outcome = outcome
        _cancel_timer(hold)
        self._send(change)

    async def answer_elsewhere(
        self, connection: Connection, request: Holds | Settle
    ) -> dict[str, Any]:
        """Answer the request of a participant of another node about a hold of this one.

        Raises as `holds` and `settle`.
        """
        if isinstance(request, Settle):
            answer = self.settle(connection, request)
        else:
            participant, wanted = connection.participant, request.options["hold"]
            answer = self._read(participant, self._found(participant, wanted), request)
        return answer if isinstance(answer, dict) else await answer

    # Requests of approvers

    def holds(self, connection: Connection, request: Holds) -> Walk:
        """Return a page of the holds that a participant may settle, or one with its body.

        Raises:
            Unavailable: The node of the host does not answer.
            PermissionDenied: It may settle none.
            InvalidArguments: An option is invalid.
            NotFound: There is no such hold, or it is not for this participant.
        """
        participant, options = connection.participant, request.options
        need_grant(covers_topic(participant.scope, "holds"), "list approvals", "approve")
        wanted = read_option(options, "hold", str)
        if wanted is not None:
            return self._read(participant, self._found(participant, wanted), request)
        kind = read_option(options, "kind", str)
        with_settled = read_option(options, "settled", bool)
        limit, cursor = page_limit(options), read_cursor(options, (str,))
        # Not the number itself: it would show how many holds there are that others settle.
        after = 0 if cursor is None else self._found(participant, cursor[0]).number
        page: list[dict[str, Any]] = []
        size = 0
        self.table.drop_old(self._loop.time())
        listed = [*self.table.open.values()]
        if with_settled:
            listed = sorted((*self.table.settled.values(), *listed), key=lambda hold: hold.number)
        for hold in listed:
            yield
            is_wanted = hold.kind == kind if kind else hold.kind != "granted"
            if hold.number <= after or not is_wanted or not may_settle(participant, hold):
                continue
            if page and (len(page) == limit or size > MAX_PAGE_BYTES):
                return {"holds": page, "cursor": cursor_text((page[-1]["id"],))}
            asked = self._asked(hold) if hold.kind == "granted" else {}
            page.append(self._described(hold) | asked)
            size += len(pack_reply(page[-1]))
        return {"holds": page, "cursor": None}

    def _read(
        self, participant: Participant, hold: CallHold, request: Holds
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return a hold with its body, which the node of its host has."""
        if hold.node and not hold.ended:
            return self._replication.ask_holder(hold, participant, request)
        note_read(hold, participant.identity)
        return {"hold": self._described(hold) | self._asked(hold)}

    def _described(self, hold: CallHold) -> dict[str, Any]:
        return describe_hold(hold, self._room.state.issuers, self._loop.time())

    def _asked(self, hold: CallHold) -> dict[str, Any]:
        """Return what was asked, and whom the asker wants to decide, of an open hold."""
        if hold.ended:
            return {}
        issuers, issuer = self._room.state.issuers, hold.asked_by.issuer
        approvers = []
        for entry in hold.approvers:
            kind, _, name = entry.partition(":")
            if kind == "name":
                named = read_name_between(name, issuer)
                entry = f"name:{full_name(named.name, issuers.alias_before(named))}"
            approvers.append(entry)
        return {"body": hold.body, "approvers": approvers}

    def _found(self, participant: Participant, hold_id: str) -> CallHold:
        """Return a hold that a participant may settle, settled ones too.

        Raises `PermissionDenied` for those who know of it otherwise. All others cannot distinguish
        it from one that does not exist.
        """
        self.table.drop_old(self._loop.time())
        hold = self.table.open.get(hold_id) or self.table.settled.get(hold_id)
        if hold is not None:
            if may_settle(participant, hold):
                return hold
            refusal = refusal_of(participant, hold)
            if refusal is not None:
                raise refusal
        raise NotFound("there is no approval with this id")

    def settle(
        self, connection: Connection, request: Settle
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Decide about a hold; the first decision counts.

        If other nodes have a part in it, the reply is there once they have answered.

        Raises:
            Unavailable: The node of the host, or that of the caller, does not answer.
            NotFound: As `holds`.
            PermissionDenied: The participant knows of it and may not settle it, or may not call
                the tool with other arguments.
            InvalidArguments: An option is invalid, or it is about something else.
            AlreadyExists: It was settled otherwise; the details say how, and by whom.
        """
        participant = connection.participant
        hold = self._found(participant, request.hold)
        answer = self._read_answer(participant, hold, request)
        if hold.node:
            return self._replication.ask_holder(hold, participant, request)
        # The end of the hold, or of its call, may wait for its turn.
        if not hold.ended and hold.ends_at <= self._loop.time():
            self._expire(hold)
        elif not (hold.call is None or has_authority(self._room, hold.call)):
            self.withdraw(hold)
        if hold.by is not None or hold.ended:
            return self._repeated(hold, participant.identity, answer)
        outcome = _OUTCOMES[hold.kind][request.decision]
        by = ShownParticipant.of(participant)
        reply = _reply_of(hold, by, outcome, request.options)
        if hold.is_away:
            self.away.decide(hold, participant, reply.body)
        hold.by, hold.answer, hold.is_changed = by, answer, answer.arguments is not None
        return self._pass_on(hold, outcome, reply)

    def _pass_on(
        self, hold: CallHold, outcome: HoldOutcome, reply: Result
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """End a hold by a decision, and reply to its asker."""
        assert hold.by is not None, "somebody has decided"
        by = hold.by.identity
        if outcome == "answered":
            note_read(hold, by)  # what a list shows suffices to answer
        elif outcome == "denied":
            note_refused(hold, by)
        entering = hold.call if outcome != "denied" and not hold.is_own else None
        if entering is None:
            self._end(hold, outcome, reply)
        elif outcome == "approved" and entering.caller.participant.is_remote:
            return self._approve_at(entering, hold, reply)
        else:
            self._end(hold, outcome, reply, entering.wait)
        return {"outcome": outcome}

    def _repeated(
        self, hold: CallHold, identity: Identity, answer: HoldAnswer
    ) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return the reply to the same answer once more. Raises `AlreadyExists` for another."""
        if hold.by is None or (hold.by.identity, hold.answer) != (identity, answer):
            raise _settled_error(hold)
        if hold.ended:
            return {"outcome": hold.outcome}
        return shield(self._decisions[hold.id].done)

    def _approve_at(
        self, call: InFlightCall, hold: CallHold, reply: Result
    ) -> asyncio.Future[dict[str, Any]]:
        """Write an approval to the host as soon as the node of the caller knows of it.

        Until then that node says of the call that the tool did not run, also if it loses this one.
        """
        decision = _Decision(reply, self._loop.create_future())
        decision.timer = self._loop.call_later(_ACKNOWLEDGED_S, self._caller_is_away, hold)
        self._decisions[hold.id] = decision
        data = {"hold": hold.id, "outcome": "approved", "changed": hold.is_changed}
        frame = Resumed(call.request_id, 0, data)
        call.caller.port.send_message(encode(frame))
        return decision.done

    def enter(self, call: InFlightCall, hold_id: str) -> None:
        """Let the host of a call enter the function: the caller's node knows of the approval."""
        decision = self._decisions.pop(hold_id, None)
        if decision is not None:  # else it came too late, and the host may have asked once more
            hold = self.table.open[hold_id]
            self._end(hold, "approved", decision.reply, call.wait, knows=call.caller)
            decision.end({"outcome": "approved"})

    def _caller_is_away(self, hold: CallHold) -> None:
        text = "the server of the caller does not answer, so the call does not run"
        error = Unavailable(text, executed="no", retryable=True)
        self._decisions.pop(hold.id).end(error)
        hold.by = hold.answer = None
        self._end(hold, "cancelled", failed(hold.request_id, error))

    def _read_answer(self, participant: Participant, hold: CallHold, request: Settle) -> HoldAnswer:
        options = request.options
        decisions = _OUTCOMES[hold.kind]
        if request.decision not in decisions:
            raise bad_option("decision", f"must be one of {', '.join(decisions)}")
        reason = read_option(options, "reason", str)
        arguments = read_option(options, "arguments", bytes)
        rules = read_option(options, "rules", bytes)
        chunk = read_option(options, "chunk", bytes)
        if reason is not None and len(reason) > MAX_REASON_CHARS:
            raise bad_option("reason", f"must have at most {MAX_REASON_CHARS} characters")
        if request.decision != "approve" and (arguments is not None or rules is not None):
            raise bad_option("decision", "must be approve, with arguments or rules")
        if (chunk is not None) is not (request.decision == "answer"):
            raise bad_option("chunk", "must be given with the decision answer, and no other")
        if rules is not None and len(rules) > MAX_RULES_BYTES:
            raise bad_option("rules", f"must have at most {MAX_RULES_BYTES} bytes")
        if arguments is not None and len(arguments) > MAX_HOLD_BYTES:
            raise TooLarge(f"changed arguments have at most {MAX_HOLD_BYTES} bytes", executed="no")
        if chunk is not None and len(chunk) > MAX_HOLD_BYTES:
            raise TooLarge(f"an answer has at most {MAX_HOLD_BYTES} bytes", executed="no")
        if request.digest != hold.digest:
            raise bad_option("digest", "is not that of what this approval is about")
        if arguments is not None and not participant.may_call(*hold.tool.names):
            text = f"no grant to call {hold.tool.name}, and so to change what it is called with"
            raise PermissionDenied(text, details={"grant": "agents.call"})
        return HoldAnswer(request.decision, reason, *map(_digest, (arguments, rules, chunk)))


@dataclass(slots=True, eq=False)
class _Decision:
    """An approval that the node of the caller has not acknowledged."""

    reply: Result
    """For the host."""
    done: asyncio.Future[dict[str, Any]]
    """For who approves."""
    timer: asyncio.TimerHandle | None = None

    def end(self, result: dict[str, Any] | RoomException) -> None:
        """Answer who approves."""
        if self.timer is not None:
            self.timer.cancel()
        if self.done.done():  # that connection has closed
            return
        if isinstance(result, dict):
            self.done.set_result(result)
        else:
            self.done.set_exception(result)
            self.done.exception()  # so that nothing is logged if nobody waits


def _cancel_timer(hold: CallHold) -> None:
    if hold.timer is not None:
        hold.timer.cancel()
        hold.timer = None


def _name_of(node: str) -> str:
    """Return the name of a node without the incarnation of its lease."""
    return node.rpartition(" ")[0]


def _reply_of(
    hold: CallHold, by: ShownParticipant, outcome: HoldOutcome, options: Mapping[str, Any]
) -> Result:
    """Return what the asker gets of a decision."""
    decision: dict[str, Any] = {"hold": hold.id, "outcome": outcome, "by": by.shown}
    if outcome == "denied":
        hold.reason = decision["reason"] = read_option(options, "reason", str) or ""
    for option in ("arguments", "rules", "chunk"):
        if options.get(option) is not None:
            decision[option] = options[option]
    return Result(hold.request_id, pack_reply(decision))


def _digest(data: bytes | None) -> bytes | None:
    return None if data is None else sha256(data).digest()


def _is_approver(entry: object) -> bool:
    if not isinstance(entry, str):
        return False
    kind, _, name = entry.partition(":")
    return entry == OTHERS or (kind in ("name", "role") and 0 < len(name) <= 256)


def _check_fields(request: Hold) -> None:
    """Raise `InvalidArguments` or `TooLarge` for a field that is invalid by itself."""
    if request.kind not in _OUTCOMES:
        raise bad_option("kind", f"must be one of {', '.join(_OUTCOMES)}")
    if len(request.digest) != _DIGEST_BYTES:
        raise bad_option("digest", f"must have {_DIGEST_BYTES} bytes")
    size = len(request.body)
    most = MAX_GRANTED_BYTES if request.kind == "granted" else MAX_HOLD_BYTES
    if size > most:
        text = f"{size} bytes would have to be shown to a person, at most {most} can"
        raise TooLarge(text, executed="no")
    if request.dispatch is None and "tool" not in request.options:
        raise bad_option("tool", "must be given where no call waits")


def _call_of(asker: Connection, request: Hold) -> InFlightCall | None:
    """Return the call that is to wait, or within which the asker asks; None if there is none."""
    if request.dispatch is None:
        return None
    call = asker.dispatched.get(request.dispatch)
    if call is None or call.patterns is not None or request.kind == "granted":
        raise PermissionDenied("the call is not in flight on this connection")
    if call.wait is not None and "tool" not in request.options:
        if not all(hold.is_own for hold in call.wait.holds):
            raise bad_option("dispatch", "waits for a person already")
    return call


def _is_nested(call: InFlightCall | None, *, is_own: bool) -> bool:
    """Whether a hold is about a call within one that is in flight here."""
    return call is not None and (is_own or call.is_nested)


def _tool_of_call(call: InFlightCall | None) -> HeldTool:
    assert call is not None, "a hold names a call or a tool"
    return HeldTool(
        call.toolkit,
        (call.definition.name, call.tool.name),
        call.toolkit.owner,
        call.definition.digest,
        ShownParticipant.of(call.caller.participant),
        call.asked_for.identity,
        None if call.principal is None else ShownParticipant.of(call.principal),
        tuple(map(ShownParticipant.of, call.forwarded_for)),
        call.call_id,
        call.purpose,
    )


def _waiting_s(call: InFlightCall | None, request: Hold, *, is_own: bool) -> float:
    """Return how long a call may wait: as its host, and each caller around it, at most allow."""
    limits = [around.approval_s for around in calls_around(call)]
    if read_option(request.options, "approval_ms", int) is not None:
        limits.append(approval_seconds(request.options))
    if call is not None and call.wait is not None and not is_own:
        # Else a host that asks again and again would hold the call for ever.
        limits.append(call.approval_s - call.wait.asked_s)
    return min(limits, default=inf)


def _deadlines_of(call: InFlightCall | None) -> Iterable[float]:
    """Yield the deadlines that go on: those of calls whose callers are not told of holds."""
    return (around.deadline_at for around in calls_around(call) if not around.caller.reads_holds)


def _settled_error(hold: CallHold) -> AlreadyExists:
    details: dict[str, Any] = {"outcome": hold.outcome}
    who = ""
    if hold.by is not None:
        details["by"] = hold.by.shown
        who = f" by {hold.by.identity.name}"
    text = f"this approval was settled already: it is {hold.outcome}{who}"
    return AlreadyExists(text, details=details)
