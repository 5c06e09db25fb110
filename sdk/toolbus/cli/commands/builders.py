"""`toolbus builders`: lists the toolkits that a participant builds on request.

Descriptions are untrusted text: control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from toolbus.auth.participant_names import means
from toolbus.chunks.json_values import cut, shown
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.diagnostics.exit_codes import grant_command
from toolbus.errors import NotFound
from toolbus.room.participants import BuilderInfo
from toolbus.schemas.text import SchemaTree, node_lines
from toolbus.untrusted_text import json_text, one_line

__all__ = ["builders"]


_GRANT_STEP = (
    "`toolbus doctor` with the same options shows the grants of the token; "
    f"`{grant_command('agents.builders=*')}` creates one for all builders"
)


class NoSuchBuilders(NotFound):
    """The participant is absent, or offers no builders that the token covers."""

    next_step: str = f"check the name; {_GRANT_STEP}"


@joins_a_room
def builders(
    options: RoomOptions,
    participant: Annotated[
        str, typer.Argument(help="Name of the participant that offers the builders.")
    ],
) -> None:
    """List the toolkits that a participant builds on request, with their configuration fields."""
    found = in_room(options, lambda room: _builders(room, participant))
    if options.as_json:
        typer.echo(json_text([info.to_wire() for info in found]))
    elif not found:
        text = (
            f"{one_line(cut(participant))} has no builders that your grant agents.builders "
            f"covers\n  next: {_GRANT_STEP}"
        )
        typer.echo(text, err=True)
    else:
        _show(found)


async def _builders(room: CommandRoom, participant: str) -> list[BuilderInfo]:
    """Return the builders; none only for a participant that the grant `presence` shows.

    Raises:
        NoSuchBuilders: There are none, and this participant may be absent.
    """
    found = await room.list_builders(participant)
    if found or (room.grants.presence and await _is_present(room, participant)):
        return found
    raise NoSuchBuilders(
        f"{shown(participant)} is not in the room, or has no builders that your grant "
        "agents.builders covers"
    )


async def _is_present(room: CommandRoom, participant: str) -> bool:
    own = room.me.alias
    listed = await room.participants()
    return any(means(participant, info.name, info.alias, own) for info in listed)


def _show(found: Sequence[BuilderInfo]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for info in found:
        for style, line in _lines(info):
            # Line ends are escaped, so that untrusted text cannot imitate other lines.
            console.print(Text(one_line(line), style=style))


def _lines(offer: BuilderInfo) -> Iterator[tuple[str, str]]:
    yield "bold", offer.name
    for line in offer.description.splitlines():
        yield "", f"  {line}".rstrip()
    for line in node_lines(SchemaTree(_without_name(offer.schema)).nodes(), "    "):
        yield "", line


def _without_name(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Omit the field `name`: every configuration has it."""
    fields = schema.get("properties")
    if not isinstance(fields, Mapping):
        return dict(schema)
    return {**schema, "properties": {name: fields[name] for name in fields if name != "name"}}
