"""`toolbus context`: names sets of settings, and chooses one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from toolbus.auth.participant_names import name_fault
from toolbus.chunks.json_values import cut
from toolbus.cli.columns import show_columns
from toolbus.cli.completion import complete_context
from toolbus.cli.error_report import reporting
from toolbus.contexts import Contexts, is_context_name
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.settings import check_room, check_url, home_of
from toolbus.untrusted_text import json_text

__all__ = ["context"]

_COLUMNS = ("in use", "name", "url", "room", "token or keys from", "as")
_OVERRIDING = ("URL", "ROOM", "TOKEN", "TOKEN_FILE", "KEYS", "NAME")

context: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)
_NewName = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, _ and -.")]
_Context = typer.Argument(metavar="NAME", help="The context.", autocompletion=complete_context)


@context.callback()
def _context() -> None:
    """Name sets of settings, such as server and room; choose one.

    They apply to all commands that join a room, and to programs. They are in `contexts.toml` of
    TOOLBUS_HOME.
    """


@context.command("add")
def _add(  # noqa: PLR0913 - a parameter for each flag
    name: _NewName,
    url: Annotated[str | None, typer.Option(help="URL of the server: ws://HOST:PORT.")] = None,
    room: Annotated[str | None, typer.Option(help="Name of the room.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token; the context has only its path.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File with keys that create your tokens; needs --name.")
    ] = None,
    participant: Annotated[
        str | None, typer.Option("--name", help="Your name, if your token is created from a key.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the context if it exists.")
    ] = False,
) -> None:
    """Add a context. What it does not set comes from the settings file or is the default."""
    with _reporting():
        if not is_context_name(name):
            raise UsageError(f"{cut(name)!r} is not a name: 1 to 64 letters, digits, _ and -")
        given = {
            "url": url,
            "room": room,
            "token_file": _path("--token-file", token_file),
            "keys": _path("--keys", keys),
            "name": participant,
        }
        settings = {key: value for key, value in given.items() if value is not None}
        _check(settings)
        contexts = _load()
        if name in contexts.named and not replace:
            raise UsageError(f"context {name} exists: --replace replaces it")
        contexts.with_context(name, settings).save()
        typer.echo(f"added context {name}; `toolbus context use {name}` uses it")


@context.command("use")
def _use(
    name: Annotated[str | None, _Context] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context any more.")] = False,
) -> None:
    """Use a context from now on, wherever no option or variable sets something else."""
    with _reporting():
        if (name is None) != none:
            raise UsageError("name one context, or use none with --none")
        contexts = _load()
        text = "using no context"
        if name is not None:
            contexts.get(name)
            text = f"using context {name}"
        contexts.using(name).save()
        typer.echo(text)
        _warn_of_variables(name)


@context.command("list")
def _list(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the contexts; a star marks the one in use."""
    with _reporting(as_json=json):
        contexts = _load()
        if json:
            facts = [
                {"context": name, "in_use": name == contexts.in_use, **settings}
                for name, settings in contexts.named.items()
            ]
            typer.echo(json_text(facts))
        elif contexts.named:
            rows: list[tuple[str, ...]] = [_COLUMNS]
            for name, settings in contexts.named.items():
                source = settings.get("token_file") or settings.get("keys")
                cells = (settings.get("url"), settings.get("room"), source, settings.get("name"))
                mark = "*" if name == contexts.in_use else ""
                rows.append((mark, name, *(cell or "-" for cell in cells)))
            show_columns(rows)
        else:
            typer.echo("there are no contexts: `toolbus context add` adds one", err=True)


@context.command("remove")
def _remove(name: Annotated[str, _Context]) -> None:
    """Remove a context. The files that it names stay."""
    with _reporting():
        contexts = _load()
        contexts.get(name)
        contexts.without(name).save()
        text = f"removed context {name}"
        if contexts.in_use == name:
            text = f"{text}, which was in use: no context is in use now"
        typer.echo(text)


@contextmanager
def _reporting(*, as_json: bool = False) -> Iterator[None]:
    """Report errors in the values or the file as usage errors."""
    with reporting(as_json=as_json, local=True):
        try:
            yield
        except ValueError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(
                f"TOOLBUS_HOME: cannot write {error.filename}: {error.strerror}"
            ) from error


def _load() -> Contexts:
    return Contexts.load(home_of(os.environ))


def _path(flag: str, path: Path | None) -> str | None:
    """Return an absolute path, so that the context is valid in any folder. Raises UsageError."""
    if path is None:
        return None
    text = os.path.abspath(path)
    if not os.path.isfile(path):
        # A text that is not a file may be a token itself, so it is not shown.
        raise UsageError(f"{flag} names no file: write the path of an existing file")
    if not text.isprintable():
        raise UsageError(f"{flag}: the path must be printable text")
    return text


def _check(settings: Mapping[str, str]) -> None:
    """Check what can be checked without a connection. Raises ValueError."""
    url, room, name = (settings.get(key) for key in ("url", "room", "name"))
    if not settings:
        raise UsageError("a context needs settings: --url, --room, --token-file, --keys or --name")
    if url is not None:
        check_url(url)
    if room is not None:
        check_room(room)
    if name is not None and (fault := name_fault(name)) is not None:
        raise UsageError(f"{cut(name)!r} is not a participant name: it {fault}")
    if "token_file" in settings and not {"keys", "name"}.isdisjoint(settings):
        raise UsageError("a token contains a name: give either --token-file, or --name with --keys")
    if "keys" in settings and name is None:
        raise UsageError("--keys creates tokens and needs a participant name: add --name")


def _warn_of_variables(name: str | None) -> None:
    """Warn of variables that override the context in use."""
    if os.environ.get("TOOLBUS_CONTEXT"):
        typer.echo("TOOLBUS_CONTEXT is set and overrides this choice", err=True)
        return
    names = (f"TOOLBUS_{setting}" for setting in _OVERRIDING)
    set_now = [variable for variable in names if os.environ.get(variable)]
    if set_now and name is not None:
        verb = "is set and overrides" if len(set_now) == 1 else "are set and override"
        text = f"{', '.join(set_now)} {verb} it; TOOLBUS_CONTEXT={name} would override variables"
        typer.echo(text, err=True)
