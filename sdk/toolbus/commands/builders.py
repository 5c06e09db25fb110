"""`toolbus builders`: which toolkits a participant builds on request, and from what.

The words are those of whoever offers them, so control characters in them are shown, not obeyed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from toolbus.commands.room_options import RoomOptions, in_room, joins_a_room
from toolbus.commands.schema_tree import SchemaTree, node_lines
from toolbus.exit_codes import printable
from toolbus.people import BuilderInfo

__all__ = ["builders"]


@joins_a_room
def builders(
    options: RoomOptions,
    participant: Annotated[str, typer.Argument(help="The name of whoever builds them.")],
) -> None:
    """Show which toolkits a participant builds on request, and what their configs hold."""
    found = in_room(options, lambda room: room.list_builders(participant))
    if options.as_json:
        typer.echo(json.dumps([each.to_wire() for each in found], ensure_ascii=False))
    elif not found:
        name = printable(participant)
        words = f"{name} is not here, or builds nothing that your grant agents.builders covers"
        typer.echo(words, err=True)
    else:
        _show(found)


def _show(found: Sequence[BuilderInfo]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in found:
        for style, line in _lines(each):
            # One line each: no stranger's words begin another.
            console.print(Text(printable(line).replace("\n", "\\n"), style=style))


def _lines(offer: BuilderInfo) -> Iterator[tuple[str, str]]:
    yield "bold", offer.name
    for line in offer.description.splitlines():
        yield "", f"  {line}".rstrip()
    for line in node_lines(SchemaTree(_without_name(offer.schema)).nodes(), "    "):
        yield "", line


def _without_name(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the field that every config has, and that says no more than the line above."""
    fields = schema.get("properties")
    if not isinstance(fields, Mapping):
        return dict(schema)
    return {**schema, "properties": {name: fields[name] for name in fields if name != "name"}}
