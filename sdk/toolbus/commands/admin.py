"""`toolbus admin`: which rooms there are, sending somebody away, revoking tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from toolbus.commands.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.errors import NotFound
from toolbus.exit_codes import UsageMistake, printable

__all__ = ["admin"]

_COLUMNS = ("name", "participants", "toolkits", "calls")

admin: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)


class Nobody(NotFound):
    """Who shall be sent away is not there."""

    next_step = "`toolbus admin rooms` shows in which rooms somebody is"


@admin.callback()
def _admin() -> None:
    """Look after rooms; needs a token with the grant admin, as --preset full gives."""


@admin.command("rooms")
@joins_a_room
def _rooms(options: RoomOptions) -> None:
    """List the rooms that your token names, with how many are in them."""
    rooms = in_room(options, _all_rooms)
    if options.as_json:
        typer.echo(json.dumps(rooms, ensure_ascii=False))
        return
    rows = [_COLUMNS, *([str(each[column]) for column in _COLUMNS] for each in rooms)]
    _show(rows)


async def _all_rooms(room: CommandRoom) -> list[dict[str, Any]]:
    """Ask page by page. A server of an earlier release gives all rooms at once."""
    page = await room.admin("rooms")
    rooms: list[dict[str, Any]] = page["rooms"]
    while page.get("cursor") is not None:
        page = await room.admin("rooms", cursor=page["cursor"])
        rooms += page["rooms"]
    return rooms


@admin.command("kick")
@joins_a_room
def _kick(
    options: RoomOptions,
    participant: Annotated[str, typer.Argument(help="A name, or the id of one connection.")],
) -> None:
    """Send a participant out of the room; it may come back with a good token."""
    name = options.settle().room
    done = in_room(options, lambda room: room.admin("kick", room=name, participant=participant))
    if not done["closed"]:
        raise Nobody(f"nobody named {participant!r} is in room {name}")
    _say(options, done, f"closed {_connections(done)} of {printable(participant)}")


@admin.command("revoke")
@joins_a_room
def _revoke(
    options: RoomOptions,
    whose: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Whose tokens; with --issuer.")
    ] = None,
    issuer: Annotated[str | None, typer.Option(help="Who issued them.")] = None,
    jti: Annotated[str | None, typer.Option(help="The id of one token.")] = None,
) -> None:
    """Let the tokens that somebody has now, or one token, count no more, in every room."""
    if jti is None and (whose is None or issuer is None):
        raise UsageMistake("say whose tokens: NAME --issuer ISSUER, or --jti ID for a single one")
    if jti is not None and (whose is not None or issuer is not None):
        raise UsageMistake("--jti names one token: leave NAME and --issuer out")
    meant = {"jti": jti} if jti is not None else {"name": whose, "issuer": issuer}
    done = in_room(options, lambda room: room.admin("revoke", **meant))
    _say(options, done, f"revoked; closed {_connections(done)}")


def _connections(done: dict[str, Any]) -> str:
    return f"{done['closed']} connection{'' if done['closed'] == 1 else 's'}"


def _say(options: RoomOptions, facts: dict[str, Any], words: str) -> None:
    typer.echo(json.dumps(facts) if options.as_json else words)


def _show(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
