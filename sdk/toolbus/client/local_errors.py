"""Errors that the caller's side makes itself, without a host or a server.

Among them are those for invalid replies of the server.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.concurrency.slices import run_in_slices
from toolbus.diagnostics.exit_codes import UNAUTHORIZED
from toolbus.errors import (
    Cancelled,
    Internal,
    InvalidArguments,
    InvalidResult,
    PermissionDenied,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.wire import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    BadBody,
    BadFrame,
    Result,
    unpack_body,
)
from toolbus.wire.body_steps import LARGE_BODY_BYTES, unpack_steps

__all__ = [
    "NotEnteredProxy",
    "check_loop",
    "decode_reply",
    "read_reply",
    "recorded_end",
    "request_encoding_error",
    "request_too_large_error",
    "room_closed_error",
]

_TOO_LARGE = 1009
_BAD_TOKEN = 4401


class NotEnteredProxy:
    """Stands for the attributes of a room before it is entered: using them is `Unavailable`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        message = "the room is not entered: async with RoomClient(...) as room"
        raise Unavailable(message, executed="no", retryable=False)


def check_loop(own: asyncio.AbstractEventLoop) -> None:
    """Raise `Unavailable` unless the event loop of a client runs in this thread.

    Futures, timers and the socket belong to that loop: used from another one, a call would be sent,
    and its reply would resume no task.
    """
    if asyncio.get_running_loop() is not own:
        message = (
            "this client belongs to another event loop: connect a client in each loop, or use"
            " toolbus.sync.RoomClient from any thread; a sync tool has context.call_sync"
        )
        raise Unavailable(message, executed="no", retryable=False)


def room_closed_error(cause: RoomException | None = None) -> RoomException:
    """Make the error for a closed room, with the cause unless the room was left.

    The end of a token is `PermissionDenied`, as its refusal by the server is.
    """
    message = "the room is closed" if cause is None else f"the room is closed: {cause.message}"
    details = {} if cause is None else dict(cause.details)
    if details.get("status") == UNAUTHORIZED or details.get("close_code") == _BAD_TOKEN:
        return PermissionDenied(message, details=details)
    return Unavailable(message, executed="no", retryable=False, details=details)


def recorded_end(end: BaseException | None) -> RoomException | None:
    """Return the error that a span records for a call without a result; None for one with it."""
    if end is None or isinstance(end, RoomException):
        return end
    if isinstance(end, asyncio.CancelledError):
        return Cancelled("the caller cancelled the call")
    return Internal(type(end).__name__)


def request_too_large_error(size: int) -> TooLarge:
    """Make the error for a request that is larger than one frame."""
    message = f"the request has {size} bytes, at most {MAX_FRAME_BYTES} can be sent"
    return TooLarge(message, executed="no")


def request_encoding_error(error: Exception) -> RoomException:
    """Make the error for a request that cannot be encoded as a frame."""
    if isinstance(error, BadFrame) and error.close_code == _TOO_LARGE:
        message = f"besides arguments or body a request has at most {MAX_HEADER_BYTES} bytes"
        return TooLarge(message, executed="no")
    if isinstance(error, UnicodeEncodeError):
        return InvalidArguments("text with a lone surrogate cannot be sent")
    return InvalidArguments(f"cannot be sent: {type(error).__name__}")


def decode_reply(answer: Any) -> dict[str, Any]:
    """Decode the server's reply to a request. Raises `InvalidResult` if it is not an object."""
    if type(answer) is not Result:
        raise InvalidResult("the server's reply is not an object", executed="no")
    try:
        return _one_object(unpack_body(answer.body, binary=True))
    except BadBody as error:
        raise InvalidResult("the server's reply cannot be decoded", executed="no") from error


async def read_reply(answer: Any) -> dict[str, Any]:
    """Do as `decode_reply`; a large reply is read in slices."""
    if type(answer) is not Result or len(answer.body) <= LARGE_BODY_BYTES:
        return decode_reply(answer)
    steps = unpack_steps(answer.body, binary=True)
    try:
        return _one_object(await run_in_slices(steps, len(answer.body)))
    except BadBody as error:
        raise InvalidResult("the server's reply cannot be decoded", executed="no") from error


def _one_object(body: Any) -> dict[str, Any]:
    if type(body) is not dict:
        raise InvalidResult("the server's reply is not an object", executed="no")
    return body
