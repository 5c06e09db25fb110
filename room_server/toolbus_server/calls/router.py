"""Routes calls: to the host that runs each of them, and the reply back to its caller.

The router owns every call in flight, so each call ends exactly once at its caller: by the host's
reply, or by the router itself when the host is lost, the deadline passes or the caller cancels. It
decides `executed` by phase: "no" until the dispatch is handed to the host's transport, then "maybe"
until the host replies. Arguments and results are forwarded unread. Nothing here awaits, and nothing
is queued for later: what a host's send queue does not take is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, inf
from time import time_ns
from typing import Any, TypeAlias

from toolbus.concurrency.timers import CLOCK_S, ROUNDING_MS, Deadlines
from toolbus.errors import (
    ERRORS,
    Cancelled,
    DeadlineExceeded,
    DuplicateCallId,
    HostLost,
    NoHost,
    NotFound,
    Overloaded,
    QuotaExceeded,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.permissions.assessment import assessment_of_flags
from toolbus.permissions.plain import MAX_ASSESS_S, assessment_to_plain
from toolbus.telemetry.tracing import TRACESTATE, is_unsampled, read_trace_context
from toolbus.transport.websocket import NotifyingTicket
from toolbus.wire import (
    Assess,
    AssessDispatch,
    Call,
    Cancel,
    Credit,
    Dispatch,
    Explain,
    Failed,
    Input,
    Progress,
    Result,
    StreamChunk,
    ToolManifest,
    encode,
    exception_of,
    failed,
    pack_body,
)
from toolbus_server.calls.call_state import Connection, InFlightCall, MessagePort, RoutedRoom
from toolbus_server.calls.delegation import (
    ROOT_CONTEXT,
    CallContext,
    DelegatedCalls,
    GradualEnds,
    builders_of,
    call_context,
    callers_behind,
    check_authority,
    check_forwarders,
    complete_refusal,
    resolve_for,
)
from toolbus_server.calls.hold_statistics import HoldStatistics
from toolbus_server.calls.holds import read_hold_options, time_stopped_s
from toolbus_server.calls.stream_relay import READER_BUDGET_BYTES, StreamRelay, is_stream
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import (
    STREAM_OPTION_TYPES,
    affinity_of,
    bad_option,
    check_grant,
    check_options,
    check_patterns,
    check_pin,
)
from toolbus_server.registry.models import Participant, RegisteredToolkit

__all__ = [
    "FRAME_HANDLERS",
    "MAX_WAITING_REPLY_BYTES",
    "OTHER_CODE",
    "Connection",
    "FrameHandler",
    "InFlightCall",
    "MessagePort",
    "RoutedRoom",
    "Router",
]

OTHER_CODE = "_OTHER"
"""The label under which error codes that only a host knows are counted."""

_NO_OPTIONS: Mapping[str, Any] = {}
_FORWARDED = frozenset({"caller_context", "attempt"})
_RETRY_AFTER_S = 0.05
_LEAVING_S = 0.2
_IF_UNREAD = "if_unread"
"""Reason of a `cancel` between servers: the server of the caller leaves, and the server of the host
ends the call if nobody has read its question."""
_IF_UNREAD_NESTED = "if_unread_nested"
"""The same for a call within another one, which cannot be made again."""
_MAX_OUTSTANDING_BYTES = 3 * READER_BUDGET_BYTES
"""Limit of stream bytes in flight to one caller; a call beyond it is `overloaded`. It covers the
initial credit of 512 streams and one `READER_BUDGET_BYTES`."""


RoutingDecision: TypeAlias = tuple[RegisteredToolkit, ToolManifest, CallContext, Connection]
"""The toolkit, the tool, the context of the call and the host that runs it."""
MAX_WAITING_REPLY_BYTES = 16 * 1024 * 1024
"""Bytes of hosts' replies that may wait for one caller (PROTOCOL.md, CALL-28)."""
_SMALL_BYTES = 1024
"""An error of this size is sent in any case: `max_calls` of them are 4 MiB."""
_MESSAGE_CHARS = 200
"""Of up to four bytes each: without its details such an error stays below `_SMALL_BYTES`."""


