"""What becomes of a room's calls, for those who watch them: collected once, told to each.

While nobody watches, nothing of this runs. With watchers a call costs a note in a bounded list;
ten times a second at most, and only if there is something new, they are told. Arguments and results
never come here. A call in flight is followed in the place of its span, which ends with it however
it ends, so that what is counted in flight is counted out again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from toolbus.errors import RoomException
from toolbus.telemetry import read_trace_context
from toolbus.wire import Call, pack_body
from toolbus_server.flights import Ending, Flight, Room, Seat

__all__ = ["CallCounts", "CallWatch"]

FLUSH_S = 0.1
"""How long news is held back to be told together (PROTOCOL.md, WATCH-1)."""
MAX_CALLS = 200
"""Ended calls that are kept until they are told; the counts go on (PROTOCOL.md, WATCH-3)."""
# What a caller may write in a call that is refused is bounded by the frame alone.
_MAX_NAME_CHARS = 64
_Ended: TypeAlias = tuple[int, list[Any]]
"""A call that has ended: the how manieth it is, and what is told of it."""


class CallCounts(NamedTuple):
    """How many calls of a room there have been while it was watched."""

    started: int
    ended: int
    failed: int
    """Of those that ended, the ones with an error."""


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
        self._started = 0
        self._ended = 0
        self._failed = 0
        self._told = 0
        """How many had ended when the watchers were told last."""
        self._good: deque[_Ended] = deque()
        self._bad: deque[_Ended] = deque()
        self._packed = b""
        """The calls that are told now, as nearly every watcher is told them."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> CallCounts:
        """What has been counted until now; only differences of it mean anything."""
        return CallCounts(self._started, self._ended, self._failed)

    # Watchers

    def begin(self) -> None:
        """Tell a watcher that has come how things stand; the first one sets all of this going."""
        if self._room.watch is None:
            self._room.watch = self
            self._in_flight = 0
            for seat in self._room.seats.values():
                for flight in seat.dispatched.values():
                    self._attend(flight)
        self._wait()

    def end(self) -> None:
        """Stop: nobody watches any more."""
        self._room.watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget()

    def news(self, since: CallCounts) -> dict[str, Any]:
        """Say what has become of calls, as `tell` may ask for each watcher.

        Args:
            since: What had been counted when this watcher was told last, or came.
        """
        packed = self._packed
        if since.ended > self._told:  # it came after the others were told
            packed = self._pack(since.ended)
        return {
            "in_flight": self._in_flight,
            "started": self._started - since.started,
            "ended": self._ended - since.ended,
            "failed": self._failed - since.failed,
            "calls": packed,
        }

    # Calls

    def follow(self, flight: Flight) -> None:
        """Count a call that was handed to its host."""
        self._started += 1
        self._attend(flight)
        self._wait()

    def refused(self, caller: Seat, call: Call, error: RoomException) -> None:
        """Count a call that ended before a host had it."""
        self._started += 1
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

    def _note(self, error: RoomException | None, facts: list[Any]) -> None:
        self._ended += 1
        self._failed += error is not None
        (self._good if error is None else self._bad).append((self._ended, facts))
        if len(self._good) + len(self._bad) > MAX_CALLS:
            (self._good or self._bad).popleft()
        self._wait()

    # Telling

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._packed = self._pack(self._told)
        if not self._tell():
            self._wait()
        self._forget()

    def _pack(self, told: int) -> bytes:
        kept = sorted((*self._good, *self._bad), key=itemgetter(0))
        return pack_body([facts for number, facts in kept if number > told])

    def _forget(self) -> None:
        self._told = self._ended
        self._good.clear()
        self._bad.clear()


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
