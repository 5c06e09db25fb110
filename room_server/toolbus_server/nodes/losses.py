"""What ends where a part of a parcel was lost: the call that it belongs to, at once, by phase.

Nothing of a call is sent a second time, but the word that it is to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from toolbus.errors import Executed, StreamBroken, Unavailable
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Input,
    Progress,
    RequestId,
    Result,
    decode_from_server,
    exception_of,
    failed,
)
from toolbus_server.flights import Flight, Seat
from toolbus_server.nodes.parcels import Entry
from toolbus_server.routing import Router

__all__ = ["CALLS", "DISPATCH", "FRAME", "LOST", "MESSAGE", "ORDER", "Losses"]

DISPATCH, FRAME, MESSAGE, ORDER, LOST, CALLS = 1, 2, 3, 4, 5, 6
"""What an entry begins with; a dispatch and a frame end with a packed frame.

`LOST` has the id of a dispatch whose answer was lost, and what that said of `executed`. `CALLS` has
what has become of calls: another report makes up for one that is lost.
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Losses:
    """Ends the calls of what was lost between this node and another one.

    Args:
        router: Whose calls they are.
        desk: Has all calls between the two.
        put: Sends an entry to the other node.
    """

    def __init__(self, router: Router, desk: Seat, put: Callable[[Entry], None]) -> None:
        self._router = router
        self._desk = desk
        self._put = put

    def missed(self, entries: Iterable[Entry]) -> None:
        """Learn what the other node did not get, which hears what is sent now."""
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            if kind in (LOST, ORDER):
                self._put(entry)
            elif kind in (DISPATCH, FRAME):
                frame: Any = decode_from_server(last)
                if isinstance(frame, Cancel):
                    self._put(entry)
                elif isinstance(frame, Result | Failed):
                    executed = "yes" if isinstance(frame, Result) else exception_of(frame).executed
                    self._put(Entry(_encode((LOST, frame.id, executed))))
                else:
                    self._end_call_of(frame)

    def unheard(self, entries: Iterable[Entry]) -> None:
        """Learn what nobody heard: the other node has ended, or lost its way and ends its own."""
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            if kind in (DISPATCH, FRAME):
                frame: Any = decode_from_server(last)
                if not isinstance(frame, Cancel | Result | Failed):
                    self._end_call_of(frame)

    def unread(self, entries: Iterable[Entry]) -> None:
        """Learn what was never read by a node that began anew: calls that end as if never sent."""
        for entry in entries:
            if isinstance(entry.ticket, Flight):
                entry.ticket.written = False

    def answer_lost(self, dispatch_id: int, executed: Executed) -> None:
        """End a call whose answer did not get here, as far as its host's node knows it."""
        flight = self._desk.dispatched.get(dispatch_id)
        if flight is not None:
            lost = Unavailable(
                "the answer was lost on the way",
                executed=executed,
                retryable=executed == "no" or flight.tool.idempotent,
                details={"digest": flight.definition.digest},
            )
            self._router.answer(self._desk, failed(RequestId(dispatch_id), lost))

    def _end_call_of(self, frame: Any) -> None:
        if isinstance(frame, Progress):
            return  # only the latest counts, and nobody waits for it
        is_ours = isinstance(frame, Dispatch | Input) or (
            isinstance(frame, Credit) and not frame.of_input
        )
        flight = (self._desk.dispatched if is_ours else self._desk.calls).get(frame.id)
        if flight is None:
            return
        if isinstance(frame, Dispatch):
            flight.written = False
            lost = Unavailable("the host's server could not be reached")
            self._router.break_off(flight, lost, "lost")
        else:
            self._router.break_off(flight, StreamBroken("a part was lost on the way"), "broken")
