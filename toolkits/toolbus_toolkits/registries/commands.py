"""`toolbus registry`: names registries, searches them, and installs what they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from toolbus.cli.columns import show_columns
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.settings import expanded
from toolbus.untrusted_text import json_text, one_line, printable
from toolbus_toolkits.bundles.commands import (
    DryRunFlag,
    ReplaceFlag,
    YesFlag,
    install_plan,
    reporting_bundles,
)
from toolbus_toolkits.bundles.transaction import locked
from toolbus_toolkits.credentials import CredentialName
from toolbus_toolkits.registries.hub import RegistryHub, config_path, read_sources, write_sources
from toolbus_toolkits.registries.model import (
    Kind,
    NotInRegistry,
    RegistryEntry,
    RegistrySource,
    SourceType,
    describe,
)
from toolbus_toolkits.registries.sources import MANIFESTS

__all__ = ["registry"]

_COLUMNS = ("name", "type", "place")
_RESULT_COLUMNS = ("name", "kind", "version", "source", "description")

registry: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)
_JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_KindOption = Annotated[Kind | None, typer.Option(help="Bundles, or skills, alone.")]


@registry.callback()
def _registry() -> None:
    """Search registries of bundles and skills; install from them.

    They are in `registries.json` of TOOLBUS_HOME; there is none by default.
    """


@registry.command("add")
def _add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, _ and -.")],
    place: Annotated[str, typer.Argument(metavar="URL_OR_FOLDER", help="Where it is.")],
    kind: Annotated[
        SourceType | None,
        typer.Option("--type", help="By default local for a folder, index for a URL of a .json."),
    ] = None,
    credential: Annotated[
        str | None,
        typer.Option(
            metavar="ORG/TOOL/KEY", help="Stored credential that is sent to it as a bearer token."
        ),
    ] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="It may have a private or loopback address.")
    ] = False,
) -> None:
    """Add a registry after the others: what several have under one name comes from the first."""
    with _reporting():
        headers = {}
        if credential is not None:
            reference = CredentialName.parse(credential)
            headers["Authorization"] = f"Bearer ${{cred:{reference}}}"
        where: dict[str, Any] = {"url": place}
        if "://" not in place:
            where = {"path": _folder(place)}
        added = RegistrySource(
            name=name, **where, type=kind, headers=headers, allow_private=allow_private
        )
        with locked(config_path().parent):
            sources = read_sources(config_path())
            if any(source.name == name for source in sources):
                raise UsageError(
                    f"there is a registry {name}: `toolbus registry remove` removes it"
                )
            write_sources(config_path(), [*sources, added])
        typer.echo(f"added {name}, of the type {added.type}")


@registry.command("remove")
def _remove(name: Annotated[str, typer.Argument(metavar="NAME", help="The registry.")]) -> None:
    """Remove a registry. What was installed from it stays."""
    with _reporting():
        with locked(config_path().parent):
            sources = read_sources(config_path())
            rest = [source for source in sources if source.name != name]
            if len(rest) == len(sources):
                known = ", ".join(source.name for source in sources) or "there are none"
                raise NotInRegistry(f"there is no registry {name!r}: {known}")
            write_sources(config_path(), rest)
        typer.echo(f"removed {name}")


@registry.command("list")
def _list(json: _JsonFlag = False) -> None:
    """List the registries, in the order of their priority."""
    with _reporting(as_json=json):
        sources = read_sources(config_path())
        if json:
            typer.echo(json_text([_facts(source) for source in sources]))
        elif sources:
            rows = ((source.name, source.type or "", source.place) for source in sources)
            show_columns([_COLUMNS, *rows])
        else:
            _say_none()


@registry.command("search")
def _search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words; none lists all.")] = "",
    source: Annotated[str | None, typer.Option(help="Search this registry alone.")] = None,
    kind: _KindOption = None,
    json: _JsonFlag = False,
) -> None:
    """Search the registries for bundles and skills."""
    with _reporting(as_json=json):
        hub = RegistryHub.from_config()
        found = hub.search(query, source=source, kind=kind)
        if json:
            typer.echo(json_text(asdict(found)))
            return
        if found.entries:
            show_columns([_RESULT_COLUMNS, *map(_row, found.entries)])
        elif hub.sources:
            typer.echo("nothing was found", err=True)
        else:
            _say_none()
        for failure in (*found.failures, *found.left_out):
            typer.echo(printable(f"{failure.source}: {failure.reason}"), err=True)


@registry.command("install")
def _install(  # noqa: PLR0913 - a parameter for each flag
    name: Annotated[str, typer.Argument(metavar="NAME", help="The bundle or skill.")],
    source: Annotated[
        str | None,
        typer.Option("--from", help="Registry; by default the first one that has the name."),
    ] = None,
    version: Annotated[str | None, typer.Option(help="By default the latest.")] = None,
    kind: _KindOption = None,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    replace: ReplaceFlag = False,
) -> None:
    """Download a bundle or skill, check it, and install it as `toolbus bundle install` does."""
    with _reporting():
        hub = RegistryHub.from_config()
        place = source or hub.find(name, version, kind=kind).source
        offer = hub.offer(place, name, version, kind=kind, replace=replace)
        for note in offer.notes:
            typer.echo(printable(f"warning: {note}"), err=True)
        install_plan(offer.plan, dry_run=dry_run, yes=yes)


@contextmanager
def _reporting(*, as_json: bool = False) -> Iterator[None]:
    """Report errors in values and in the file as usage errors."""
    with reporting_bundles(as_json=as_json):
        try:
            yield
        except ValidationError as error:
            raise UsageError(describe(error)) from None
        except OSError as error:
            raise UsageError(f"TOOLBUS_HOME: cannot write: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(str(error)) from None


def _folder(place: str) -> Path:
    folder = expanded(place).absolute()
    if not folder.is_dir():
        raise UsageError(f"{place} is no folder: give a folder, or a URL with http:// or https://")
    if any((folder / file).exists() for file in MANIFESTS):
        raise UsageError(
            f"{place} is one bundle: give the folder that holds it, or install it with"
            " `toolbus bundle install`"
        )
    return folder


def _say_none() -> None:
    typer.echo("there are no registries: `toolbus registry add` adds one", err=True)


def _facts(source: RegistrySource) -> dict[str, object]:
    """Return a source for programs; values of headers may be secrets."""
    return {
        "name": source.name,
        "type": source.type,
        "place": source.place,
        "headers": sorted(source.headers),
        "allow_private": source.allow_private,
    }


def _row(found: RegistryEntry) -> tuple[str, ...]:
    places = ", ".join((found.source, *found.also_in))
    description = one_line(found.description, 80)
    return (found.name, found.kind, found.version or "-", places, description)
