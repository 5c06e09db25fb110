"""What becomes of a room's calls, for those who watch them: collected once, told to each.

While nobody watches, nothing of this runs. With watchers a call costs a note in a bounded list;
ten times a second at most, and only if there is something new, they are told. Arguments and results
never come here. A call in flight is followed in the place of its span, which ends with it however
it ends, so that what is counted in flight is counted out again.

Where nodes share the room each follows the calls that its own participants make, so that each call
is told once, and reports them to the nodes that have a watcher; these add up what they hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import randrange
from typing import Any, NamedTuple

from toolbus.errors import RoomException
from toolbus.telemetry import read_trace_context
from toolbus.wire import Call, unpack_body
from toolbus_server.call_tally import MAX_CALLS, CallCounts, CallTally
from toolbus_server.flights import Ending, Flight, Room, Seat

__all__ = ["MAX_CALLS", "CallCounts", "CallReport", "CallWatch"]

FLUSH_S = 0.1
"""How long news is held back to be told together (PROTOCOL.md, WATCH-1)."""
# What a caller may write in a call that is refused is bounded by the frame alone.
_MAX_NAME_CHARS = 64
_MAX_NUMBER = 2**48


class CallReport(NamedTuple):
    """What one node tells another of the calls that its own participants make in a room."""

    watch: int
    """Which watch of the other node it is for, by that one's number."""
    series: int
    """Which series the counts belong to; each begins at 0."""
    in_flight: int
    started: int
    ended: int
    failed: int
    calls: bytes
    """Those that ended since the report before, as far as they are kept; packed."""

    @property
    def counts(self) -> CallCounts:
        """What has been counted since the series began."""
        return CallCounts(self.started, self.ended, self.failed)


class _Listener:
    """Another node that has a watcher.

    Args:
        watch: Which of its watches that is.
        counts: What has been counted when it came.
        send: Sends it a report; returns whether there was a way and room.
    """

    def __init__(self, watch: int, counts: CallCounts, send: Callable[[CallReport], bool]) -> None:
        self._watch = watch
        self._first = counts
        self._send = send
        self._series = randrange(1, _MAX_NUMBER)
        self._last: tuple[CallCounts, int] | None = None
        self.is_in_doubt = False
        """Whether a report may have been lost."""

    def tell(self, tally: CallTally, in_flight: int) -> bool:
        """Report what is new; return whether the other node now knows how things stand."""
        counts = tally.counts
        if self._last == (counts, in_flight) and not self.is_in_doubt:
            return True
        since = self._first if self._last is None else self._last[0]
        started, ended, failed = counts.since(self._first)
        calls = tally.calls_since(since.ended)
        report = CallReport(self._watch, self._series, in_flight, started, ended, failed, calls)
        if not self._send(report):
            return False
        self._last = (counts, in_flight)
        self.is_in_doubt = False
        return True


