"""Shell completion of names; errors and timeouts give no suggestions.

Names come from other participants, and shells put them into the command line as they are. So only
those are suggested that mean nothing to a shell, and that no command takes for an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer

from toolbus.auth.grants import GRANTS
from toolbus.cli.room_options import ROOM_SETTINGS, CommandRoom, RoomOptions, in_room
from toolbus.contexts import Contexts
from toolbus.errors import ERRORS
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.settings import PRESETS, home_of, records_file

__all__ = [
    "TOOLKITS",
    "complete_avatar",
    "complete_caller",
    "complete_context",
    "complete_grant",
    "complete_installed",
    "complete_name",
    "complete_outcome",
    "complete_owner",
    "complete_preset",
    "complete_recorded_tool",
    "complete_tool",
    "complete_toolkit",
]

TOOLKITS = "toolbus.toolkits"
"""The entry point group of toolkits."""
_TIMEOUT_S = 2.0
_MAX_RECORDED = 1_000
_PLAIN = re.compile(r"[\w@%+:.,/][\w@%+=:.,/-]*\Z")


def complete_tool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tool."""
    return _matching(
        (f"{info.name}.{tool}" for info in _visible_toolkits(ctx) for tool in info.tools),
        incomplete,
    )


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a toolkit or of a tool."""
    names = (
        [info.name, *(f"{info.name}.{tool}" for tool in info.tools)]
        for info in _visible_toolkits(ctx)
    )
    return _matching((name for several in names for name in several), incomplete)


def complete_toolkit(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a toolkit."""
    return _matching((info.name for info in _visible_toolkits(ctx)), incomplete)


def complete_owner(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an owner of toolkits."""
    return _matching((info.full_owner for info in _visible_toolkits(ctx)), incomplete)


def complete_avatar(incomplete: str) -> list[str]:
    """Complete the name of an installed avatar."""
    try:
        # Not through the package that reads them, which takes a second to import.
        files = (home_of(os.environ) / "avatars").iterdir()
        return _matching(sorted(file.stem for file in files), incomplete)
    except Exception:  # a traceback would disturb the shell
        return []


def complete_context(incomplete: str) -> list[str]:
    """Complete the name of a context."""
    try:
        return _matching(Contexts.load(home_of(os.environ)).named, incomplete)
    except Exception:  # a traceback would disturb the shell
        return []


def complete_grant(incomplete: str) -> list[str]:
    """Complete the name of a grant, with `=` where it has a value."""
    return _matching(
        (f"{name}=" if values else name for name, values in GRANTS.items()), incomplete
    )


def complete_preset(incomplete: str) -> list[str]:
    """Complete the name of a preset of grants."""
    return _matching(PRESETS, incomplete)


def complete_installed(incomplete: str) -> list[str]:
    """Complete the name of an installed toolkit."""
    try:
        return _matching(sorted(entry.name for entry in entry_points(group=TOOLKITS)), incomplete)
    except Exception:  # a traceback would disturb the shell
        return []


def complete_outcome(incomplete: str) -> list[str]:
    """Complete how a recorded call ended."""
    return _matching(("ok", *ERRORS), incomplete)


def complete_recorded_tool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tool that was called."""
    return _matching(_recorded(ctx, "tool"), incomplete)


def complete_caller(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a participant whose calls were recorded."""
    return _matching(_recorded(ctx, "caller"), incomplete)


def _recorded(ctx: typer.Context, column: str) -> list[str]:
    from toolbus.records.sqlite_file import read_names  # most commands complete no records

    try:
        path = ctx.params.get("path") or records_file(os.environ)
        return sorted(read_names(Path(path), column, _MAX_RECORDED))
    except Exception:  # a traceback would disturb the shell
        return []


def _visible_toolkits(ctx: typer.Context) -> list[ToolkitInfo]:
    flags: dict[str, Any] = {name: ctx.params.get(name) for name in ROOM_SETTINGS}

    async def toolkits(room: CommandRoom) -> list[ToolkitInfo]:
        return [info async for info in room.toolkits()]

    try:
        return in_room(RoomOptions(**flags), toolkits, timeout_s=_TIMEOUT_S, locked=False)
    except Exception:  # a traceback would disturb the shell
        return []


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [
        name for name in dict.fromkeys(names) if name.startswith(incomplete) and _PLAIN.match(name)
    ]
