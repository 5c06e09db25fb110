"""The way of a call through the server: to the host that runs it, and its answer back.

The router owns every call in flight, so it owns their ends: each call ends exactly once at its
caller, by the host's word or by the router's own hand when the host is lost, the deadline passes or
the caller gives up. It decides `executed` by phase: "no" until the call is handed to the host's
transport, then "maybe", until the host says otherwise. Arguments and results pass through it
unread. Nothing here awaits, and nothing is queued for later: what a host's outbox does not take is
refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from math import ceil, inf
from typing import Any, TypeAlias

from toolbus.deadlines import ROUNDING_MS, Deadlines
from toolbus.errors import (
    ERRORS,
    Cancelled,
    DeadlineExceeded,
    DuplicateCallId,
    HostLost,
    Overloaded,
    QuotaExceeded,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.telemetry import TRACESTATE, is_unsampled, read_trace_context
from toolbus.wire import (
    Call,
    Cancel,
    Dispatch,
    Explain,
    Failed,
    Result,
    ToolManifest,
    encode,
    exception_of,
    failed,
)
from toolbus_server.authority import OWN, Authority, authority_of
from toolbus_server.flights import Flight, Port, Room, Seat
from toolbus_server.limits import Limits
from toolbus_server.request_options import STREAM_OPTIONS, bad_option, check_options
from toolbus_server.room_view import Toolkit, affinity_of, check_pin, check_principal
from toolbus_server.streams import BUDGET_BYTES, Streams, is_stream
from toolbus_server.telemetry import ServerTelemetry

__all__ = ["OTHER_CODE", "Flight", "Port", "Room", "Router", "Seat"]

OTHER_CODE = "_OTHER"
"""What a code that only its host knows is counted as."""

_NO_OPTIONS: Mapping[str, Any] = {}
_FORWARDED = frozenset({"caller_context", "attempt"})
_RETRY_AFTER_S = 0.05
_LEAVING_S = 0.2
_MOST_AHEAD = 3 * BUDGET_BYTES
"""Bytes of streams under way to a caller; that is 512 streams that just began, and a budget."""


Judgement: TypeAlias = tuple[Toolkit, ToolManifest, Authority, Seat]


class Router:
    """Routes the calls of one server.

    Args:
        loop: Its clock and its timers are used.
        limits: What one participant may have in flight.
        telemetry: Records sampled calls.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, telemetry: ServerTelemetry
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._telemetry = telemetry
        self._deadlines = Deadlines(loop, self._expire)
        self.streams: Streams = Streams(loop, limits, self.break_off)
        """Takes the frames of streams."""
        self.in_flight = 0
        """Calls that have not ended."""
        self.is_leaving = False
        """Set when the server is told to stop: only calls within others begin any more."""
        self._quiet: asyncio.Event | None = None
        self.dropped = 0
        """Late, duplicate and unknown replies and cancels: counted, never fatal."""
        self.succeeded = 0
        """Calls that ended with a result."""
        self.failures: Counter[str] = Counter()
        """Calls that ended otherwise, by code: those of `ERRORS`, and `OTHER_CODE`."""

    def call(self, room: Room, caller: Seat, call: Call) -> None:
        """Send a call to the host that shall run it, or answer it with why not."""
        flight: Flight | None = None
        try:
            options = call.options or _NO_OPTIONS
            if options:
                check_options(options)
            if call.id in caller.calls or call.call_id in caller.call_ids:
                raise DuplicateCallId("a call with this id is in flight")
            if caller.ahead > _MOST_AHEAD:
                raise _overloaded("more waits for you than you read")
            judged = self.judge(room, caller, call, options)
            toolkit, flight = judged[0], self._open(caller, call, judged)
            header: dict[str, Any] = {"caller": caller.member.card}
            if options or not toolkit.public or not caller.reads_chunks:
                _fill_header(header, flight, toolkit, options)
                if not STREAM_OPTIONS.keys().isdisjoint(options):
                    self.streams.open(flight, options, header)
            traceparent = call.traceparent
            if traceparent and (options or not is_unsampled(traceparent)):
                traceparent = self._trace(room, flight, call, header)
            elif not caller.member.scope.trace:
                traceparent = None
            self.hand_over(flight, call, header, traceparent)
            if room.watch is not None:
                room.watch.follow(flight)
        except RoomException as error:
            span = None if flight is None else flight.span
            self._refuse(room, caller, call, error, is_recorded=span is not None)

    def _refuse(
        self, room: Room, caller: Seat, call: Call, error: RoomException, *, is_recorded: bool
    ) -> None:
        self._count(error)
        caller.port.send_message(encode(failed(call.id, error)))
        if room.watch is not None:
            room.watch.refused(caller, call, error)
        if not is_recorded:
            self._telemetry.refuse_call(room, caller.member, call, error)

    def judge(
        self, room: Room, caller: Seat, call: Call | Explain, options: Mapping[str, Any]
    ) -> Judgement:
        """Decide who runs a call, on whose account; changes nothing.

        Raises:
            RoomException: Why it may not or cannot run.
        """
        if self.is_leaving and "parent" not in options:
            raise Unavailable("the server is leaving", executed="no", retry_after_s=_LEAVING_S)
        if len(caller.calls) >= self._limits.max_calls:
            words = f"{self._limits.max_calls} calls are in flight"
            raise QuotaExceeded(words, retry_after_s=_RETRY_AFTER_S)
        toolkit = room.state.resolve(caller.member, call.toolkit, options.get("participant"))
        tool = room.state.tool(caller.member, toolkit, call.tool)
        authority = OWN
        if options:
            authority = authority_of(room, caller, options, self._limits)
            if authority.principal is not None:
                check_principal(authority.principal, toolkit, call.tool)
            if "pin" in options:
                check_pin(toolkit, options["pin"])
        hosts = toolkit.serving.hosts
        if len(hosts) == 1 and tool.affinity == "none":
            return toolkit, tool, authority, room.seats[hosts[0].id]
        affinity = affinity_of(tool, caller.member, options.get("affinity"))
        return toolkit, tool, authority, room.seats[room.state.choose_host(toolkit, affinity).id]

    def _trace(self, room: Room, flight: Flight, call: Call, header: dict[str, Any]) -> str | None:
        """Begin the span of a sampled call; return the `traceparent` that travels on."""
        received = read_trace_context(call.traceparent, call.options)
        if received is None:
            return None
        trusted = flight.caller.member.scope.trace
        return self._telemetry.begin(room, flight, received, header, trusted=trusted)

    def relay(self, room: Room, flight: Flight, call: Dispatch, header: dict[str, Any]) -> None:
        """Hand over a call of a participant elsewhere, whose own node has judged it and its trace.

        Raises as `hand_over` does.
        """
        traceparent = call.traceparent
        if traceparent and (TRACESTATE in header or not is_unsampled(traceparent)):
            received = read_trace_context(traceparent, header)
            if received is not None:
                traceparent = self._telemetry.begin(room, flight, received, header, trusted=True)
        self.hand_over(flight, call, header, traceparent)

    def _open(self, caller: Seat, call: Call, judged: Judgement) -> Flight:
        toolkit, tool, authority, host = judged
        now = self._loop.time()
        timeout_ms = call.timeout_ms
        deadline_at = now + (self._default_s(call) if timeout_ms is None else timeout_ms / 1000)
        if authority.deadline_at is not None:
            deadline_at = min(deadline_at, authority.deadline_at)
        if deadline_at <= now:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if not 0 < len(call.call_id) <= 64:
            raise bad_option("call_id", "is 1 to 64 characters")
        host.last_dispatch += 1
        return Flight(
            caller,
            call.id,
            call.call_id,
            host,
            host.last_dispatch,
            authority.principal,
            authority.hops,
            deadline_at,
            now,
            tool,
            toolkit.serving.definition,
        )

    def _default_s(self, call: Call) -> float:
        return inf if is_stream(call.options or {}) else self._limits.call_timeout_ms / 1000

    def hand_over(
        self, flight: Flight, call: Call | Dispatch, header: dict[str, Any], trace: str | None
    ) -> None:
        """Write a call to its host and enter it into the tables: from here on it has an end.

        Raises `TooLarge`, `Overloaded` or `Unavailable` where it cannot be written.
        """
        host, caller = flight.host, flight.caller
        is_endless = flight.deadline_at == inf
        remaining_s = 0.0 if is_endless else flight.deadline_at - flight.began_at
        data = encode(
            Dispatch(
                flight.dispatch_id,
                flight.call_id,
                call.toolkit,
                call.tool,
                None if is_endless else max(1, ceil(remaining_s * 1000 - ROUNDING_MS)),
                call.arguments,
                header,
                trace,
            )
        )
        if len(data) > self._limits.max_frame_bytes or not host.port.offer_message(data, flight):
            raise _not_taken(flight, len(data) > self._limits.max_frame_bytes)
        caller.calls[flight.request_id] = flight
        caller.call_ids.add(flight.call_id)
        host.dispatched[flight.dispatch_id] = flight
        host.member.inflight += 1
        self.in_flight += 1
        if not is_endless:
            self._deadlines.add(flight.deadline_at, flight)
        if flight.exchange is not None:
            self.streams.begin(flight.exchange)

    # The ends of a call

    def answer(self, host: Seat, reply: Result | Failed) -> None:
        """Pass a host's answer to the caller; one that comes for no call in flight is dropped."""
        flight = host.dispatched.get(reply.id)
        if flight is None:
            self.dropped += 1
            return
        if isinstance(reply, Result):
            # It fits the caller's frame too: no id of a caller takes more bytes than ours.
            # Sent first: its caller goes on while the books are closed.
            flight.caller.port.send_message(encode(Result(flight.request_id, reply.body)))
            self.succeeded += 1
            self._end(flight)
            if flight.span is not None:
                flight.span.end()
        else:
            error = exception_of(reply)
            if flight.exchange is not None and self.streams.has_sent(flight.exchange):
                if error.executed == "no":  # of what has sent something that is not so
                    error.executed, error.retryable = "maybe", False
            self._fail(flight, error)

    def cancel(self, caller: Seat, cancel: Cancel) -> None:
        """End a call that its caller gives up; one that is not in flight is dropped."""
        flight = caller.calls.get(cancel.id)
        if flight is None:
            self.dropped += 1
            return
        self._withdraw(flight, "cancelled")
        self._fail(flight, Cancelled("the caller gave the call up", executed=flight.executed))

    def depart(self, seat: Seat) -> None:
        """End the calls of a participant that is gone: those it runs, and those it made."""
        for flight in list(seat.dispatched.values()):
            self._fail(flight, _lost(HostLost, "the host is gone", flight))
        for flight in list(seat.calls.values()):
            self._withdraw(flight, "caller_gone")
            self._fail(flight, Cancelled("the caller is gone", executed=flight.executed))

    def abandon(self, seat: Seat, words: str = "the server is leaving") -> None:
        """End the calls that a participant runs: nobody waits for them any longer."""
        for flight in list(seat.dispatched.values()):
            self._withdraw(flight, "leaving")
            self._fail(flight, _lost(Unavailable, words, flight))

    def _expire(self, flight: Flight) -> None:
        self._withdraw(flight, "deadline")
        self._fail(flight, DeadlineExceeded("the deadline passed", executed=flight.executed))

    def break_off(self, flight: Flight, error: RoomException, reason: str) -> None:
        """End a call for the sake of its stream, or of what was lost on the way between nodes."""
        self._withdraw(flight, reason)
        error.executed, error.retryable = flight.executed, not flight.written
        self._fail(flight, error)

    def _withdraw(self, flight: Flight, reason: str) -> None:
        """Tell a host to stop. A call that still waits in its outbox is simply never written."""
        if flight.written:
            flight.host.port.send_message(encode(Cancel(flight.dispatch_id, reason)))

    def _count(self, error: RoomException) -> None:
        # A host may say any code: only those that are known get a number of their own.
        self.failures[error.code if error.code in ERRORS else OTHER_CODE] += 1

    def _fail(self, flight: Flight, error: RoomException) -> None:
        self._count(error)
        self._end(flight)
        flight.caller.port.send_message(encode(failed(flight.request_id, error)))
        if flight.span is not None:
            flight.span.end(error)

    def _end(self, flight: Flight) -> None:
        flight.ended = True
        self._deadlines.forget(flight)
        del flight.caller.calls[flight.request_id]
        flight.caller.call_ids.discard(flight.call_id)
        del flight.host.dispatched[flight.dispatch_id]
        flight.host.member.inflight -= 1
        self.in_flight -= 1
        if flight.exchange is not None:
            self.streams.close(flight.exchange)
        if self._quiet is not None and not self.in_flight:
            self._quiet.set()

    async def quiet(self) -> None:
        """Wait until no call is in flight."""
        self._quiet = asyncio.Event()
        if self.in_flight:
            await self._quiet.wait()


