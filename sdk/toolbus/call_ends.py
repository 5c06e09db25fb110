"""How a call ends at its caller without the word of a host or a server: the errors for that.

Also for an answer of the server's that is not what it has to be.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.errors import (
    Cancelled,
    Internal,
    InvalidArguments,
    InvalidResult,
    RoomException,
    TooLarge,
)
from toolbus.wire import BadBody, BadFrame, Result, unpack_body

__all__ = ["does_not_fit", "object_in", "recorded_end", "unsendable"]

_TOO_LARGE = 1009


def recorded_end(end: BaseException) -> RoomException:
    """Say how a call ended that gave no result, as its span shall have it."""
    if isinstance(end, RoomException):
        return end
    if isinstance(end, asyncio.CancelledError):
        return Cancelled("the caller gave the call up")
    return Internal(type(end).__name__)


def does_not_fit() -> TooLarge:
    """Say that a request is more than one frame."""
    return TooLarge("the request does not fit one frame", executed="no")


def unsendable(error: Exception) -> RoomException:
    """Say that a request holds what no frame can."""
    if isinstance(error, BadFrame) and error.close_code == _TOO_LARGE:
        return does_not_fit()
    return InvalidArguments(f"cannot be sent: {type(error).__name__}")


def object_in(answer: Any) -> dict[str, Any]:
    """Read the server's answer to a request. Raises `InvalidResult` where it is no object."""
    if type(answer) is not Result:
        raise InvalidResult("the server's answer is no object", executed="no")
    try:
        body = unpack_body(answer.body, binary=True)
    except BadBody as error:
        raise InvalidResult("the server's answer cannot be read", executed="no") from error
    if type(body) is not dict:
        raise InvalidResult("the server's answer is no object", executed="no")
    return body
