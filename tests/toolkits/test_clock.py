"""The toolkit `clock`."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from toolbus import InvalidArguments, ToolContext, ToolFailed
from toolbus_toolkits.clock import ClockConfig, ClockTools, clock


async def _run(tool: str, **arguments: Any) -> Any:
    return (await clock().execute(ToolContext(), tool, arguments)).value


async def test_now_is_the_current_time_in_the_given_zone() -> None:
    for zone, hours in (("UTC", 0), ("Asia/Tokyo", 9), ("America/Phoenix", -7)):
        returned = datetime.fromisoformat(await _run("now", timezone=zone))
        assert returned.utcoffset() == timedelta(hours=hours)
        assert abs(datetime.now(UTC) - returned) < timedelta(seconds=30)
    assert (await _run("now")).endswith("+00:00")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"time": "2026-03-01T12:00:00+01:00", "to": "Asia/Tokyo"}, "2026-03-01T20:00:00+09:00"),
        ({"time": "2026-03-01T12:00:00Z", "to": "Europe/Oslo"}, "2026-03-01T13:00:00+01:00"),
        ({"time": "2026-07-01T12:00:00Z", "to": "Europe/Oslo"}, "2026-07-01T14:00:00+02:00"),
        (
            {"time": "2026-03-01T12:00:00+01:00", "to": "UTC", "timezone": "Asia/Tokyo"},
            "2026-03-01T11:00:00+00:00",
        ),
    ],
)
async def test_convert_keeps_the_instant(arguments: dict[str, str], expected: str) -> None:
    assert await _run("convert", **arguments) == expected


def test_time_without_an_offset_is_read_in_the_zone_given() -> None:
    noon = datetime(2026, 3, 1, 12)
    tools = ClockTools()
    assert tools.convert(noon, "UTC", timezone="Asia/Tokyo") == "2026-03-01T03:00:00+00:00"
    assert tools.convert(noon, "UTC") == "2026-03-01T12:00:00+00:00"
    assert ClockTools("Asia/Tokyo").convert(noon, "UTC") == "2026-03-01T03:00:00+00:00"


def test_zone_of_the_clock_must_exist() -> None:
    with pytest.raises(ValueError, match="there is no time zone 'Mars'"):
        ClockConfig(timezone="Mars")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "Europe", "../etc/passwd", "/etc/x", "a\0b"])
async def test_unknown_zone_is_a_failure_that_names_it(zone: str) -> None:
    with pytest.raises(ToolFailed, match="there is no time zone"):
        await _run("now", timezone=zone)


async def test_time_outside_the_calendar_is_a_tool_failure() -> None:
    with pytest.raises(ToolFailed, match="year"):
        await _run("convert", time="9999-12-31T23:59:59Z", to="Asia/Tokyo")


async def test_bad_arguments_are_refused() -> None:
    for arguments in ({"time": "noon", "to": "UTC"}, {"time": "2026-03-01T12:00:00Z"}):
        with pytest.raises(InvalidArguments):
            await _run("convert", **arguments)


def test_tools_stay_plain_functions_and_are_marked_harmless() -> None:
    assert datetime.fromisoformat(ClockTools().now("Europe/Oslo")).tzinfo is not None
    assert [(each.name, each.read_only, each.idempotent) for each in clock().tools] == [
        ("now", True, True),
        ("convert", True, True),
    ]


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the database of the system and that of the package `tzdata`."""
    for name in ["tzdata", *(each for each in sys.modules if each.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_time_zones")
def test_host_without_time_zones_names_the_extra() -> None:
    """UTC needs no database."""
    now = ClockTools().now
    assert now().endswith("+00:00")
    with pytest.raises(ToolFailed, match=r"pip install 'toolbus\[toolkits\]'"):
        now(timezone="Europe/Oslo")
