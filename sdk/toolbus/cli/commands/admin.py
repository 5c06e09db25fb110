"""`toolbus admin`: lists rooms, removes participants, revokes tokens."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from math import ceil
from typing import Annotated, Any

import typer

from toolbus.auth.token_limits import LEEWAY_S
from toolbus.chunks.json_values import shown
from toolbus.cli.columns import counted, show_columns
from toolbus.cli.commands.token import read_duration_s
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.errors import NotFound
from toolbus.untrusted_text import json_text, one_line

__all__ = ["admin"]

_COLUMNS = ("name", "participants", "toolkits", "calls")

admin: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)


@admin.callback()
def _admin() -> None:
    """Administer rooms.

    Needs the grant admin (`toolbus token create --name NAME --grant admin`); to revoke, for all
    rooms (--room '*').
    """


@admin.command("rooms")
@joins_a_room
def _rooms(options: RoomOptions) -> None:
    """List the rooms of your token with their numbers of participants, toolkits and calls."""
    rooms = in_room(options, _all_rooms)
    if options.as_json:
        typer.echo(json_text(rooms))
        return
    rows = [_COLUMNS, *([str(room[column]) for column in _COLUMNS] for room in rooms)]
    show_columns(rows)


async def _all_rooms(room: CommandRoom) -> list[dict[str, Any]]:
    """Request all pages. A server of an earlier release returns all rooms in one."""
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
    participant: Annotated[
        str, typer.Argument(help="Name of the participant, or id of one connection.")
    ],
) -> None:
    """Disconnect a participant from the room; it may join again with a valid token."""
    name = options.resolve().room
    done = in_room(options, lambda room: room.admin("kick", room=name, participant=participant))
    if not done["closed"]:
        raise with_step(
            NotFound(f"no participant {shown(participant)} is in room {name}"),
            "`toolbus room participants` lists the participants of the room",
        )
    _print(
        options, done, f"closed {counted(done['closed'], 'connection')} of {one_line(participant)}"
    )


@admin.command("revoke")
@joins_a_room
def _revoke(
    options: RoomOptions,
    participant: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Revoke all tokens of this name: of your issuer, or ALIAS/NAME."
        ),
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="Issuer of these tokens, instead of its alias in NAME.")
    ] = None,
    jti: Annotated[str | None, typer.Option(help="Revoke only the token with this id.")] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the last life of that token ends, as its claim `until` says: in seconds "
            "since the epoch, as 2027-01-31T12:00:00Z, or from now on as 30d. The revocation is "
            "stored until then, and by default for 400 days.",
        ),
    ] = None,
) -> None:
    """Revoke all present tokens of a name, or one token, in every room."""
    if jti is None and participant is None:
        raise UsageError("name the tokens: NAME or ALIAS/NAME, or --jti ID for a single one")
    if jti is not None and (participant is not None or issuer is not None):
        raise UsageError("--jti selects a single token: omit NAME and --issuer")
    if until is not None and jti is None:
        raise UsageError("--until is for one token: write it beside --jti")
    ends_at = None if until is None else _read_time(until)
    given = {"jti": jti, "name": participant, "issuer": issuer, "until": ends_at}
    selected = {name: value for name, value in given.items() if value is not None}
    done = in_room(options, lambda room: room.admin("revoke", **selected))
    if done.get("stored") is False:
        text = "not stored yet: it is lost if the server ends before it can write its state"
        typer.echo(text, err=True)
    if done.get("unknown_issuer"):
        error = NotFound(
            f"no key of the server has the issuer {shown(issuer)}: the revocation is stored, and "
            f"closed {counted(done['closed'], 'connection')}",
            executed="yes",
            details=done,
        )
        step = "--issuer is the `iss` of a key of the server, not its alias; or write ALIAS/NAME"
        raise with_step(error, step)
    text = f"revoked; closed {counted(done['closed'], 'connection')}"
    if participant is not None:
        if not done["closed"]:
            text = f"{text}, nobody of that name was connected"
        # Clocks may differ, so the server revokes tokens too that are created a little later.
        after = datetime.fromtimestamp(ceil(time.time() + LEEWAY_S), UTC)
        who = one_line(participant)
        text = f"{text}; tokens of {who} that are created after {after:%H:%M:%SZ} are accepted"
    _print(options, done, text)


def _read_time(text: str) -> float:
    """Return seconds since the epoch. Raises UsageError."""
    if text.replace(".", "", 1).isdigit():
        return float(text)
    with suppress(ValueError):
        return time.time() + read_duration_s(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--until {shown(text)} is not a time: write seconds since the epoch,"
            " 2027-01-31T12:00:00Z or 30d"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _print(options: RoomOptions, facts: dict[str, Any], text: str) -> None:
    if options.as_json:
        text = json_text(facts)
    typer.echo(text)
