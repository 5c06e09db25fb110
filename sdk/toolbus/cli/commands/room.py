"""`toolbus room`: who is in a room, and messages between participants."""

from __future__ import annotations

import typer

from toolbus.cli.commands.messages import listen, send
from toolbus.cli.commands.participants import participants

__all__ = ["room"]

room: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)


@room.callback()
def _room() -> None:
    """List the participants of a room; send and receive messages."""


for _command in (participants, send, listen):
    room.command()(_command)
