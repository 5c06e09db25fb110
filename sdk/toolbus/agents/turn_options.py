"""The options of a call of a turn, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toolbus.agents.turn_calls import CallOptions
from toolbus.chunks.attachments import as_attachment
from toolbus.chunks.json_values import packed_json, shown
from toolbus.client.call_options import MAX_TIMEOUT_S, ask_for_progress, call_seconds, is_time
from toolbus.client.input_sender import as_items, invalid_option
from toolbus.errors import DeadlineExceeded
from toolbus.wire import unpack_body

__all__ = ["GivenOptions", "call_options", "checked_timeout"]


class GivenOptions(NamedTuple):
    """The options of a call as they were given."""

    timeout_s: Any = None
    attachment: Any = None
    input: Any = None
    caller_context: Any = None
    on_progress: Callable[[Any], None] | None = None


_NONE = GivenOptions()


def call_options(given: GivenOptions, default_timeout_s: float) -> CallOptions:
    """Check the options of a call and what it sends.

    Raises `InvalidArguments`, and `DeadlineExceeded` if there is no time for it.
    """
    if given == _NONE:
        return CallOptions(default_timeout_s)
    is_default = given.timeout_s is None
    seconds = default_timeout_s if is_default else call_seconds(given.timeout_s)
    if given.input is not None and given.attachment is not None:
        raise invalid_option("input", "a call takes input or an attachment, not both")
    ask_for_progress({}, given.on_progress)  # raises
    if seconds <= 0:
        raise DeadlineExceeded("no time was left for the call", executed="no")
    return CallOptions(
        seconds,
        None if given.attachment is None else as_attachment(given.attachment),
        None if given.input is None else as_items(given.input),
        None if given.caller_context is None else _checked_context(given.caller_context),
        given.on_progress,
    )


def checked_timeout(seconds: object) -> float:
    """Return the time-out of a turn's calls. Raises `ValueError` unless it is above 0."""
    if is_time(seconds) and isinstance(seconds, int | float) and 0 < seconds < MAX_TIMEOUT_S:
        return float(seconds)
    raise ValueError(f"timeout_s must be a number of seconds above 0, not {shown(seconds)}")


def _checked_context(context: object) -> dict[str, Any]:
    """Return the caller's own data as the tool gets it: a copy, as JSON."""
    if not isinstance(context, Mapping):
        text = f"caller_context must be one object, not {shown(context)}"
        raise invalid_option("caller_context", text)
    copied: dict[str, Any] = unpack_body(packed_json("caller_context", dict(context)))
    return copied