class Router:
    """Routes the calls of one server."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, telemetry: ServerTelemetry
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._telemetry = telemetry
        self._deadlines = Deadlines(loop, self._on_deadline)
        self.streams: StreamRelay = StreamRelay(loop, limits, self.abort)
        """Forwards the frames of streams."""
        self._ends = GradualEnds(loop)
        self.delegated = DelegatedCalls(self._ends, self._end_delegated)
        """Ends calls without authority."""
        self.in_flight = 0
        """How many calls have not ended."""
        self.is_draining = False
        """Set when the server shuts down: from then on only nested calls are accepted."""
        self.view_is_partial = False
        """Whether this server lacks news of other servers, so that a missing host may be there."""
        self.hosts_return_until = 0.0
        """When, by the loop's clock, the hosts of a former server have had time to reconnect."""
        self._idle: asyncio.Event | None = None
        self.dropped = 0
        """Late, duplicate and unknown replies and cancels: counted, never fatal."""
        self.succeeded = 0
        """Calls that ended with a result."""
        self.failures: Counter[str] = Counter()
        """Calls that ended with an error, by code: those of `ERRORS`, and `OTHER_CODE`."""
        self.holds: HoldStatistics = HoldStatistics()
        """Calls that wait for a person, and those that did."""

    def call(self, room: RoutedRoom, caller: Connection, request: Call) -> None:
        """Dispatch a call to a host, or reply with the error that prevents it."""
        call: InFlightCall | None = None
        try:
            options = request.options or _NO_OPTIONS
            if options:
                check_options(options)
            if request.id in caller.calls or request.call_id in caller.call_ids:
                raise DuplicateCallId("a call with this id is in flight")
            if caller.outstanding_bytes > _MAX_OUTSTANDING_BYTES:
                raise _overloaded_error("too many bytes of streams are waiting for you to read")
            decision = self.route(room, caller, request, options)
            toolkit, timeout_ms = decision[0], request.timeout_ms
            timeout_s = self._default_s(options) if timeout_ms is None else timeout_ms / 1000
            call = self.open_call(caller, request, decision, timeout_s)
            header = caller.participant.call_header.copy()
            if options or not toolkit.public or not caller.reads_parts:
                _fill_header(header, call, toolkit, options)
                if not STREAM_OPTION_TYPES.keys().isdisjoint(options):
                    self.streams.open(call, options, header)
            traceparent = request.traceparent
            if traceparent and (options or not is_unsampled(traceparent)):
                traceparent = self._begin_span(room, call, request, header)
            elif not caller.participant.scope.trace:
                traceparent = None
            self.dispatch(call, request, header, traceparent)
            if room.monitor is not None:
                room.monitor.call_started(call)
        except RoomException as error:
            is_recorded = call is not None and call.span is not None
            self._refuse(room, caller, request, error, is_recorded=is_recorded)

    def assess(self, room: RoutedRoom, caller: Connection, request: Assess) -> None:
        """Ask the host of a call about its input, or answer by the flags of the tool.

        It is refused as the call would be, and like it has a deadline, a principal and an end.
        """
        try:
            options = request.options or _NO_OPTIONS
            if options:
                check_options(options)
            check_patterns(request.patterns)
            if request.id in caller.calls:
                raise DuplicateCallId("a call with this id is in flight")
            if caller.outstanding_bytes > _MAX_OUTSTANDING_BYTES:
                raise _overloaded_error("too many bytes of streams are waiting for you to read")
            decision = self.route(room, caller, request, options)
            timeout_s = MAX_ASSESS_S
            if request.timeout_ms is not None:
                timeout_s = min(request.timeout_ms / 1000, MAX_ASSESS_S)
            call = self.open_call(caller, request, decision, timeout_s)
            toolkit, tool, _, host = decision
            if not host.participant.assesses:
                # An older SDK, another language, or a node of an older version: nothing is written
                # to it, so that no version of a host can take the frame for a call.
                assessment = assessment_of_flags(tool, source="manifest")
                body = pack_body(assessment_to_plain(assessment))
                caller.port.send_message(encode(Result(request.id, body)))
                return
            header = caller.participant.call_header.copy()
            _fill_header(header, call, toolkit, options)
            self.dispatch(call, request, header, None)
        except RoomException as error:
            complete_refusal(room, caller, request, error)
            caller.port.send_message(encode(failed(request.id, error)))

    def _refuse(
        self,
        room: RoutedRoom,
        caller: Connection,
        request: Call,
        error: RoomException,
        *,
        is_recorded: bool,
    ) -> None:
        self._count(error)
        complete_refusal(room, caller, request, error)
        if not is_recorded:  # before the reply: its span must not end after the caller's
            self._telemetry.refuse_call(room, caller.participant, request, error)
        caller.port.send_message(encode(failed(request.id, error)))
        if room.monitor is not None:
            room.monitor.call_refused(caller, request, error)

    def route(
        self,
        room: RoutedRoom,
        caller: Connection,
        request: Call | Assess | Explain,
        options: Mapping[str, Any],
    ) -> RoutingDecision:
        """Decide which host runs a call, and on whose behalf, or raise; changes nothing."""
        if self.is_draining and "parent" not in options:
            raise Unavailable(
                "the server is shutting down", executed="no", retry_after_s=_LEAVING_S
            )
        if len(caller.calls) >= self._limits.max_calls:
            message = f"{self._limits.max_calls} calls are in flight"
            raise QuotaExceeded(message, retry_after_s=_RETRY_AFTER_S)
        participant = asker = caller.participant
        context = ROOT_CONTEXT
        owner = options.get("participant")
        callers = callers_behind(caller, options) if options else ()
        try:
            if callers:
                asker = callers[-1]
                toolkit = resolve_for(room, participant, callers, request.toolkit, owner)
            else:  # most calls: few functions are on their path
                toolkit = room.state.resolve(participant, request.toolkit, owner)
        except NotFound as error:
            raise self._not_found(error) from None
        tool = check_grant(asker, toolkit, request.tool)
        if options:
            context = call_context(room, caller, request, options, self._limits)
            check_authority(room, context, toolkit, request.tool)
            if callers:
                check_forwarders(participant, callers, toolkit, request.tool)
                context = context._replace(forwarded_for=callers)
            if "pin" in options:
                check_pin(toolkit, options["pin"])
        hosts = toolkit.serving.hosts
        if len(hosts) == 1 and tool.affinity == "none":
            return toolkit, tool, context, room.connections[hosts[0].id]
        affinity = affinity_of(tool, asker, options.get("affinity"))
        host = self._choose_host(room, toolkit, affinity)
        return toolkit, tool, context, room.connections[host.id]

    def explain(self, room: RoutedRoom, caller: Connection, request: Explain) -> dict[str, Any]:
        """Route a call without running it: say which host would run it, or which error it has."""
        try:
            check_options(request.options)
            toolkit, tool, _, host = self.route(room, caller, request, request.options)
        except RoomException as error:
            complete_refusal(room, caller, request, error)
            facts = {"code": error.code, "message": error.message, "details": error.details}
            return {"would_run": False, **facts}
        participant = host.participant
        answer: dict[str, Any] = {
            "would_run": True,
            "host": participant.describe(),
            "hosts": len(toolkit.serving.hosts),
            "generation": toolkit.serving.number,
            "digest": toolkit.serving.definition.digest,
            "affinity": tool.affinity != "none",
        }
        if room.replication is not None:
            answer["node"] = participant.node or room.replication.node
        if participant.assesses:
            answer["assesses"] = True
        if tool.approval:
            answer["approval"] = True
        if tool.external:
            answer["external"] = True
        return answer

    def _not_found(self, error: NotFound) -> NotFound:
        """Return the error for a toolkit that is not here, or not here yet."""
        if self.view_is_partial:
            reason = "it may be at a server that cannot be reached now"
        elif self._loop.time() < self.hosts_return_until:
            reason = "this server has just started, and hosts may reconnect"
        else:
            return error
        return NotFound(f"{error.message}; {reason}", retryable=True, retry_after_s=_RETRY_AFTER_S)

    def _choose_host(
        self, room: RoutedRoom, toolkit: RegisteredToolkit, affinity: str | None
    ) -> Participant:
        try:
            return room.state.choose_host(toolkit, affinity)
        except NoHost:
            if not self.view_is_partial:
                raise
            message = "the host may be at a server that cannot be reached now"
            raise Unavailable(message, executed="no", retry_after_s=_RETRY_AFTER_S) from None

    def _begin_span(
        self, room: RoutedRoom, call: InFlightCall, request: Call, header: dict[str, Any]
    ) -> str | None:
        """Begin the span of a sampled call; return the `traceparent` for its host."""
        received = read_trace_context(request.traceparent, request.options)
        if received is None:
            return None
        trusted = call.caller.participant.scope.trace
        return self._telemetry.begin(room, call, received, header, trusted=trusted)

    def dispatch_relayed(
        self, room: RoutedRoom, call: InFlightCall, request: Dispatch, header: dict[str, Any]
    ) -> None:
        """Dispatch a call from another node, which has checked its rights and its trace.

        Raises as `dispatch` does.
        """
        traceparent = request.traceparent
        if traceparent and (TRACESTATE in header or not is_unsampled(traceparent)):
            received = read_trace_context(traceparent, header)
            if received is not None:
                traceparent = self._telemetry.begin(room, call, received, header, trusted=True)
        self.dispatch(call, request, header, traceparent)

    def open_call(
        self,
        caller: Connection,
        request: Call | Dispatch | Assess | AssessDispatch,
        decision: RoutingDecision,
        timeout_s: float,
    ) -> InFlightCall:
        """Make the call of a request that was routed here or at the caller's node.

        Raises:
            DeadlineExceeded: No time is left for it.
            InvalidArguments: Its call id has a wrong length.
        """
        toolkit, tool, context, host = decision
        now = self._loop.time()
        deadline_at = now + timeout_s
        principal, hops, inherited_at, is_named, delegation, forwarded_for = context
        if inherited_at is not None:
            if delegation is not None and delegation.parent is not None:
                inherited_at += time_stopped_s(delegation.parent, now)
            deadline_at = min(deadline_at, inherited_at)
        if deadline_at <= now:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if not 0 < len(request.call_id) <= 64:
            raise bad_option("call_id", "must have 1 to 64 characters")
        host.last_dispatch += 1
        call = InFlightCall(
            caller,
            request.id,
            request.call_id,
            host,
            host.last_dispatch,
            principal,
            is_named,
            hops,
            deadline_at,
            now,
            tool,
            toolkit,
            toolkit.serving.definition,
            delegation,
            forwarded_for,
        )
        if type(request) is Assess or type(request) is AssessDispatch:
            call.patterns = request.patterns
        else:
            toolkit.serving.last_call_at = now
        return call

    def _default_s(self, options: Mapping[str, Any]) -> float:
        return inf if is_stream(options) else self._limits.call_timeout_ms / 1000

    def dispatch(
        self,
        call: InFlightCall,
        request: Call | Dispatch | Assess | AssessDispatch,
        header: dict[str, Any],
        traceparent: str | None,
    ) -> None:
        """Write a call to its host and add it to the tables: from here on it has an end.

        Raises `TooLarge`, `Overloaded` or `Unavailable` where it cannot be written.
        """
        host, caller = call.host, call.caller
        is_endless = call.deadline_at == inf
        remaining_ms: int | None = None
        if not is_endless:
            remaining_s = call.deadline_at - call.started_at
            remaining_ms = ceil(remaining_s * 1000 - ROUNDING_MS) or 1
        # What the request is decides what the host is sent: no path leads from one to the other.
        if type(request) is Assess or type(request) is AssessDispatch:
            data = encode(
                AssessDispatch(
                    call.dispatch_id,
                    call.call_id,
                    request.toolkit,
                    request.tool,
                    remaining_ms,
                    request.arguments,
                    header,
                    request.patterns,
                )
            )
        else:
            data = encode(
                Dispatch(
                    call.dispatch_id,
                    call.call_id,
                    request.toolkit,
                    request.tool,
                    remaining_ms,
                    request.arguments,
                    header,
                    traceparent,
                )
            )
        if len(data) > self._limits.max_frame_bytes or not host.port.offer_message(data, call):
            raise _dispatch_error(call, len(data) > self._limits.max_frame_bytes)
        caller.calls[call.request_id] = call
        if call.patterns is None:  # an assessment may have the id of the call that follows it
            caller.call_ids.add(call.call_id)
        host.dispatched[call.dispatch_id] = call
        host.participant.in_flight += 1
        self.in_flight += 1
        if not is_endless:
            self._deadlines.add(call.deadline_at, call)
        if call.streams is not None:
            self.streams.begin(call.streams)
        if call.delegation is not None:
            self.delegated.add(call, call.delegation)
            parent = call.delegation.parent
            if parent is not None and parent.wait is not None and call.patterns is None:
                parent.wait.keeper.call_began(call, parent)

    # The ends of a call

    def answer(self, host: Connection, reply: Result | Failed) -> None:
        """Forward a host's reply to the caller; drop one for a call that is not in flight."""
        call = host.dispatched.get(reply.id)
        if call is None:
            self.dropped += 1
            return
        if isinstance(reply, Result):
            # It fits the caller's frame too: no request id packs into more bytes than a dispatch
            # id. Sent first, so that the caller can go on while the tables are updated; the span
            # ends before that, or it would end after the caller's.
            ended_ns = None if call.span is None else time_ns()
            if call.wait is not None:  # its caller reads `resumed` before the end
                call.wait.keeper.call_ended(call)
            caller, data = call.caller, encode(Result(call.request_id, reply.body))
            if not caller.port.is_behind:
                caller.port.send_message(data)
            elif not _forward_late(caller, data):
                message = "too many bytes of results wait for you to read: this one is lost"
                lost = Overloaded(f"the tool ran, but {message}", executed="yes", retryable=False)
                self._fail(call, lost)
                return
            if call.patterns is None:
                self.succeeded += 1
            self._end(call)
            if call.monitor is not None:
                call.monitor.call_ended(call, None)
            if call.span is not None:
                call.span.end(at_ns=ended_ns)
        else:
            error = exception_of(reply)
            if call.contradicts_no and error.executed == "no":
                error.executed, error.retryable = "maybe", False
            self._fail(call, error)

    def cancel(self, caller: Connection, cancel: Cancel) -> None:
        """End a call that its caller cancels; drop the frame if it is not in flight."""
        call = caller.calls.get(cancel.id)
        is_nested = cancel.reason == _IF_UNREAD_NESTED
        if_unread = is_nested or cancel.reason == _IF_UNREAD
        if call is not None and if_unread and call.caller.participant.is_remote:
            if call.is_held:
                self._move(call, _leaving_error("the server of the caller", not is_nested))
        elif call is not None:
            if cancel.reason == "leaving" and call.is_held:  # the node of its caller shuts down
                _leave_holds(call)
            if cancel.reason == "caller_gone" and call.caller.participant.is_remote:
                self._end_without_caller(call)
            else:
                self._cancel(call, "the caller cancelled the call")
        elif cancel.id in caller.asked:
            hold = caller.asked[cancel.id]
            hold.keeper.withdraw(hold)
        else:
            self.dropped += 1

    def end_calls_of(self, connection: Connection, *, may_return: bool = True) -> None:
        """End the calls of a connection that has closed: those it runs, and those it made.

        Many end in steps. The connection must be in no room any more, so that none is added.
        Without `may_return` its participant has lost its rights.
        """
        # Those it made first: their hosts get the reason `caller_gone`, also if they are nested.
        made = [call for call in connection.calls.values() if call.host is not connection]
        removed = partial(self._cancel, message="the caller was removed")
        self._ends.add(made, self._end_without_caller if may_return else removed)
        self._ends.add(list(connection.dispatched.values()), self._end_without_host)
        for hold in list(connection.asked.values()):
            if hold.call is None:  # else it ends with its call
                hold.keeper.withdraw(hold)

    def end_calls_at_once(self, connection: Connection) -> None:
        """Do so in one step: the connection, to another node, is used again."""
        for call in list(connection.calls.values()):
            if call.host is not connection and not call.ended:
                self._end_without_caller(call)
        for call in list(connection.dispatched.values()):
            if not call.ended:
                self._end_without_host(call)

    def _end_without_caller(self, call: InFlightCall) -> None:
        # What is nested, or made for somebody else, has no authority without its connection.
        if call.wait is not None and call.principal is None:
            call.wait.may_be_made_again = True
        self._cancel(call, "the caller disconnected", "caller_gone")

    def _end_without_host(self, call: InFlightCall) -> None:
        self._fail(call, _lost_call_error(HostLost, "the host disconnected", call))

    def fail_hosted_calls(
        self, connection: Connection, message: str = "the server is shutting down"
    ) -> None:
        """End the calls that a participant runs, with `unavailable`."""
        for call in list(connection.dispatched.values()):
            if not call.ended:
                self._cancel_at_host(call, "leaving")
                self._fail(call, _lost_call_error(Unavailable, message, call))

    # Holds at a host or a server that leaves (PROTOCOL.md, HOLD-18)

    def may_wait(self, host: Connection, call: InFlightCall | None) -> bool:
        """Whether a call that its host has not entered may wait here, or a question of no call."""
        return not (self.is_draining or (call is not None and host.participant.is_draining))

    def leaving_error(self, *, is_nested: bool) -> Unavailable:
        """Make the error of what must not wait for a person here: it is asked again elsewhere.

        What is nested can be asked only at the server of the call around it, whose tool goes on.
        """
        what = "the server" if self.is_draining else "the host"
        return _leaving_error(what, not (self.is_draining and is_nested))

    def end_holds_at(self, host: Connection) -> None:
        """End what waits for a person at a host that leaves, or at a server that does."""
        held = [call for call in host.dispatched.values() if call.wait is not None]
        self._ends.add(held, self.end_held)
        for hold in list(host.asked.values()):
            if hold.is_away or (hold.is_own and (hold.call is None or self.is_draining)):
                hold.keeper.leave(hold)

    def end_held(self, call: InFlightCall) -> None:
        """End a call that must not wait for a person here, unless a person has decided."""
        if self.may_wait(call.host, call):
            return
        if call.is_held:
            self._move(call, self.leaving_error(is_nested=call.is_nested))
        elif call.host.participant.is_remote and call.awaits_answer:
            # Its node knows whether somebody has read what the call waits for, and ends it if not.
            self._cancel_at_host(call, _IF_UNREAD_NESTED if call.is_nested else _IF_UNREAD)

    def _move(self, call: InFlightCall, error: Unavailable) -> None:
        _leave_holds(call)
        self._cancel_at_host(call, "leaving")
        error.details = {"digest": call.definition.digest}
        self._fail(call, error)

    def _end_delegated(self, message: str, call: InFlightCall) -> None:
        """End a call that lost its authority, by its deadline if that has passed too."""
        if call.deadline_at <= self._loop.time() + CLOCK_S and not call.stands_still:
            self._expire(call)
        else:
            self._cancel(call, message)

    def _cancel(self, call: InFlightCall, message: str, reason: str = "cancelled") -> None:
        self._cancel_at_host(call, reason)
        self._fail(call, Cancelled(message, executed=call.executed))

    def _on_deadline(self, call: InFlightCall) -> None:
        """End a call whose timer is due, unless its time stands still, or did so meanwhile."""
        wait = call.wait
        if wait is not None and wait.count:
            wait.timer_is_due = True  # `resume` adds it again
        elif wait is not None and call.deadline_at > self._loop.time() + CLOCK_S:
            self._deadlines.add(call.deadline_at, call)  # it has moved
        else:
            self._expire(call)

    def resume(self, call: InFlightCall) -> None:
        """Set the timer of a call whose time goes on, if it was due meanwhile."""
        assert call.wait is not None, "its time stood still"
        if call.wait.timer_is_due and not call.ended:
            call.wait.timer_is_due = False
            self._deadlines.add(call.deadline_at, call)

    def _expire(self, call: InFlightCall) -> None:
        self._cancel_at_host(call, "deadline")
        self._fail(call, DeadlineExceeded("the deadline passed", executed=call.executed))

    def abort(self, call: InFlightCall, error: RoomException, reason: str) -> None:
        """End a call whose stream broke a rule, or that lost a message between two nodes."""
        self._cancel_at_host(call, reason)
        error.executed, error.retryable = call.executed, not call.written
        self._fail(call, error)

    def _cancel_at_host(self, call: InFlightCall, reason: str) -> None:
        """Send the host a cancel. A dispatch that still waits in its queue is never written."""
        if call.written:
            call.host.port.send_message(encode(Cancel(call.dispatch_id, reason)))

    def _count(self, error: RoomException) -> None:
        # A host may send any code: only known codes get a counter of their own.
        self.failures[error.code if error.code in ERRORS else OTHER_CODE] += 1

    def _fail(self, call: InFlightCall, error: RoomException) -> None:
        if call.patterns is None:
            self._count(error)
        else:
            error.executed = "no"  # whatever its host says: it was asked to run nothing
        self._end(call)
        if call.span is not None:  # before the reply, as in `answer`
            call.span.end(error)
        _forward_error(call, error)
        if call.monitor is not None:
            call.monitor.call_ended(call, error)

    def _end(self, call: InFlightCall) -> None:
        call.ended = True
        self._deadlines.forget(call)
        del call.caller.calls[call.request_id]
        if call.patterns is None:
            call.caller.call_ids.discard(call.call_id)
        del call.host.dispatched[call.dispatch_id]
        call.host.participant.in_flight -= 1
        self.in_flight -= 1
        if call.streams is not None:
            self.streams.close(call.streams)
        if call.delegation is not None:
            self.delegated.remove(call, call.delegation)
        if call.wait is not None:
            call.wait.keeper.call_ended(call)
        if call.nested:
            self.delegated.end_nested(call.nested)
        if self._idle is not None and not self.in_flight:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no call is in flight."""
        self._idle = asyncio.Event()
        if self.in_flight:
            await self._idle.wait()


def _leaving_error(what: str, retryable: bool) -> Unavailable:
    return Unavailable(
        f"{what} is leaving, and waits for no person",
        executed="no",
        retryable=retryable,
        retry_after_s=_RETRY_AFTER_S,
    )


def _leave_holds(call: InFlightCall) -> None:
    assert call.wait is not None, "it is held"
    for hold in list(call.wait.holds):
        hold.keeper.leave(hold)


def _fill_header(
    header: dict[str, Any],
    call: InFlightCall,
    toolkit: RegisteredToolkit,
    options: Mapping[str, Any],
) -> None:
    if not toolkit.public:
        header["private"] = True
    if not (call.caller.reads_parts or is_stream(options) or call.patterns is not None):
        header["files_only" if call.caller.reads_chunks else "whole"] = True
    if call.principal is not None:
        header["on_behalf_of"] = call.principal.packed_info
        header.pop("builders", None)
        if builders := builders_of(call):
            header["builders"] = builders
    if call.forwarded_for:
        header["forwarded_for"] = pack_body([caller.packed_info for caller in call.forwarded_for])
    if "purpose" in options or "approval_ms" in options:
        read_hold_options(call, options)
    for name in _FORWARDED & options.keys():
        header[name] = options[name]
    if "pin" in options and call.host.participant.is_remote:
        header["pin"] = options["pin"]  # its node checks what the host has by then


def _dispatch_error(call: InFlightCall, is_too_large: bool) -> RoomException:
    """Make the error of a call that was not dispatched, and end its span with it."""
    host, error = call.host, _overloaded_error("the host's send queue is full")
    if is_too_large:
        error = TooLarge("the call does not fit one frame", executed="no")
    elif host.participant.is_remote and not host.port.is_open:
        error = Unavailable("the host's server cannot be reached", executed="no")
    if call.span is not None:
        call.span.end(error)
    return error


def _overloaded_error(message: str) -> RoomException:
    return Overloaded(message, retry_after_s=_RETRY_AFTER_S)


def _lost_call_error(kind: type[RoomException], message: str, call: InFlightCall) -> RoomException:
    """Make the error of a call whose outcome stays unknown, and say whether it may be retried."""
    return kind(
        message,
        executed=call.executed,
        retryable=call.tool.idempotent or call.executed == "no",
        details={"digest": call.definition.digest},
    )


def _forward_late(caller: Connection, data: bytes) -> bool:
    """Queue a packed reply for a caller that is behind; return False if too much waits."""
    size = len(data)
    if caller.waiting_reply_bytes + size > MAX_WAITING_REPLY_BYTES:
        return False
    caller.waiting_reply_bytes += size
    done = partial(_release, caller, size)
    caller.port.send_bounded(data, NotifyingTicket(done, on_dropped=done))
    return True


def _release(caller: Connection, size: int) -> None:
    caller.waiting_reply_bytes -= size


def _forward_error(call: InFlightCall, error: RoomException) -> None:
    """Send a caller the error of its call, without details if there is no room for them."""
    caller = call.caller
    data = encode(failed(call.request_id, error))
    if len(data) <= _SMALL_BYTES or not caller.port.is_behind:
        caller.port.send_message(data)
    elif not _forward_late(caller, data):
        error.details, error.message = {}, error.message[:_MESSAGE_CHARS]
        caller.port.send_message(encode(failed(call.request_id, error)))


FrameHandler: TypeAlias = Callable[[Router, Connection, Any], None]
"""Handles a frame received on a connection."""
FRAME_HANDLERS: Mapping[type[Any], FrameHandler] = {
    Result: Router.answer,
    Failed: Router.answer,
    Cancel: Router.cancel,
    StreamChunk: lambda router, connection, frame: router.streams.chunk(connection, frame),
    Input: lambda router, connection, frame: router.streams.input(connection, frame),
    Credit: lambda router, connection, frame: router.streams.credit(connection, frame),
    Progress: lambda router, connection, frame: router.streams.progress(connection, frame),
}
"""By the type of the frame."""
