"""Validates the options of a call: times, names, input, progress callback, type of the result.

Invalid values are refused here, before anything is sent.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from sys import float_info
from types import FunctionType
from typing import Any, TypeAlias, get_args

from pydantic import TypeAdapter

from toolbus.chunks.attachments import as_attachment, check_readable
from toolbus.chunks.chunk_sequences import file_bodies
from toolbus.chunks.chunk_types import Chunk, FileChunk
from toolbus.chunks.json_values import packed_json, shown
from toolbus.client.caller import DEFAULT_TIMEOUT_S
from toolbus.client.input_sender import InputSender, bodies_of_items, invalid_option
from toolbus.wire import BadBody, pack_body

__all__ = [
    "MAX_TIMEOUT_S",
    "NamedOptions",
    "RetryOptions",
    "ask_for_progress",
    "call_seconds",
    "converted",
    "idle_ms_of",
    "is_time",
    "make_input_sender",
    "named_options",
    "result_type",
    "text_of",
    "waiting_seconds",
]

MAX_TIMEOUT_S = 2**31
"""The timeout of a call is below this number of seconds."""

NamedOptions: TypeAlias = tuple[str | None, str | None, dict[str, Any] | None, str | None]
"""Owner of the toolkit, principal, the caller's context, and pin."""
RetryOptions: TypeAlias = tuple[bool, float | None]
"""Whether to retry, and for how many seconds to wait for a host; None is the room's value."""


def text_of(what: str, value: Any) -> str:
    """Return a string as a plain `str`; the server would refuse a subclass as a broken frame.

    Raises InvalidArguments that names `what`.
    """
    if not isinstance(value, str):
        raise invalid_option(what, f"{what} must be text, not {type(value).__name__}")
    return str.__str__(value)


def is_time(value: object) -> bool:
    """Whether this is a finite number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= float_info.max


def call_seconds(value: Any) -> float:
    """Validate the timeout of a call in seconds; None is 60. Raises InvalidArguments."""
    if value is None:
        return DEFAULT_TIMEOUT_S
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and -MAX_TIMEOUT_S < value < MAX_TIMEOUT_S:
        return float(value)
    raise invalid_option("timeout_s", "timeout_s must be a finite number of seconds")


def waiting_seconds(value: Any) -> float:
    """Validate for how many seconds a call waits for a host. Raises InvalidArguments."""
    if is_time(value) and value < MAX_TIMEOUT_S:
        return float(value)
    text = "wait_for_host_s must be a number of seconds, 0 or more"
    raise invalid_option("wait_for_host_s", text)


def idle_ms_of(seconds: Any) -> int:
    """Validate the stall timeout of a stream; 0 is no limit. Raises InvalidArguments."""
    if seconds is None:
        return 0
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and 0 < seconds < MAX_TIMEOUT_S:
        return max(1, round(float(seconds) * 1000))
    text = "stall_timeout_s must be a number of seconds above 0, or None"
    raise invalid_option("stall_timeout_s", text)


def named_options(named: NamedOptions) -> dict[str, Any]:
    """Make a call's options from its names and context. Raises InvalidArguments."""
    participant, on_behalf_of, caller_context, pin = named
    options: dict[str, Any] = {}
    if participant is not None:
        options["participant"] = text_of("participant", participant)
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
    """Add the progress option if there is a callback. Raises InvalidArguments."""
    if on_progress is None:
        return
    if not callable(on_progress) or iscoroutinefunction(on_progress):
        text = "on_progress must be a plain function with one parameter"
        raise invalid_option("on_progress", text)
    options["progress"] = True


async def make_input_sender(
    options: dict[str, Any], values: Any, attachment: Any
) -> InputSender | None:
    """Make the sender of a call's input and add the input option; None if there is no input.

    Raises:
        InvalidArguments: The input cannot be sent, or both kinds were given.
        OSError: A local file cannot be read.
    """
    if values is None and attachment is None:
        return None
    if values is not None and attachment is not None:
        raise invalid_option("input", "a call takes input or an attachment, not both")
    options["input"] = True
    if attachment is None:
        return InputSender(bodies_of_items(values))
    file = as_attachment(attachment)
    await check_readable(file)
    return InputSender(file_bodies(file))


def result_type(returns: Any) -> Any:
    """Return a requested type as `converted` takes it: a class of chunks, or an adapter.

    Raises TypeError if no result can be converted to it.
    """
    if isinstance(returns, TypeAdapter):
        return returns
    try:
        if isinstance(returns, type) and any(issubclass(kind, returns) for kind in get_args(Chunk)):
            return returns
        if isinstance(returns, str | FunctionType):  # pydantic accepts some of these
            raise TypeError("text or a function")
        adapter: TypeAdapter[Any] = TypeAdapter(returns)
        _ = adapter.validator.title  # raises if a name in an annotation cannot be resolved
    except Exception as error:
        text = f"returns must be a type that pydantic can read, not {shown(returns)}"
        raise TypeError(text) from error
    return adapter


async def converted(chunk: Chunk, returns: Any) -> Any:
    """Convert a result into a type; a file that becomes its bytes is read completely first."""
    if isinstance(chunk, FileChunk) and not chunk.is_whole and returns is not FileChunk:
        chunk = FileChunk(await chunk.read(), chunk.name, chunk.mime_type)
    return chunk.into(returns)
