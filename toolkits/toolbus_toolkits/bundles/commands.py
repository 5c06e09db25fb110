"""`toolbus bundle`: shows every file and command of a bundle, asks, and installs or removes it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from toolbus.cli.columns import show_columns
from toolbus.cli.error_report import reporting
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.errors import NotFound
from toolbus.untrusted_text import json_text, printable
from toolbus_toolkits.bundles import (
    BundleRefused,
    InstalledBundle,
    InstallPlan,
    NotInstalled,
    list_installed,
    plan_install,
    plan_uninstall,
)
from toolbus_toolkits.mcp.config import HOME_FILE

__all__ = ["DryRunFlag", "ReplaceFlag", "YesFlag", "bundle", "install_plan", "reporting_bundles"]

_COLUMNS = ("name", "version", "installed", "has", "from")

bundle: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Show every file and command, and change nothing.")
]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
ReplaceFlag = Annotated[bool, typer.Option("--replace", help="Replace the installed version.")]


class _NoSuchBundle(NotFound):
    """There is no such bundle; the message says what to do."""

    next_step = ""


@bundle.callback()
def _bundle() -> None:
    """Install bundles of skills, MCP servers, avatars and memory.

    Bundles are in TOOLBUS_HOME; their memory is templates of files.
    `toolbus agent --avatar NAME` and `toolbus chat --avatar NAME` use an installed avatar,
    `toolbus host mcp` and `toolbus host skills` the rest.
    """


@bundle.command("install")
def _install(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder or a zip with a bundle, or a skill.")
    ],
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    replace: ReplaceFlag = False,
) -> None:
    """Install a bundle: all of it, or nothing.

    Every file and every command is shown before you are asked. MCP servers are added to mcp.json in
    TOOLBUS_HOME; their commands run when you host them.
    """
    with reporting_bundles():
        install_plan(plan_install(path, replace=replace), dry_run=dry_run, yes=yes)


@bundle.command("uninstall")
def _uninstall(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the bundle.")],
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> None:
    """Remove what a bundle has installed. What you have changed since stays."""
    with reporting_bundles():
        plan = plan_uninstall(name)
        if _confirmed(plan.lines(), "Remove this?", dry_run=dry_run, yes=yes):
            plan.apply()
            typer.echo(f"removed {plan.bundle.name}")


@bundle.command("list")
def _list(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the installed bundles."""
    with reporting_bundles(as_json=json):
        found = list_installed()
        if json:
            typer.echo(json_text([installed.model_dump(mode="json") for installed in found]))
        elif found:
            show_columns([_COLUMNS, *map(_row, found)])
        else:
            typer.echo("there are no bundles: `toolbus bundle install` installs one", err=True)


def install_plan(plan: InstallPlan, *, dry_run: bool, yes: bool) -> None:
    """Show a plan, ask, and apply it; all commands that install use this."""
    if plan.is_installed:
        typer.echo(f"{plan.bundle.name} {plan.bundle.version} is installed already")
        return
    if not _confirmed(plan.lines(), "Install this?", dry_run=dry_run, yes=yes):
        return
    done = plan.apply()
    typer.echo(f"installed {done.name} {done.version}".rstrip())
    if done.mcp_servers_installed:
        file = shlex.quote(str(plan.home.absolute() / HOME_FILE))
        typer.echo(f"  next: `toolbus host mcp --config {file}`", err=True)
    if done.avatars_installed:
        name = shlex.quote(done.avatars_installed[0])
        typer.echo(f"  next: `toolbus chat --avatar {name} --model NAME`", err=True)


@contextmanager
def reporting_bundles(*, as_json: bool = False) -> Iterator[None]:
    """Report a refused bundle with the exit codes of commands."""
    with reporting(as_json=as_json, local=True):
        try:
            yield
        except NotInstalled as error:
            names = [installed.name for installed in list_installed()]
            hint = "`toolbus bundle list` shows those that are installed"
            if close := get_close_matches(error.name, names, 1):
                hint = f"did you mean {close[0]}?"
            raise _NoSuchBundle(f"{error}: {hint}") from None
        except (BundleRefused, ModuleNotFoundError) as error:
            raise UsageError(str(error)) from None


def _confirmed(lines: Iterable[str], question: str, *, dry_run: bool, yes: bool) -> bool:
    for line in lines:
        typer.echo(printable(line))
    if dry_run:
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal, so you cannot be asked: use --yes or --dry-run")
    return typer.confirm(question, err=True)


def _row(found: InstalledBundle) -> tuple[str, ...]:
    parts = {
        "skills": found.skills,
        "MCP servers": tuple(found.servers),
        "avatars": found.avatars,
        "memory templates": found.memory_templates,
    }
    has = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)
    return (found.name, found.version or "-", found.installed_at or "-", has, found.origin or "-")
