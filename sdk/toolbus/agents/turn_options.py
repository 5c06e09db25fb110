"""The options of a call of a turn, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolbus.chunks.json_values import packed_json, shown
from toolbus.client.call_options import MAX_TIMEOUT_S, CallOptions, call_seconds, is_time
from toolbus.client.input_sender import invalid_option
from toolbus.errors import DeadlineExceeded
from toolbus.wire import unpack_body

__all__ = ["call_options", "checked_timeout"]


def call_options(given: Mapping[str, Any], default_timeout_s: float) -> CallOptions:
    """Check the options of a call and what it sends.

    Args:
        given: Those of the keywords of `Turn.invoke` that were given.
        default_timeout_s: The time-out of a call that names none.

    Raises `InvalidArguments`, and `DeadlineExceeded` if there is no time for it.
    """
    context = given.get("caller_context")
    options = CallOptions(
        timeout_s=call_seconds(given.get("timeout_s"), default_timeout_s),
        caller_context=None if context is None else _checked_context(context),
        attachment=given.get("attachment"),
        input=given.get("input"),
        on_progress=given.get("on_progress"),
    )
    if options.timeout_s <= 0:
        raise DeadlineExceeded("no time was left for the call", executed="no")
    return options


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
