"""`toolbus room send` sends a message; `toolbus room listen` prints each that arrives as a line.

Messages are untrusted text: control characters and line ends are escaped. Nothing is stored, so
messages that are sent while the connection is lost are not received.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from toolbus.chunks.json_values import shown
from toolbus.cli.arguments import read_arguments, read_json
from toolbus.cli.columns import counted
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.cli.signals import stop_on_signals
from toolbus.concurrency.tasks import wait_for_first
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.errors import NotFound
from toolbus.log_output import LOG_FORMAT
from toolbus.room.participants import Message
from toolbus.untrusted_text import json_text, one_line

__all__ = ["listen", "send"]

_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORM = "write `toolbus room send NAME KIND [BODY]`, or `toolbus room send --all KIND [BODY]`"


@joins_a_room
def send(
    options: RoomOptions,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME KIND [BODY]...",
            help="The receiver, the kind of message, and the body: one JSON value, or name=value "
            "and name:=JSON, as in `toolbus call`. With --all, without NAME.",
        ),
    ],
    to_all: Annotated[
        bool, typer.Option("--all", help="Send it to all other participants.")
    ] = False,
) -> None:
    """Send a message, and print how many connections it was written to.

    Needs the grant messaging. Only connections that subscribe to messages receive it, such as
    `toolbus room listen`. Nothing is stored. Exit code 4: there is no participant of this name.
    """
    to: str | None = None
    rest = list(words)
    if not to_all:
        to = rest.pop(0)
    if not rest:
        raise UsageError(_FORM)
    kind = rest.pop(0)
    if _KIND.fullmatch(kind) is None:
        raise UsageError(
            f"{shown(kind)} is not a kind of message: write 1 to 64 of A-Z, a-z, 0-9, '_', '-' "
            "and '.'"
        )
    try:
        body = _read_body(rest)
    except UsageError as error:
        if to_all:
            error.message += f"; --all takes no NAME, so {kind} is the kind"
        raise
    delivered = in_room(options, lambda room: _send(room, to, kind, body))
    if options.as_json:
        typer.echo(json_text({"delivered": delivered}))
        return
    typer.echo(f"sent to {counted(delivered, 'connection')}")
    if not delivered:
        receiver = "other participant"
        if to is not None:
            receiver = f"connection of {one_line(shown(to))}"
        typer.echo(f"no {receiver} subscribes to messages now", err=True)


async def _send(room: CommandRoom, to: str | None, kind: str, body: Any) -> int:
    if to is None:
        return await room.broadcast(kind, body)
    try:
        return await room.send(to, kind, body)
    except NotFound as error:
        text = f"no participant named {shown(to)} is in room {room.room}"
        failure = NotFound(text, details=error.details)
        raise with_step(failure, "`toolbus room participants` lists the participants") from None


def _read_body(typed: Sequence[str]) -> Any:
    """Return the body: none, one JSON value, or an object of arguments. Raises UsageError."""
    if not typed:
        return None
    if len(typed) == 1:
        try:
            return read_json(typed[0])
        except (ValueError, RecursionError) as error:
            if "=" not in typed[0] or typed[0].lstrip().startswith(("{", "[", '"')):
                raise UsageError(
                    f"the body {shown(typed[0])} is not JSON: {error}; write a text in quotes, "
                    "'\"text\"', or name=value"
                ) from error
    return read_arguments(tuple(typed), {})


@joins_a_room
def listen(
    options: RoomOptions,
    kind: Annotated[
        list[str] | None, typer.Option(help="Print only messages of this kind. Repeatable.")
    ] = None,
) -> None:
    """Print the messages to this participant and to all until Ctrl-C, one line each.

    Needs the grant messaging. `toolbus room send` sends messages.
    """
    logging.basicConfig(format=LOG_FORMAT)
    kinds = frozenset(kind or ())
    # While it connects, and where signal handlers cannot be set: Ctrl-C ends the command normally.
    with suppress(KeyboardInterrupt):
        in_room(options, lambda room: _listen(room, kinds, as_json=options.as_json))


async def _listen(room: CommandRoom, kinds: frozenset[str], *, as_json: bool) -> None:
    """Print messages until a signal. Raises RoomException if the room closes."""
    stop = stop_on_signals()
    await wait_for_first(_read(room, kinds, as_json=as_json), stop.wait())


async def _read(room: CommandRoom, kinds: frozenset[str], *, as_json: bool) -> None:
    async with room.events(["messages"]) as events:
        me = one_line(room.me.full_name)
        typer.echo(f"listening as {me} in room {one_line(room.room)}  (Ctrl-C to stop)", err=True)
        async for event in events:
            if event.name in ("reconnected", "missed"):
                typer.echo("some messages may be missing", err=True)
            message = event.message
            if message is not None and (not kinds or message.name in kinds):
                typer.echo(_line_of(message, as_json=as_json))
    await room.closed()


def _line_of(message: Message, *, as_json: bool) -> str:
    sender = message.sender
    if not as_json:
        to = "" if message.direct else " to all"
        text = f"{message.name} from {sender.full_name}{to}: {json_text(message.body)}"
        return one_line(f"{time.strftime('%H:%M:%S')} {text}")
    people = ("name", "role", "issuer", "alias")
    facts = {
        "at": round(time.time(), 3),
        "kind": message.name,
        "from": {name: getattr(sender, name) for name in people},
        "direct": message.direct,
        "body": message.body,
    }
    return json_text(facts)
