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

__all__ = [
    "Unentered",
    "does_not_fit",
    "hinted",
    "is_closed",
    "object_in",
    "recorded_end",
    "unsendable",
]

_TOO_LARGE = 1009
_CALL_OPTIONS = frozenset(
    {
        "participant",
        "timeout_s",
        "on_behalf_of",
        "caller_context",
        "attachment",
        "pin",
        "retry",
        "returns",
        "on_progress",
    }
)
"""What `Room.invoke` takes beside the arguments."""
_NO_ARGUMENT = (" is not known", " is not a JSON value")


class Unentered:
    """Stands for what a room has once it is entered: whatever is asked of it is `Unavailable`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        words = "the room is not entered: async with RoomClient(...) as room"
        raise Unavailable(words, executed="no", retryable=False)


def is_closed(why: RoomException | None = None) -> Unavailable:
    """Say that a room has ended for good, and what ended it, unless it was left."""
    words = "the room is closed" if why is None else f"the room is closed: {why.message}"
    details = None if why is None else dict(why.details)
    return Unavailable(words, executed="no", retryable=False, details=details)


def recorded_end(end: BaseException) -> RoomException:
    """Say how a call ended that gave no result, as its span shall have it."""
    if isinstance(end, RoomException):
        return end
    if isinstance(end, asyncio.CancelledError):
        return Cancelled("the caller gave the call up")
    return Internal(type(end).__name__)


def does_not_fit(size: int) -> TooLarge:
    """Say that a request is more bytes than one frame."""
    words = f"the request has {size} bytes, at most {MAX_FRAME_BYTES} can be sent"
    return TooLarge(words, executed="no")


def unsendable(error: Exception) -> RoomException:
    """Say that a request holds what no frame can."""
    if isinstance(error, BadFrame) and error.close_code == _TOO_LARGE:
        words = f"beside arguments or a body a request has at most {MAX_HEADER_BYTES} bytes"
        return TooLarge(words, executed="no")
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


def hinted(error: InvalidArguments) -> InvalidArguments:
    """Say, where an argument that was refused is named like an option of a call, what takes those.

    What a tool itself takes under such a name is an argument as any other.
    """
    path, why = (str(error.details.get(key, "")) for key in ("path", "message"))
    name = path.removeprefix("/")
    is_misplaced = why.endswith(_NO_ARGUMENT) or why.startswith("arguments ")
    if name not in _CALL_OPTIONS or not is_misplaced:
        return error
    words = (
        f"{error.message}; an option of the call goes to room.invoke(..., {name}=) or "
        f"proxy.with_options({name}=), not among the arguments"
    )
    return InvalidArguments(words, executed=error.executed, details=error.details)
