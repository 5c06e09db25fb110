"""A toolkit that returns the time. It is the smallest example, and keeps no state."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from toolbus import ToolFailed, Toolkit, tool

__all__ = ["clock", "convert", "now"]


@tool(read_only=True, idempotent=True)
def now(timezone: str = "UTC") -> str:
    """Return the current date and time, as ISO 8601 with its UTC offset.

    Args:
        timezone: IANA name of the time zone, such as "Europe/Oslo".
    """
    return datetime.now(_zone(timezone)).isoformat(timespec="seconds")


@tool(read_only=True, idempotent=True)
def convert(time: datetime, to: str, timezone: str = "UTC") -> str:
    """Convert a time to another time zone, as ISO 8601 with its UTC offset.

    Args:
        time: The time, such as "2026-03-01T12:00:00+01:00"; its own offset wins over `timezone`.
        to: IANA name of the target time zone.
        timezone: Time zone of a `time` that has no offset of its own.
    """
    moment = time if time.tzinfo is not None else time.replace(tzinfo=_zone(timezone))
    try:
        return moment.astimezone(_zone(to)).isoformat()
    except OverflowError as error:
        raise ToolFailed("in that time zone the year is not between 1 and 9999") from error


def clock() -> Toolkit:
    """Make the toolkit `clock`: `now` and `convert`."""
    return Toolkit(
        name="clock",
        title="Clock",
        description="The current time, in any time zone.",
        rules=[
            "Name time zones as IANA does, such as Europe/Oslo.",
            "State the time zone of every time.",
        ],
        tools=[now, convert],
    )


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, not a name, a folder of names
        if not available_timezones():
            raise ToolFailed(
                "the host has no database of time zones: pip install 'toolbus[toolkits]'"
            ) from error
        raise ToolFailed(
            f"there is no time zone {name!r}; IANA names look like 'Europe/Oslo'"
        ) from error
