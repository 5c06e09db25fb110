"""`toolbus room participants`: lists who is in a room, and what each of them hosts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from toolbus.chunks.json_values import cut
from toolbus.cli.columns import show_columns
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.errors import PermissionDenied
from toolbus.room.participants import ParticipantInfo
from toolbus.untrusted_text import json_text

__all__ = ["participants"]

_COLUMNS = ("name", "role", "toolkits", "since", "attributes")
_Hosted = Mapping[str, Sequence[str]]


@joins_a_room
def participants(options: RoomOptions) -> None:
    """List the participants of a room, with a line for each connection.

    Needs the grant presence; with agents.use_tools it also shows the toolkits that each name hosts,
    on any of its connections, as far as you can see them. The connection of this command is one of
    the lines. If a name repeats, the ids of the connections are shown too.
    """
    listed, hosted = in_room(options, _list)
    if options.as_json:
        facts = [_facts(participant, hosted) for participant in listed]
        typer.echo(json_text(facts))
    else:
        rows = [_COLUMNS, *(_row(participant, hosted) for participant in listed)]
        if len({participant.full_name for participant in listed}) < len(listed):
            # Which of its connections hosts a toolkit is known only to the server.
            rows[0] = tuple("toolkits of the name" if at == "toolkits" else at for at in _COLUMNS)
            # The ids of the connections, which differ where names repeat, as the second column.
            ids = ("id", *(participant.id for participant in listed))
            rows = [(name, own_id, *rest) for own_id, (name, *rest) in zip(ids, rows, strict=True)]
        show_columns(rows)


async def _list(room: CommandRoom) -> tuple[list[ParticipantInfo], _Hosted | None]:
    """Return the participants, and the toolkits by owner; None without the grant for them."""
    listed = await room.participants()
    hosted: dict[str, list[str]] = defaultdict(list)
    try:
        async for toolkit in room.toolkits():
            if toolkit.hosts:
                hosted[toolkit.full_owner].append(toolkit.name)
    except PermissionDenied:
        return listed, None
    return listed, hosted


def _row(participant: ParticipantInfo, hosted: _Hosted | None) -> tuple[str, ...]:
    toolkits = "-"
    if hosted is not None:
        toolkits = ", ".join(hosted.get(participant.full_name, ())) or "none"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(participant.since))
    attributes = " ".join(
        f"{cut(name)}={cut(json_text(value))}" for name, value in participant.attributes.items()
    )
    return participant.full_name, participant.role, toolkits, since, attributes


def _facts(participant: ParticipantInfo, hosted: _Hosted | None) -> dict[str, Any]:
    return {
        "name": participant.name,
        "role": participant.role,
        "toolkits": None if hosted is None else list(hosted.get(participant.full_name, ())),
        "since": participant.since,
        "attributes": dict(participant.attributes),
        "issuer": participant.issuer,
        "alias": participant.alias,
        "id": participant.id,
    }
