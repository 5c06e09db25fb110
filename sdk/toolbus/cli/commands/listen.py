"""`toolbus listen`: prints the messages that arrive, one line each.

Messages are untrusted text: control characters and line ends are escaped. Nothing is stored, so
messages that are sent while the connection is lost are not received.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Annotated

import typer

from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.cli.signals import stop_on_signals
from toolbus.log_output import LOG_FORMAT
from toolbus.room.participants import Message
from toolbus.untrusted_text import json_text, one_line

__all__ = ["listen"]

_GAPS = frozenset({"reconnected", "missed"})


@joins_a_room
def listen(
    options: RoomOptions,
    kind: Annotated[
        list[str] | None, typer.Option(help="Print only messages of this kind. Repeatable.")
    ] = None,
) -> None:
    """Print the messages to this participant and to all until Ctrl-C, one line each.

    Needs the grant messaging. `toolbus send` sends messages.
    """
    logging.basicConfig(format=LOG_FORMAT)
    kinds = frozenset(kind or ())
    # While it connects, and where signal handlers cannot be set: Ctrl-C ends the command normally.
    with suppress(KeyboardInterrupt):
        in_room(options, lambda room: _listen(room, kinds, as_json=options.as_json))


async def _listen(room: CommandRoom, kinds: frozenset[str], *, as_json: bool) -> None:
    """Print messages until a signal. Raises RoomException if the room closes."""
    stop = asyncio.Event()
    stop_on_signals(asyncio.get_running_loop(), stop.set)
    reading = asyncio.ensure_future(_read(room, kinds, as_json=as_json))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        stopping.cancel()


async def _read(room: CommandRoom, kinds: frozenset[str], *, as_json: bool) -> None:
    async with room.events(["messages"]) as events:
        me = one_line(room.me.full_name)
        typer.echo(f"listening as {me} in room {one_line(room.room)}  (Ctrl-C to stop)", err=True)
        async for event in events:
            if event.name in _GAPS:
                typer.echo("some messages may be missing", err=True)
            message = event.message
            if message is not None and (not kinds or message.name in kinds):
                typer.echo(_as_json(message) if as_json else _as_line(message))
    await room.closed()


def _as_line(message: Message) -> str:
    clock = time.strftime("%H:%M:%S")
    to = "" if message.direct else " to all"
    body = json_text(message.body)
    text = f"{clock} {message.name} from {message.sender.full_name}{to}: {body}"
    return one_line(text)


def _as_json(message: Message) -> str:
    sender = message.sender
    facts = {
        "at": round(time.time(), 3),
        "kind": message.name,
        "from": {
            "name": sender.name,
            "role": sender.role,
            "issuer": sender.issuer,
            "alias": sender.alias,
        },
        "direct": message.direct,
        "body": message.body,
    }
    return json_text(facts)