def _fill_header(
    header: dict[str, Any], flight: Flight, toolkit: Toolkit, options: Mapping[str, Any]
) -> None:
    if not toolkit.public:
        header["private"] = True
    if not flight.caller.reads_chunks and not is_stream(options):
        header["whole"] = True
    if flight.principal is not None:
        header["on_behalf_of"] = flight.principal.card
    for name in _FORWARDED & options.keys():
        header[name] = options[name]


def _not_taken(flight: Flight, is_too_large: bool) -> RoomException:
    """Say why a call was not handed over, and end its span, which was begun for the host."""
    host, error = flight.host, _overloaded("the way to the host is full")
    if is_too_large:
        error = TooLarge("the call does not fit one frame", executed="no")
    elif host.member.is_far and not host.port.is_open:
        error = Unavailable("the host's server cannot be reached", executed="no")
    if flight.span is not None:
        flight.span.end(error)
    return error


def _overloaded(words: str) -> RoomException:
    return Overloaded(words, retry_after_s=_RETRY_AFTER_S)


def _lost(kind: type[RoomException], words: str, flight: Flight) -> RoomException:
    """Say that nobody will learn how a call ended, and whether it may be made again."""
    return kind(
        words,
        executed=flight.executed,
        retryable=flight.tool.idempotent or not flight.written,
        details={"digest": flight.definition.digest},
    )