class CallWatch:
    """The calls of one room, for all who watch them.

    Args:
        room: The room.
        loop: For the clock and the timer.
        tell: Tells every watcher what is new, at most ten times a second; False if one has no room
            for it, and is to be told later how things stand.
    """

    def __init__(
        self, room: Room, loop: asyncio.AbstractEventLoop, tell: Callable[[], bool]
    ) -> None:
        self._room = room
        self._loop = loop
        self._tell = tell
        self._in_flight = 0
        self._own = CallTally()
        """The calls of this node's participants, for the other nodes."""
        self._all = CallTally()
        """Those of the whole room, for watchers here."""
        self._listeners: dict[str, _Listener] = {}
        self._heard: dict[str, CallReport] = {}
        """What the other nodes reported last."""
        self.number = 0
        """Which watch this is, to tell it from earlier ones; 0 while nobody here watches."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> CallCounts:
        """What has been counted until now; only differences of it mean anything."""
        return self._all.counts

    @property
    def in_flight(self) -> int:
        """How many calls of the room have not ended, as far as this node has heard."""
        return self._in_flight + sum(report.in_flight for report in self._heard.values())

    # Watchers

    def begin(self) -> None:
        """Tell a watcher that has come how things stand; the first one sets all of this going."""
        if not self.number:
            self.number = randrange(1, _MAX_NUMBER)
        self._follow_all()
        self._wait()

    def end(self) -> None:
        """Stop: nobody here watches any more."""
        self.number = 0
        self._heard.clear()
        self._all.forget()
        self._rest()

    def _follow_all(self) -> None:
        if self._room.watch is None:
            self._room.watch = self
            self._in_flight = 0
            for seat in self._room.seats.values():
                for flight in () if seat.member.is_far else seat.calls.values():
                    self._attend(flight)

    def _rest(self) -> None:
        if self.number or self._listeners:
            return
        self._room.watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._own.forget()

    def news(self, since: CallCounts) -> dict[str, Any]:
        """Say what has become of calls, as `tell` may ask for each watcher.

        Args:
            since: What had been counted when this watcher was told last, or came.
        """
        new = self.counts.since(since)
        calls = self._all.calls_since(since.ended)
        return {"in_flight": self.in_flight, **new._asdict(), "calls": calls}

    # Other nodes

    def report_to(self, node: str, watch: int, send: Callable[[CallReport], bool]) -> None:
        """Report to a node from now on what becomes of the calls of this one's participants.

        Args:
            node: The other node.
            watch: Which of its watches it is for.
            send: Sends it a report; returns whether there was a way and room.
        """
        self._follow_all()
        self._listeners[node] = _Listener(watch, self._own.counts, send)
        self._wait()

    def report_anew(self, node: str | None = None) -> None:
        """Report once more to a node, or to all: what was sent last may never have come."""
        for name, listener in self._listeners.items():
            if node in (None, name):
                listener.is_in_doubt = True
                self._wait()

    def report_no_more(self, node: str) -> None:
        """Stop that."""
        if self._listeners.pop(node, None) is not None:
            self._rest()

    def end_reports(self) -> None:
        """Report for the last time: nobody of this node is in the room any more."""
        self._own.pack()
        for listener in self._listeners.values():
            listener.tell(self._own, self._in_flight)
        self._listeners.clear()
        self._rest()

    def take_report(self, node: str, report: CallReport) -> None:
        """Add up what another node reports; what is for an earlier watch is dropped."""
        if not self.number or report.watch != self.number:
            return
        known, last = CallCounts(0, 0, 0), self._heard.get(node)
        if last is not None and last.series == report.series:
            known = last.counts
        elif last is not None:  # some of its calls ended between the two, and nobody told how
            lost = max(0, last.in_flight - report.in_flight)
            self._all.add(CallCounts(0, lost, lost), [])
        self._heard[node] = report
        self._all.add(report.counts.since(known), unpack_body(report.calls))
        self._wait()

    def forget_node(self, node: str) -> None:
        """Count the calls of a node that has ended as ended: its callers have lost them."""
        report = self._heard.pop(node, None)
        if report is not None and report.in_flight:
            self._all.add(CallCounts(0, report.in_flight, report.in_flight), [])
            self._wait()

    # Calls

    def follow(self, flight: Flight) -> None:
        """Count a call that was handed to its host."""
        self._start()
        self._attend(flight)
        self._wait()

    def refused(self, caller: Seat, call: Call, error: RoomException) -> None:
        """Count a call that ended before a host had it."""
        self._start()
        # A caller whose traces are not continued has another one here, which is not known.
        trusted = caller.member.scope.trace
        context = read_trace_context(call.traceparent, None) if trusted else None
        is_recorded = context is not None and context.sampled
        self._note(
            error,
            [
                call.call_id[:_MAX_NAME_CHARS],
                _card(caller),
                call.toolkit[:_MAX_NAME_CHARS],
                call.tool[:_MAX_NAME_CHARS],
                None,
                error.code,
                error.executed,
                0,
                call.traceparent if is_recorded else None,
            ],
        )

    def ended(self, flight: Flight, error: RoomException | None) -> None:
        """Count the end of a call that was followed."""
        if self._room.watch is not self:  # who watched when it came has gone
            return
        self._in_flight -= 1
        self._note(
            error,
            [
                flight.call_id,
                _card(flight.caller),
                flight.definition.manifest.name,
                flight.tool.name,
                _card(flight.host),
                None if error is None else error.code,
                "yes" if error is None else error.executed,
                round((self._loop.time() - flight.began_at) * 1e6),
                flight.traceparent,
            ],
        )

    def _attend(self, flight: Flight) -> None:
        self._in_flight += 1
        if not isinstance(flight.span, _Followed):
            flight.span = _Followed(self, flight)

    def _tallies(self) -> Iterator[CallTally]:
        if self.number:
            yield self._all
        if self._listeners:
            yield self._own

    def _start(self) -> None:
        for tally in self._tallies():
            tally.started += 1

    def _note(self, error: RoomException | None, facts: list[Any]) -> None:
        for tally in self._tallies():
            tally.note(facts, failed=error is not None)
        self._wait()

    # Telling

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for tally in self._tallies():
            tally.pack()
        told = [each.tell(self._own, self._in_flight) for each in self._listeners.values()]
        if self.number:
            told.append(self._tell())
        if not all(told):
            self._wait()
        for tally in self._tallies():
            tally.forget()


class _Followed:
    """Stands in a call's `span`, and ends the one that was there with it."""

    __slots__ = ("_flight", "_span", "_watch")

    def __init__(self, watch: CallWatch, flight: Flight) -> None:
        self._watch = watch
        self._flight = flight
        self._span: Ending | None = flight.span

    def end(self, error: RoomException | None = None) -> None:
        """Tell the watch, then end the span; the two hold each other no longer."""
        self._flight.span = None
        self._watch.ended(self._flight, error)
        if self._span is not None:
            self._span.end(error)


def _card(seat: Seat) -> list[str]:
    return [seat.member.id, seat.member.identity.name]
