"""All errors that toolbus raises, as one tree. Independent of frames, sockets and time.

    RoomException
    |-- the tool did not run, and a retry does not help
    |     NotFound, PermissionDenied, InvalidArguments, AlreadyExists, DuplicateCallId,
    |     DefinitionChanged, DefinitionConflict, LoopDetected, ToolInactive, ApprovalDenied,
    |     ApprovalExpired
    |-- the tool did not run, and a later retry may succeed
    |     NoHost, Overloaded, QuotaExceeded
    |-- the tool ran
    |     ToolFailed, InvalidResult
    +-- the tool may have run (read `executed`)
          Unavailable, DeadlineExceeded, Cancelled, HostLost, ConnectionLost, StreamBroken,
          StreamStalled, TooLarge, Internal

`executed` says whether the tool's function ran. It is never "no" for a call that reached the
function, and never "yes" for a call that did not.
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
    "DefinitionConflict",
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
"""Whether the tool's function ran: "no" (certainly not), "yes" (it ran and ended) or "maybe"."""

_Rule: TypeAlias = Literal["never", "always", "if_not_executed"]


class RoomException(Exception):
    """Base of every error that toolbus raises.

    Args:
        message: Text for people. Programs decide by `code`, not by this text.
        executed: Whether the tool's function ran. The default is that of the class.
        retryable: Whether it is safe and useful to retry the same call later. The default follows
            the rule of the class.
        details: Data for programs, such as paths, codes and counts. JSON values only.
        retry_after_s: Seconds to wait before a retry, where the refusing side gave them.
    """

    code: ClassVar[str] = "internal"
    """The name of the error on the wire; each code has exactly one class."""
    _executed: ClassVar[Executed] = "maybe"
    _retry_rule: ClassVar[_Rule] = "never"

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Create a complete error even if a subclass does not call `__init__`."""
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
        self.executed: Executed = executed or self._executed
        self.details: dict[str, Any] = details if isinstance(details, dict) else {}
        self.retry_after_s = retry_after_s
        if retryable is None:
            is_safe = self._retry_rule == "if_not_executed" and self.executed == "no"
            retryable = is_safe or self._retry_rule == "always"
        self.retryable: bool = retryable

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, executed={self.executed!r})"


def note_call(error: BaseException | None, tool: str) -> None:
    """Add a note for tracebacks, which show neither: the tool that was called, and `executed`.

    Not to the text of the error: that reaches callers who may not see the tool.
    """
    if isinstance(error, RoomException):
        note = f"the call of {tool} failed (executed: {error.executed})"
        if note not in getattr(error, "__notes__", ()):  # a stream raises its error again
            error.add_note(note)


class NotFound(RoomException):
    """The toolkit or tool does not exist, or is not visible to this participant."""

    code = "not_found"
    _executed = "no"


class PermissionDenied(RoomException):
    """The token is refused or lacks a grant, or permissions deny the call, such as by a rule."""

    code = "permission_denied"
    _executed = "no"


class InvalidArguments(RoomException):
    """An argument, option or name is invalid.

    For a violated schema `details` has `path` and `message`, and, if several values are invalid,
    `all`: a list with `path` and `message` of each, up to 32, the first included.
    """

    code = "invalid_arguments"
    _executed = "no"


class AlreadyExists(RoomException):
    """Another identity owns the name."""

    code = "already_exists"
    _executed = "no"


class DuplicateCallId(RoomException):
    """A call with this id is already in flight; that call continues."""

    code = "duplicate_call_id"
    _executed = "no"


class DefinitionChanged(RoomException):
    """The toolkit's digest is not the one that the call was pinned to."""

    code = "definition_changed"
    _executed = "no"


class DefinitionConflict(RoomException):
    """A toolkit hosted with `supersede=False` has other hosts with another definition.

    `details` has the `version` and the `digest` of that definition.
    """

    code = "definition_conflict"
    _executed = "no"


class LoopDetected(RoomException):
    """Nested calls exceeded the hop limit."""

    code = "loop_detected"
    _executed = "no"


class ToolInactive(RoomException):
    """The tool is in a group of its turn that is inactive.

    `details` has the `group`, and the call that activates it as `tool` and `arguments`.
    """

    code = "tool_inactive"
    _executed = "no"


class ApprovalDenied(RoomException):
    """A participant who was asked to approve the call denied it."""

    code = "approval_denied"
    _executed = "no"


class ApprovalExpired(RoomException):
    """The call was not approved in time."""

    code = "approval_expired"
    _executed = "no"


class NoHost(RoomException):
    """The toolkit is known, but no host serves it now."""

    code = "no_host"
    _executed = "no"
    _retry_rule = "always"


class Overloaded(RoomException):
    """The host, or a server on the path to it, has reached its limit of pending calls."""

    code = "overloaded"
    _executed = "no"
    _retry_rule = "always"


class QuotaExceeded(RoomException):
    """A limit of this participant is reached."""

    code = "quota_exceeded"
    _executed = "no"
    _retry_rule = "always"


class ToolFailed(RoomException):
    """The tool's function started and raised an exception.

    A tool raises it to send its own message: `ToolFailed("no such account", retryable=False)`. Of
    any other exception the class is sent, in `details["cause"]`, and its text only where `errors=`
    of the tool or its toolkit says so, then in `details["text"]` too. If the server
    refused a call of the tool, `details["refused"]` has the missing grant.
    """

    code = "tool_failed"
    _executed = "yes"


class InvalidResult(RoomException):
    """The tool's result violates its output schema or cannot be encoded."""

    code = "invalid_result"
    _executed = "yes"


class Unavailable(RoomException):
    """The call or request cannot be sent.

    The server is unreachable or shuts down, or the room is not entered, is closed or drains.
    """

    code = "unavailable"
    _retry_rule = "if_not_executed"


class DeadlineExceeded(RoomException):
    """The deadline of the call, or the tool's own `timeout_s`, has passed."""

    code = "deadline_exceeded"
    _retry_rule = "if_not_executed"


class Cancelled(RoomException):
    """The call was cancelled: by its caller, or because it lost its authority.

    A task that is cancelled while it awaits a call sees `asyncio.CancelledError` instead. A call
    loses its authority when the call around it ends, or when the participant that it was made for
    leaves or loses the grant.
    """

    code = "cancelled"
    _retry_rule = "if_not_executed"


class HostLost(RoomException):
    """The connection to the host closed before the result arrived."""

    code = "host_lost"
    _retry_rule = "if_not_executed"


class ConnectionLost(RoomException):
    """The caller's own connection closed before the result arrived."""

    code = "connection_lost"
    _retry_rule = "if_not_executed"


class StreamBroken(RoomException):
    """Part of a stream was lost in transit."""

    code = "stream_broken"
    _retry_rule = "if_not_executed"


class StreamStalled(RoomException):
    """Nothing passed for longer than a limit: its host, its reader or its input has stalled."""

    code = "stream_stalled"
    _retry_rule = "if_not_executed"


class TooLarge(RoomException):
    """Arguments (`executed` "no") or a result ("yes") exceed the size limit."""

    code = "too_large"


class Internal(RoomException):
    """A bug in toolbus itself, logged where it occurred."""

    code = "internal"


ERRORS: dict[str, type[RoomException]] = {
    subclass.code: subclass for subclass in RoomException.__subclasses__()
}
"""The class of each code.

A code that this release does not know is raised as a plain `RoomException` with that `code`.
"""
