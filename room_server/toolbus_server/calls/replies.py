"""Forwards the replies of hosts to callers, also to those that read slowly.

While a caller's connection is behind, replies of hosts wait in its send queue up to a limit of
their own. They never close its connection: beyond the limit a result is not forwarded, and an error
loses its details. Results in parts wait at their hosts instead: see `stream_relay`.
"""

from __future__ import annotations

from functools import partial

from toolbus.errors import Overloaded, RoomException
from toolbus.transport.websocket import NotifyingTicket
from toolbus.wire import encode, failed
from toolbus_server.calls.call_state import Connection, InFlightCall

__all__ = ["MAX_WAITING_REPLY_BYTES", "forward_error", "forward_late", "undelivered_error"]

MAX_WAITING_REPLY_BYTES = 16 * 1024 * 1024
"""Bytes of hosts' replies that may wait for one caller (PROTOCOL.md, CALL-28)."""
_SMALL_BYTES = 1024
"""An error of this size is sent in any case: `max_calls` of them are 4 MiB."""
_MESSAGE_CHARS = 200


def forward_late(caller: Connection, data: bytes) -> bool:
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


def forward_error(call: InFlightCall, error: RoomException) -> None:
    """Send a caller the error of its call, without details if there is no room for them."""
    caller = call.caller
    data = encode(failed(call.request_id, error))
    if len(data) <= _SMALL_BYTES or not caller.port.is_behind:
        caller.port.send_message(data)
    elif not forward_late(caller, data):
        error.details, error.message = {}, error.message[:_MESSAGE_CHARS]
        caller.port.send_message(encode(failed(call.request_id, error)))


def undelivered_error() -> Overloaded:
    """Make the error that a caller gets in place of a result for which it has no room."""
    message = "the tool ran, but too many bytes of results wait for you to read: this one is lost"
    return Overloaded(message, executed="yes", retryable=False)
