"""`toolbus mcp` serves MCP over standard input and output; its `config` prints what to paste."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from toolbus.auth.grants import is_toolkit_name
from toolbus.cli.options import takes
from toolbus.cli.room_options import Locked, RoomOptions, joins_a_room, read_lock
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.diagnostics.join_errors import (
    explain_refusal,
    lifetime_text,
    read_token,
    unchecked_claims,
)
from toolbus.log_output import LOG_FORMAT
from toolbus.room.room_client import RoomClient
from toolbus.settings import RoomSettings, expanded, token_or_file
from toolbus.telemetry.tracing import recorded
from toolbus_gateway.client_config import (
    TOKEN_VARIABLE,
    ClientForm,
    entry_name,
    http_config,
    room_address,
    stdio_config,
)
from toolbus_gateway.listing import Target
from toolbus_gateway.stdio import serve_stdio

__all__ = ["mcp"]

mcp: typer.Typer = typer.Typer(
    rich_markup_mode="markdown", add_completion=False, invoke_without_command=True
)
"""The command `toolbus mcp`."""

_GATEWAY_URL = "http://127.0.0.1:7718"
_PATH_VARIABLES = ("TOOLBUS_HOME", "TOOLBUS_CONFIG", "TOOLBUS_TOKEN_FILE", "TOOLBUS_KEYS")
_VARIABLES = ("TOOLBUS_CONTEXT", "TOOLBUS_NAME")


@dataclass(frozen=True, slots=True)
class _Choices:
    """What of the room a client sees."""

    toolkit: Annotated[
        str | None, typer.Option(help="Only this toolkit; its tools have their own names.")
    ] = None
    participant: Annotated[
        str | None,
        typer.Option(metavar="OWNER", help="The toolkit is a private one of this participant."),
    ] = None
    locked: Locked = None

    def target(self) -> Target:
        """Return the choice. Raises UsageError."""
        if self.toolkit is None and self.participant is not None:
            raise UsageError("--participant is the owner of a toolkit: add --toolkit")
        if self.toolkit is not None and not is_toolkit_name(self.toolkit):
            raise UsageError(f"--toolkit {self.toolkit[:64]!r} is not the name of a toolkit")
        return Target(self.toolkit, self.participant)


@mcp.callback()
@joins_a_room
@takes(_Choices)
def _mcp(options: RoomOptions, invocation: typer.Context, *, choices: _Choices) -> None:
    """For editors; to host MCP servers: `toolbus host mcp`.

    It speaks MCP on standard input and output, as you: an editor that it is configured for starts
    it and calls the tools of the room. `toolbus mcp config` prints that configuration.
    """
    if invocation.invoked_subcommand is not None:
        if (options, choices) != (RoomOptions(), _Choices()):
            name = invocation.invoked_subcommand
            raise UsageError(f"options follow the command: toolbus mcp {name} ...")
        return
    target = choices.target()
    settings = options.resolve()
    lock = read_lock(settings, choices.locked)
    logging.basicConfig(format=LOG_FORMAT)
    if sys.stdin.isatty():
        typer.echo("waiting for MCP on standard input; see `toolbus mcp config`", err=True)
    room = RoomClient(**options.choices(), locked=lock, wait=True)
    with recorded("toolbus-mcp"):
        event_loop.run(_serve(settings, room, target))


async def _serve(settings: RoomSettings, room: RoomClient, target: Target) -> None:
    async with explain_refusal(settings):
        await read_token(settings)
        await serve_stdio(room, target)


@mcp.command("config")
@joins_a_room
@takes(_Choices)
def _config(
    options: RoomOptions,
    http: Annotated[
        bool,
        typer.Option("--http", help="For `toolbus gateway`, whose address is --url."),
    ] = False,
    form: Annotated[
        ClientForm, typer.Option("--for", help="The client; most take the form of Claude.")
    ] = ClientForm.CLAUDE,
    entry: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the entry. Default: toolbus and the room."),
    ] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Print the token, which others must not read.")
    ] = False,
    *,
    choices: _Choices,
) -> None:
    """Print the configuration that a client of MCP takes, as JSON.

    Where each client has it, the guide says: docs/guides/mcp-clients.md.
    """
    target = choices.target()
    if http:
        gateway = _gateway_url(options.url)
        options = replace(options, url=None)
        settings = options.resolve() if with_token else options.resolve_room()
    else:
        settings = options.resolve()
    token = asyncio.run(read_token(settings)) if with_token else None
    name = entry or entry_name(settings.room, target)
    if http:
        address = room_address(gateway, settings.room, target)
        config = http_config(form, name, address, token)
    else:
        command = [*_program(), "mcp", *_arguments(options, settings, choices, token)]
        config = stdio_config(form, name, command, _environment(token))
    typer.echo(json.dumps(config, indent=2))
    if token is not None:
        claims = unchecked_claims(token)
        expires_at = claims.get("until", claims.get("exp", 0))
        left = lifetime_text(expires_at, time.time()) if expires_at else "without an end"
        typer.echo(f"toolbus: whoever reads it has the rights of the token ({left})", err=True)
    elif not http and not settings.renewable and (options.token or os.environ.get(TOKEN_VARIABLE)):
        text = (
            f"toolbus: {settings.token_from} is not in it: set {TOKEN_VARIABLE} for the client, "
            "name a file with --token @FILE, or add --with-token"
        )
        typer.echo(text, err=True)


def _gateway_url(url: str | None) -> str:
    if url is None:
        return _GATEWAY_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username:
        raise UsageError("with --http, --url is that of the gateway: http://HOST:PORT")
    return url


def _program() -> list[str]:
    """Return the words that start this program, from any folder."""
    path = Path(sys.argv[0])
    found = path if path.stem == "toolbus" and path.is_file() else shutil.which("toolbus")
    if found is None:
        return [sys.executable, "-m", "toolbus"]
    return [os.path.abspath(found)]


def _arguments(
    options: RoomOptions, settings: RoomSettings, choices: _Choices, token: str | None
) -> list[str]:
    """Return the options that a client starts `toolbus mcp` with, none of which is a secret.

    A token in the environment counts where neither a context nor another token is named.
    """
    given: dict[str, str | None] = {"--url": settings.url, "--room": settings.room}
    if token is None:
        given |= {"--context": options.context, "--name": options.name}
        source = None if options.token is None else token_or_file(options.token)
        if isinstance(source, Path):
            given["--token"] = f"@{os.path.abspath(expanded(source))}"
    lock = choices.locked or settings.lock
    given["--locked"] = None if lock is None else os.path.abspath(lock)
    given |= {"--toolkit": choices.toolkit, "--participant": choices.participant}
    return [word for flag, value in given.items() if value is not None for word in (flag, value)]


def _environment(token: str | None) -> dict[str, str]:
    """Return the variables that the program needs: an editor has not those of this shell."""
    found = {name: os.environ.get(name, "") for name in (*_PATH_VARIABLES, *_VARIABLES)}
    chosen = {name: value for name, value in found.items() if value}
    for name in chosen.keys() & set(_PATH_VARIABLES):
        chosen[name] = os.path.abspath(expanded(chosen[name]))
    if token is not None:
        chosen.pop("TOOLBUS_CONTEXT", None)
        chosen[TOKEN_VARIABLE] = token
    return chosen
