"""Every error a participant can meet, as one tree. Knows nothing of frames, sockets or time.

::

    RoomException
    |-- nothing ran, and trying again changes nothing
    |     NotFound, PermissionDenied, InvalidArguments, AlreadyExists, DuplicateCallId,
    |     DefinitionChanged, LoopDetected, ToolInactive, ApprovalDenied, ApprovalExpired
    |-- nothing ran, try again later
    |     NoHost, Overloaded, QuotaExceeded
    |-- the tool ran
    |     ToolFailed, InvalidResult
    +-- it depends on how far the call had come (read `executed`)
          Unavailable, DeadlineExceeded, Cancelled, HostLost, ConnectionLost, StreamBroken,
          StreamStalled, TooLarge, Internal

`executed` answers the one question that matters after an error: did the tool's function run?
"no" is never said of a call that reached a function, "yes" never of one that did not.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, TypeAlias

__all__ = [
    "ERRORS",
    "AlreadyExists",
    "ApprovalDenied",
    "ApprovalExpired",
    "Cancelled",
    "ConnectionLost",
    "DeadlineExceeded",
    "DefinitionChanged",
    "DuplicateCallId",
    "Executed",
    "HostLost",
    "Internal",
    "InvalidArguments",
    "InvalidResult",
    "LoopDetected",
    "NoHost",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "QuotaExceeded",
    "RoomException",
    "StreamBroken",
    "StreamStalled",
    "TooLarge",
    "ToolFailed",
    "ToolInactive",
    "Unavailable",
]

Executed: TypeAlias = Literal["no", "maybe", "yes"]
"""Whether the tool's function ran: "no" (certainly not), "yes" (it did, and has ended), "maybe"."""

_Rule: TypeAlias = Literal["never", "always", "if_not_executed"]


class RoomException(Exception):
    """Base of every error that toolbus raises.

    Args:
        message: Words for a person. Never decides anything; `code` does.
        executed: Whether the tool's function ran; the class's own answer unless given.
        retryable: Whether the same call may succeed later without harm; the class's rule unless
            given.
        details: What a program can use: paths, codes, counts. JSON values only.
        retry_after_s: Seconds to wait before another try, where the refusing side named them.
    """

    code: ClassVar[str] = "internal"
    """The name of the error on the wire; each code has one class."""
    _executed: ClassVar[Executed] = "maybe"
    _retry_rule: ClassVar[_Rule] = "never"

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Make one that is whole even if a subclass forgets to call `__init__`."""
        error = super().__new__(cls)
        RoomException.__init__(error)
        error.args = args
        return error

    def __init__(
        self,
        message: str = "",
        *,
        executed: Executed | None = None,
        retryable: bool | None = None,
        details: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message: str = str(message) or self.code.replace("_", " ")
        self.executed: Executed = executed if executed is not None else self._executed
        self.details: dict[str, Any] = details if isinstance(details, dict) else {}
        self.retry_after_s = retry_after_s
        self.retryable: bool = retryable if retryable is not None else self._may_retry()

    def _may_retry(self) -> bool:
        if self._retry_rule == "if_not_executed":
            return self.executed == "no"
        return self._retry_rule == "always"

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, executed={self.executed!r})"


class NotFound(RoomException):
    """No such toolkit or tool, or one that this participant may not know of."""

    code = "not_found"
    _executed = "no"


class PermissionDenied(RoomException):
    """A grant that the operation needs is missing from the token."""

    code = "permission_denied"
    _executed = "no"


class InvalidArguments(RoomException):
    """What was sent breaks a schema; `details` has `path` and `message`."""

    code = "invalid_arguments"
    _executed = "no"


class AlreadyExists(RoomException):
    """The name belongs to another identity."""

    code = "already_exists"
    _executed = "no"


class DuplicateCallId(RoomException):
    """A call with this id is in flight; the first one is not disturbed."""

    code = "duplicate_call_id"
    _executed = "no"


class DefinitionChanged(RoomException):
    """The toolkit is no longer the one whose digest the call was pinned to."""

    code = "definition_changed"
    _executed = "no"


class LoopDetected(RoomException):
    """Calls within calls went deeper than the hop limit."""

    code = "loop_detected"
    _executed = "no"


class ToolInactive(RoomException):
    """The tool exists, but its owner has switched it off for now."""

    code = "tool_inactive"
    _executed = "no"


class ApprovalDenied(RoomException):
    """Somebody who was asked to approve the call said no."""

    code = "approval_denied"
    _executed = "no"


class ApprovalExpired(RoomException):
    """Nobody approved the call in time."""

    code = "approval_expired"
    _executed = "no"


class NoHost(RoomException):
    """The toolkit is known, and nobody serves it at this moment."""

    code = "no_host"
    _executed = "no"
    _retry_rule = "always"


class Overloaded(RoomException):
    """The host, or the way to it, has more calls than it may hold."""

    code = "overloaded"
    _executed = "no"
    _retry_rule = "always"


class QuotaExceeded(RoomException):
    """A limit set for this participant is reached."""

    code = "quota_exceeded"
    _executed = "no"
    _retry_rule = "always"


class ToolFailed(RoomException):
    """The tool's function was entered and raised.

    A tool raises it to send its own words, `ToolFailed("no such account", retryable=False)`. The
    text of any other exception stays at the host; its class travels in `details["cause"]`.
    """

    code = "tool_failed"
    _executed = "yes"


class InvalidResult(RoomException):
    """The tool returned what breaks its output schema or cannot be sent."""

    code = "invalid_result"
    _executed = "yes"


class Unavailable(RoomException):
    """The server cannot be reached, or is leaving."""

    code = "unavailable"
    _retry_rule = "if_not_executed"


class DeadlineExceeded(RoomException):
    """The call's time was up, or the tool's own `timeout_s` was."""

    code = "deadline_exceeded"
    _retry_rule = "if_not_executed"


class Cancelled(RoomException):
    """The caller gave the call up. The awaiting task sees `asyncio.CancelledError` instead."""

    code = "cancelled"
    _retry_rule = "if_not_executed"


class HostLost(RoomException):
    """The connection to the host ended before its answer came."""

    code = "host_lost"
    _retry_rule = "if_not_executed"


class ConnectionLost(RoomException):
    """The caller's own connection ended before the answer came."""

    code = "connection_lost"
    _retry_rule = "if_not_executed"


class StreamBroken(RoomException):
    """A stream lost a part of itself on the way."""

    code = "stream_broken"
    _retry_rule = "if_not_executed"


class StreamStalled(RoomException):
    """A stream brought nothing for longer than its idle limit."""

    code = "stream_stalled"
    _retry_rule = "if_not_executed"


class TooLarge(RoomException):
    """Arguments ("no") or a result ("yes") exceed what may be sent."""

    code = "too_large"


class Internal(RoomException):
    """A bug of toolbus itself, logged where it happened."""

    code = "internal"


def _every_class(root: type[RoomException]) -> dict[str, type[RoomException]]:
    return {subclass.code: subclass for subclass in root.__subclasses__()}


ERRORS: dict[str, type[RoomException]] = _every_class(RoomException)
"""The class of each code.

A code that a newer server invents is raised as a `RoomException` of no class of its own, whose
`code` is as it was sent.
"""
