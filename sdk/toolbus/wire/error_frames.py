"""Converts exceptions to `failed` frames, and `failed` frames to exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

from toolbus.errors import ERRORS, Executed, RoomException
from toolbus.wire.codec import BadBody, pack_body, unpack_body
from toolbus.wire.frames import Failed

__all__ = ["MAX_MESSAGE_CHARS", "exception_of", "failed"]

T = TypeVar("T")
_EXECUTED: tuple[str, ...] = get_args(Executed)
MAX_MESSAGE_CHARS = 4_096
"""The longest message of an error (PROTOCOL.md, ERR-7)."""
_MAX_DETAILS_BYTES = 32_768
"""Of an error: it is sent and logged where no credit holds it back (PROTOCOL.md, ERR-7)."""
_MAX_PAUSE_S = 86_400.0
"""A tool chooses its pause: infinity is not an integer, and 2^53 ms would break the frame."""


class UnknownError(RoomException):
    """An error whose code this release does not know; `code` is the one that was received."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.code = code  # type: ignore[misc]  # a class attribute everywhere else


def failed(request_id: int, error: RoomException) -> Failed:
    """Convert an error to the frame that ends a request.

    Tools raise errors too, so a field with an invalid value is replaced by one that can be sent.
    """
    return Failed(
        request_id,
        _read(error, "code", _text, "internal"),
        _read(error, "executed", _executed, "maybe"),
        _read(error, "retryable", bool, False),
        _read(error, "message", _text, ""),
        _read(error, "details", _packed_details, None),
        _read(error, "retry_after_s", _pause_ms, None),
    )


def _read(error: RoomException, field: str, convert: Callable[[Any], T], otherwise: T) -> T:
    try:
        return convert(getattr(error, field))
    except Exception:  # the value comes from a tool, and its methods may raise anything
        return otherwise


def _executed(value: object) -> str:
    return value if isinstance(value, str) and value in _EXECUTED else "maybe"


def _text(message: object) -> str:
    text = str.__str__(message) if isinstance(message, str) else str(message)
    return text[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode("utf-8")


def _pause_ms(pause_s: object) -> int | None:
    if not isinstance(pause_s, int | float) or not pause_s >= 0:
        return None
    return int(min(pause_s, _MAX_PAUSE_S) * 1000)


def _packed_details(details: dict[str, Any]) -> bytes | None:
    if not details:
        return None
    try:
        packed = pack_body(details)
    except BadBody:
        return None
    return packed if len(packed) <= _MAX_DETAILS_BYTES else None


def exception_of(frame: Failed) -> RoomException:
    """Convert the frame that ended a request to an exception.

    `executed` is kept only if it is one of the three values; else it is "maybe".
    """
    facts: dict[str, Any] = {
        "executed": cast(Executed, _executed(frame.executed)),
        "retryable": frame.retryable,
        "details": _details_of(frame),
        "retry_after_s": None if frame.retry_after_ms is None else frame.retry_after_ms / 1000,
    }
    error = ERRORS.get(frame.code)
    if error is None:
        return UnknownError(frame.code[:64], frame.message, **facts)
    return error(frame.message, **facts)


def _details_of(frame: Failed) -> dict[str, Any]:
    # Details that could not be forwarded are not read either.
    if frame.details is None or len(frame.details) > _MAX_DETAILS_BYTES:
        return {}
    try:
        details = unpack_body(frame.details)
    except BadBody:
        return {}
    return details if isinstance(details, dict) else {}
