"""Reads what a caller asked for: times, names, an input, a listener, a type of the result.

Whatever is no such value is refused here, before anything is sent.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from toolbus.calls import DEFAULT_TIMEOUT_S
from toolbus.chunk_bodies import file_bodies
from toolbus.chunks import Chunk, FileChunk
from toolbus.errors import InvalidArguments
from toolbus.input_sender import (
    InputSender,
    as_attachment,
    bodies_of_items,
    check_readable,
)
from toolbus.plain_json import packed_json
from toolbus.wire import BadBody, pack_body

__all__ = [
    "Named",
    "ask_for_progress",
    "call_seconds",
    "converted",
    "feed_of",
    "idle_ms_of",
    "named_options",
    "text_of",
]

_MAX_TIMEOUT_S = 2**31

Named: TypeAlias = tuple[str | None, str | None, dict[str, Any] | None, str | None, bool]
"""Whose toolkit, on whose behalf, the caller's context, a pin, and whether to try again."""


def text_of(what: str, value: Any) -> str:
    """Return text as plain text; a server takes anything else for a broken frame.

    Raises InvalidArguments, which names `what`.
    """
    if not isinstance(value, str):
        raise InvalidArguments(f"{what} is text, not {type(value).__name__}")
    return str.__str__(value)


def call_seconds(value: Any) -> float:
    """Read the seconds that a call may take; None is 60. Raises InvalidArguments."""
    if value is None:
        return DEFAULT_TIMEOUT_S
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and -_MAX_TIMEOUT_S < value < _MAX_TIMEOUT_S:
        return float(value)
    raise InvalidArguments("timeout_s is a number of seconds, and not for ever")


def idle_ms_of(seconds: Any) -> int:
    """Read how long a stream may bring nothing; 0 is for ever. Raises InvalidArguments."""
    if seconds is None:
        return 0
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and 0 < seconds < _MAX_TIMEOUT_S:
        return max(1, round(float(seconds) * 1000))
    raise InvalidArguments("stall_timeout_s is a number of seconds above 0, or None for no limit")


def named_options(named: Named, parent: int | None) -> dict[str, Any]:
    """Settle what a call says beside its arguments. Raises InvalidArguments."""
    participant, on_behalf_of, caller_context, pin, _ = named
    options: dict[str, Any] = {}
    if participant is not None:
        options["participant"] = text_of("participant", participant)
    if parent is not None:
        options["parent"] = parent
    if on_behalf_of is not None:
        options["on_behalf_of"] = text_of("on_behalf_of", on_behalf_of)
    if pin is not None:
        options["pin"] = text_of("pin", pin)
    if caller_context is not None:
        try:
            options["caller_context"] = pack_body(caller_context)
        except BadBody:
            options["caller_context"] = packed_json("caller", caller_context)
    return options


def ask_for_progress(options: dict[str, Any], on_progress: Any) -> None:
    """Say in a call's options that somebody listens. Raises InvalidArguments."""
    if on_progress is None:
        return
    if not callable(on_progress) or iscoroutinefunction(on_progress):
        raise InvalidArguments("on_progress is a plain function, which takes one value")
    options["progress"] = True


async def feed_of(options: dict[str, Any], values: Any, attachment: Any) -> InputSender | None:
    """Make what sends a call's input, and say so in its options; None where it has none.

    Raises:
        InvalidArguments: It cannot be sent, or there are two.
        OSError: A file of this machine cannot be read.
    """
    if values is None and attachment is None:
        return None
    if values is not None and attachment is not None:
        raise InvalidArguments("a call takes input or an attachment, not both")
    options["input"] = True
    if attachment is None:
        return InputSender(bodies_of_items(values))
    file = as_attachment(attachment)
    await check_readable(file)
    return InputSender(file_bodies(file))


async def converted(chunk: Chunk, returns: Any) -> Any:
    """Convert a result into a type; a file that is to be its bytes is read whole first."""
    if isinstance(chunk, FileChunk) and not chunk.is_whole and returns is not FileChunk:
        chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
    return chunk.into(returns)
