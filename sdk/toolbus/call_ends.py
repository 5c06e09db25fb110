"""How a call ends at its caller without the word of a host or a server: the errors for that."""

from __future__ import annotations

import asyncio

from toolbus.errors import Cancelled, Internal, InvalidArguments, RoomException, TooLarge

__all__ = ["does_not_fit", "recorded_end", "unsendable"]


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


def unsendable(error: Exception) -> InvalidArguments:
    """Say that a request holds what no frame can."""
    return InvalidArguments(f"cannot be sent: {type(error).__name__}")
