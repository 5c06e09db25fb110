"""The options of calls and other requests: read, checked, and refused by their path.

Pure: it knows neither rooms nor sockets. A cursor is text that only its writer has to understand.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from toolbus.errors import InvalidArguments
from toolbus.wire import BadBody, pack_body, unpack_body

__all__ = [
    "CALL_OPTIONS",
    "MAX_PAGE",
    "MAX_PAGE_BYTES",
    "STREAM_OPTIONS",
    "bad_option",
    "check_options",
    "cursor_text",
    "page_limit",
    "read_cursor",
    "read_option",
]

MAX_PAGE = 100
"""How many items one page of a list has at most."""
MAX_PAGE_BYTES = 256 * 1024
"""A page that has more bytes than this takes no further item."""
STREAM_OPTIONS: Mapping[str, type] = {
    "credit_chunks": int,
    "credit_bytes": int,
    "idle_ms": int,
    "input": bool,
    "progress": bool,
}
"""Options of a call that concern its streams."""
CALL_OPTIONS: Mapping[str, type] = {
    "participant": str,
    "parent": int,
    "on_behalf_of": str,
    "pin": str,
    "attempt": int,
    "caller_context": bytes,
    "affinity": str,
    **STREAM_OPTIONS,
}
"""Options of a call, with the types of their values."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse an option of a call whose value has another type. Raises InvalidArguments."""
    for name, value in options.items():
        expected = CALL_OPTIONS.get(name)
        if expected is not None and type(value) is not expected:
            raise bad_option(name, f"is not {expected.__name__}")


def bad_option(name: str, message: str, **more: Any) -> InvalidArguments:
    """Make the error that refuses an option.

    Args:
        name: Where the option stands.
        message: What it is to be.
        more: What else the error's details say.
    """
    details = {"path": f"/{name}", "message": message, **more}
    return InvalidArguments(f"{name} {message}", details=details)


def read_option(options: dict[str, Any], name: str, kind: type) -> Any:
    """Return an option, or None where there is none. Raises InvalidArguments for another type."""
    value = options.get(name)
    if value is not None and type(value) is not kind:
        raise bad_option(name, f"is not {kind.__name__}")
    return value


def page_limit(options: dict[str, Any], most: int = MAX_PAGE) -> int:
    """Say how many items a page may have, as `limit` asks. Raises InvalidArguments."""
    limit = read_option(options, "limit", int)
    return most if limit is None else max(1, min(int(limit), most))


def cursor_text(place: Sequence[Any]) -> str:
    """Write down where a page ended."""
    return base64.urlsafe_b64encode(pack_body(list(place))).decode()


def read_cursor(options: dict[str, Any], kinds: Sequence[type]) -> tuple[Any, ...] | None:
    """Return the place behind which the next page begins, None for the first page.

    Args:
        options: Those of the request.
        kinds: The types of the parts of a place.

    Raises:
        InvalidArguments: It is none of ours.
    """
    text = read_option(options, "cursor", str)
    if text is None:
        return None
    try:
        place = unpack_body(base64.urlsafe_b64decode(text))
    except (binascii.Error, ValueError, BadBody) as error:
        raise bad_option("cursor", "is not one of ours") from error
    if type(place) is not list or [type(part) for part in place] != list(kinds):
        raise bad_option("cursor", "is not one of ours")
    return tuple(place)
