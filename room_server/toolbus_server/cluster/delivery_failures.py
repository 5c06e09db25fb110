"""Ends the call of each lost entry, at once and by phase.

Nothing of a call is sent a second time, except the message that it has to end.
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
from toolbus_server.calls.call_state import Connection, InFlightCall
from toolbus_server.calls.router import Router
from toolbus_server.cluster.peer_link import Entry

__all__ = [
    "ADMIN_ACTION",
    "CALL_REPORT",
    "DISPATCH",
    "FRAME",
    "MESSAGE",
    "RESULT_LOST",
    "DeliveryFailures",
]

DISPATCH, FRAME, MESSAGE, ADMIN_ACTION, RESULT_LOST, CALL_REPORT = 1, 2, 3, 4, 5, 6
"""The kinds of entries; a dispatch and a frame end with a packed frame.

`RESULT_LOST` has the id of a dispatch whose result was lost, and the result's `executed`. A lost
`CALL_REPORT` is replaced by the next one.
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class DeliveryFailures:
    """Ends the calls of entries that were lost between this node and another one.

    Args:
        router: The router of the calls.
        connection: Holds all calls between the two nodes.
        put: Sends an entry to the other node.
    """

    def __init__(
        self, router: Router, connection: Connection, put: Callable[[Entry], None]
    ) -> None:
        self._router = router
        self._connection = connection
        self._put = put

    def on_lost(self, entries: Iterable[Entry]) -> None:
        """Handle entries that were lost, while the other node can still be reached."""
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            if kind in (RESULT_LOST, ADMIN_ACTION):
                self._put(entry)
            elif kind in (DISPATCH, FRAME):
                frame: Any = decode_from_server(last)
                if isinstance(frame, Cancel):
                    self._put(entry)
                elif isinstance(frame, Result | Failed):
                    executed = "yes" if isinstance(frame, Result) else exception_of(frame).executed
                    self._put(Entry(_encode((RESULT_LOST, frame.id, executed))))
                else:
                    self._end_call_of(frame)

    def on_undelivered(self, entries: Iterable[Entry]) -> None:
        """Handle entries without a subscriber: the other node has ended, or ends its own calls."""
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            if kind in (DISPATCH, FRAME):
                frame: Any = decode_from_server(last)
                if not isinstance(frame, Cancel | Result | Failed):
                    self._end_call_of(frame)

    def on_reset(self, unread: Iterable[Entry]) -> None:
        """Handle entries that the peer had not read at its reset: calls end as if never sent."""
        for entry in unread:
            if isinstance(entry.ticket, InFlightCall):
                entry.ticket.written = False

    def on_result_lost(self, dispatch_id: int, executed: Executed) -> None:
        """End a call whose result was lost on the way to this node."""
        call = self._connection.dispatched.get(dispatch_id)
        if call is not None:
            error = Unavailable(
                "the result was lost between two servers",
                executed=executed,
                retryable=executed == "no" or call.tool.idempotent,
                details={"digest": call.definition.digest},
            )
            self._router.answer(self._connection, failed(RequestId(dispatch_id), error))

    def _end_call_of(self, frame: Any) -> None:
        if isinstance(frame, Progress):
            return  # only the latest counts, and nothing waits for it
        is_ours = isinstance(frame, Dispatch | Input) or (
            isinstance(frame, Credit) and not frame.of_input
        )
        calls = self._connection.dispatched if is_ours else self._connection.calls
        call = calls.get(frame.id)
        if call is None:
            return
        if isinstance(frame, Dispatch):
            call.written = False
            error = Unavailable("the host's server could not be reached")
            self._router.abort(call, error, "lost")
        else:
            broken = StreamBroken("a part was lost between two servers")
            self._router.abort(call, broken, "broken")
