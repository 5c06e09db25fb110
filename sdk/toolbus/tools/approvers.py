"""Who may approve the calls of a tool, and for how long a call waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from sys import float_info

from toolbus.chunks.json_values import shown
from toolbus.wire.frames import DEFAULT_APPROVAL_MS, NO_APPROVAL_LIMIT_MS

__all__ = ["DEFAULT_APPROVAL_S", "approval_milliseconds", "approval_seconds", "checked_approvers"]

DEFAULT_APPROVAL_S: float = DEFAULT_APPROVAL_MS / 1000
"""How long a call waits for a person unless somebody chose another time."""
_OTHERS = "others"


def approval_seconds(value: object, label: str) -> float | None:
    """Return how long a call waits for a person: 0 never waits, None waits without limit.

    Raises `ValueError`, with a label for what has it.
    """
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= float_info.max:  # type: ignore[operator]
        text = f"approval_timeout_s must be a number of seconds, or None, not {shown(value)}"
        raise ValueError(f"{label}: {text}")
    return float(value)  # type: ignore[arg-type]


def approval_milliseconds(seconds: float | None) -> int:
    """Return how long a call waits for a person, as the server is sent it."""
    if seconds is None or seconds >= NO_APPROVAL_LIMIT_MS / 1000:
        return NO_APPROVAL_LIMIT_MS
    return ceil(seconds * 1000)


def checked_approvers(values: Iterable[str], label: str) -> tuple[str, ...]:
    """Return who may approve calls. Raises `TypeError` or `ValueError`, with what has them."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{label}: approvers must be a list of texts, not {shown(values)}")
    entries = tuple(values)
    for entry in entries:
        kind, _, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        if entry != _OTHERS and not (kind in ("role", "name") and name and "*" not in name):
            raise ValueError(
                f"{label}: approvers has {shown(entry)}: write role:x, name:x, or 'others' for all"
                " but those who make the call"
            )
    return entries
