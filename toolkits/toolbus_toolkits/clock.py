"""A toolkit that returns the time. It is the smallest example of a factory, and keeps no state."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, Field, field_validator

from toolbus import ToolFailed, Toolkit, tool

__all__ = ["ClockConfig", "ClockTools", "clock"]


class ClockConfig(BaseModel, frozen=True, extra="forbid"):
    """The time zone of the toolkit `clock`; `ValidationError` for one that does not exist."""

    timezone: str = Field("UTC", description="IANA name of the zone where a call names none.")

    @field_validator("timezone")
    @classmethod
    def _must_exist(cls, timezone: str) -> str:
        try:
            _zone(timezone)
        except ToolFailed as error:
            raise ValueError(error.message) from None
        return timezone


class ClockTools:
    """The tools of the toolkit `clock`, with the zone where a call names none."""

    def __init__(self, timezone: str = "UTC") -> None:
        self._timezone = timezone

    @tool(read_only=True, idempotent=True)
    def now(self, timezone: str | None = None) -> str:
        """Return the current date and time, as ISO 8601 with its UTC offset.

        Args:
            timezone: IANA name of the time zone, such as "Europe/Oslo"; by default the clock's own.
        """
        zone = _zone(self._timezone if timezone is None else timezone)
        return datetime.now(zone).isoformat(timespec="seconds")

    @tool(read_only=True, idempotent=True)
    def convert(self, time: datetime, to: str, timezone: str | None = None) -> str:
        """Convert a time to another time zone, as ISO 8601 with its UTC offset.

        Args:
            time: Such as "2026-03-01T12:00:00+01:00"; its own offset wins over `timezone`.
            to: IANA name of the target time zone.
            timezone: Time zone of a `time` without an offset; by default the clock's own.
        """
        zone = _zone(self._timezone if timezone is None else timezone)
        try:
            return time.replace(tzinfo=time.tzinfo or zone).astimezone(_zone(to)).isoformat()
        except OverflowError as error:
            raise ToolFailed("in that time zone the year is not between 1 and 9999") from error


_UTC_CLOCK = ClockConfig()


def clock(config: ClockConfig = _UTC_CLOCK) -> Toolkit:
    """Make the toolkit `clock`, the current time: `now` and `convert`."""
    tools = ClockTools(config.timezone)
    return Toolkit(
        name="clock",
        title="Clock",
        description=f"The current time, in any time zone; {config.timezone} where none is named.",
        rules=[
            "Name time zones as IANA does, such as Europe/Oslo.",
            "State the time zone of every time.",
        ],
        tools=[tools.now, tools.convert],
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
