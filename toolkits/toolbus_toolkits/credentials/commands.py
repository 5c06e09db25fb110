"""`toolbus credential`: stores credentials and where they may go. Values are never printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from toolbus.cli.columns import show_columns
from toolbus.cli.error_report import reporting
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.errors import NotFound
from toolbus.untrusted_text import json_text
from toolbus_toolkits.credentials.model import (
    MAX_BYTES,
    CredentialName,
    CredentialNotFound,
    StoreUnavailable,
)
from toolbus_toolkits.credentials.store import KEY_FILE_VARIABLE, CredentialStore

__all__ = ["credential"]

_COLUMNS = ("name", "hosts", "commands", "set")

credential: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)
_Name = Annotated[str, typer.Argument(metavar="ORG/TOOL/KEY", help="Name of the credential.")]
_JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class _NoSuchCredential(NotFound):
    """There is no such credential; the message says what to do."""

    next_step = ""


@credential.callback()
def _credential() -> None:
    """Store credentials for toolkits, and say what may get them.

    What may get them are hosts and commands. They are in your keyring; without one, in an encrypted
    file of TOOLBUS_HOME.
    """


@credential.command("set")
def _set(
    name: _Name,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host it may go to: NAME, *.NAME or HOST:PORT. Repeat it for several."),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(help="Command it may be given to, as the config names it. Repeatable."),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the value from stdin instead of a prompt.")
    ] = False,
) -> None:
    """Store a credential, or replace it with its hosts and commands.

    The value is typed at a prompt that does not show it. Without --host and --command it may go
    nowhere.
    """
    with _reporting():
        parsed = CredentialName.parse(name)
        store = CredentialStore.open(os.environ)
        store.list()  # without a usable store the value would be asked for in vain
        store.set(parsed, _value(stdin), hosts=host or (), commands=command or ())
        typer.echo(f"stored {parsed}")
        if not host and not command:
            typer.echo("it may go nowhere yet: set it with --host or --command", err=True)


@credential.command("list")
def _list(json: _JsonFlag = False) -> None:
    """List the credentials and where they may go, without their values."""
    with _reporting(as_json=json):
        infos = CredentialStore.open(os.environ).list()
        if json:
            typer.echo(json_text([{**asdict(info), "name": str(info.name)} for info in infos]))
        elif infos:
            rows = [
                (
                    str(info.name),
                    ", ".join(info.hosts) or "-",
                    ", ".join(info.commands) or "-",
                    info.set_at,
                )
                for info in infos
            ]
            show_columns([_COLUMNS, *rows])
        else:
            typer.echo("there are no credentials: `toolbus credential set` stores one", err=True)


@credential.command("remove")
def _remove(name: _Name) -> None:
    """Remove a credential."""
    with _reporting():
        parsed = CredentialName.parse(name)
        CredentialStore.open(os.environ).delete(parsed)
        typer.echo(f"removed {parsed}")


@credential.command("key")
def _key(path: Annotated[Path, typer.Argument(metavar="PATH", help="The new file.")]) -> None:
    """Create a file with a key for the encrypted file, which only you can read."""
    with _reporting():
        from toolbus_toolkits.credentials.encrypted_file import create_key_file

        try:
            create_key_file(path)
        except OSError as error:
            raise UsageError(f"cannot create {path}: {error.strerror}") from error
        typer.echo(f"wrote {path}")
        typer.echo(f"  next: set {KEY_FILE_VARIABLE}={os.path.abspath(path)}", err=True)


@contextmanager
def _reporting(*, as_json: bool = False) -> Iterator[None]:
    """Report errors in names, values and the store with the exit codes of commands."""
    with reporting(as_json=as_json, local=True):
        try:
            yield
        except CredentialNotFound as error:
            raise _NoSuchCredential(error.message) from error
        except (StoreUnavailable, ValueError, ModuleNotFoundError) as error:
            raise UsageError(str(error)) from None


def _value(stdin: bool) -> str:
    """Read the value. One line end after it is not part of it. Raises UsageError."""
    if not stdin and not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal: give the value with --stdin")
    if not stdin:
        return str(typer.prompt("value", hide_input=True, err=True))
    data = sys.stdin.buffer.read(MAX_BYTES + 3)
    try:
        value = data.decode()
    except UnicodeDecodeError:
        raise UsageError("the value is not valid UTF-8") from None
    return value.removesuffix("\n").removesuffix("\r")
