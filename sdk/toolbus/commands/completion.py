"""What a shell offers for a name that is half typed: nothing on any failure, and nothing late."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

import typer

from toolbus.commands.room_options import CommandRoom, RoomOptions, in_room
from toolbus.settings import PRESETS
from toolbus.toolkit_proxy import ToolkitInfo

__all__ = [
    "TOOLKITS",
    "complete_installed",
    "complete_name",
    "complete_owner",
    "complete_preset",
    "complete_tool",
]

TOOLKITS = "toolbus.toolkits"
"""The entry point group of toolkits."""
_PATIENCE_S = 2.0
_PLACE = ("url", "room", "token", "name")


def complete_tool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the tools that are there."""
    return _fitting(
        (f"{each.name}.{tool}" for each in _seen(ctx) for tool in each.tools), incomplete
    )


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the toolkits that are there, and their tools."""
    names = ([each.name, *(f"{each.name}.{tool}" for tool in each.tools)] for each in _seen(ctx))
    return _fitting((name for several in names for name in several), incomplete)


def complete_owner(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name those who host toolkits."""
    return _fitting((each.owner for each in _seen(ctx)), incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Name the sets of grants."""
    return _fitting(PRESETS, incomplete)


def complete_installed(incomplete: str) -> list[str]:
    """Name the toolkits that installed packages announce."""
    try:
        return _fitting(sorted(each.name for each in entry_points(group=TOOLKITS)), incomplete)
    except Exception:  # a shell never sees one
        return []


def _seen(ctx: typer.Context) -> list[ToolkitInfo]:
    place: dict[str, Any] = {name: ctx.params.get(name) for name in _PLACE}

    async def toolkits(room: CommandRoom) -> list[ToolkitInfo]:
        return [each async for each in room.toolkits()]

    try:
        return in_room(RoomOptions(**place), toolkits, patience_s=_PATIENCE_S)
    except Exception:  # a shell never sees one
        return []


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
