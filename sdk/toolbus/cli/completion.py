"""Shell completion of names; errors and timeouts give no suggestions.

Names come from other participants, and shells put them into the command line as they are. So only
those are suggested that mean nothing to a shell, and that no command takes for an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from toolbus.auth.grant_options import PRESETS
from toolbus.auth.grants import GRANTS
from toolbus.cli.room_options import ROOM_SETTINGS, CommandRoom, RoomOptions, in_room
from toolbus.contexts import Contexts
from toolbus.errors import ERRORS
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.settings import home_of, records_file

__all__ = [
    "TOOLKITS",
    "Owner",
    "complete_avatar",
    "complete_caller",
    "complete_context",
    "complete_grant",
    "complete_granted",
    "complete_hold",
    "complete_installed",
    "complete_name",
    "complete_outcome",
    "complete_owner",
    "complete_preset",
    "complete_recorded_tool",
    "complete_tool",
    "complete_toolkit",
]

T = TypeVar("T")
TOOLKITS = "toolbus.toolkits"
"""The entry point group of toolkits."""
_PLAIN = re.compile(r"[\w@%+:.,/][\w@%+=:.,/-]*\Z")


def _matching(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    try:
        found = dict.fromkeys(names())
    except Exception:  # a traceback would disturb the shell
        return []
    return [name for name in found if name.startswith(incomplete) and _PLAIN.match(name)]


# Of a room


def complete_tool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tool."""
    return _matching(
        lambda: [f"{info.name}.{tool}" for info in _toolkits(ctx) for tool in info.tools],
        incomplete,
    )


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a toolkit or of a tool."""

    def names() -> Iterator[str]:
        for info in _toolkits(ctx):
            yield info.name
            yield from (f"{info.name}.{tool}" for tool in info.tools)

    return _matching(names, incomplete)


def complete_toolkit(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a toolkit."""
    return _matching(lambda: [info.name for info in _toolkits(ctx)], incomplete)


def complete_owner(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an owner of toolkits."""
    return _matching(lambda: [info.full_owner for info in _toolkits(ctx)], incomplete)


def complete_hold(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a call that waits for a person."""
    return _matching(lambda: [hold.id for hold in _with_room(ctx, CommandRoom.holds)], incomplete)


def complete_granted(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of a granted rule."""
    return _matching(
        lambda: [rule.id for rule in _with_room(ctx, CommandRoom.granted_rules)], incomplete
    )


Owner: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Owner of the toolkit, if it is private and shared with you.",
        autocompletion=complete_owner,
    ),
]
"""The option `--participant` of commands about one toolkit."""


def _toolkits(ctx: typer.Context) -> list[ToolkitInfo]:
    return _with_room(ctx, CommandRoom.all_toolkits)


def _with_room(ctx: typer.Context, read: Callable[[CommandRoom], Awaitable[T]]) -> T:
    flags: dict[str, Any] = {name: ctx.params.get(name) for name in ROOM_SETTINGS}
    return in_room(RoomOptions(**flags), read, timeout_s=2, locked=False)


# Of this machine


def complete_avatar(incomplete: str) -> list[str]:
    """Complete the name of an installed avatar."""
    # Not through the package that reads them, which takes a second to import.
    folder = home_of(os.environ) / "avatars"
    return _matching(lambda: sorted(file.stem for file in folder.iterdir()), incomplete)


def complete_context(incomplete: str) -> list[str]:
    """Complete the name of a context."""
    return _matching(lambda: Contexts.load(home_of(os.environ)).named, incomplete)


def complete_installed(incomplete: str) -> list[str]:
    """Complete the name of an installed toolkit."""
    return _matching(
        lambda: sorted(entry.name for entry in entry_points(group=TOOLKITS)), incomplete
    )


def complete_recorded_tool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a tool that was called."""
    return _matching(lambda: _recorded(ctx, "tool"), incomplete)


def complete_caller(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a participant whose calls were recorded."""
    return _matching(lambda: _recorded(ctx, "caller"), incomplete)


def _recorded(ctx: typer.Context, column: str) -> list[str]:
    from toolbus.records.sqlite_file import read_names  # most commands complete no records

    path = ctx.params.get("path") or records_file(os.environ)
    return sorted(read_names(Path(path), column, 1_000))


# Of toolbus


def complete_grant(incomplete: str) -> list[str]:
    """Complete the name of a grant, with `=` where it has a value."""
    names = (f"{name}=" if values else name for name, values in GRANTS.items())
    return _matching(lambda: names, incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Complete the name of a preset of grants."""
    return _matching(lambda: PRESETS, incomplete)


def complete_outcome(incomplete: str) -> list[str]:
    """Complete how a recorded call ended."""
    return _matching(lambda: ("ok", *ERRORS), incomplete)
