"""The `toolbus` command line: finds the installed commands and runs one.

Commands are registered through the entry point group `toolbus.commands`: a function with typer's
annotations, or a `typer.Typer` for a group. Each is imported only when it is needed. A command that
cannot be imported stays in the list and says which package to install.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from importlib.util import find_spec
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from toolbus.cli.error_report import report
from toolbus.cli.log_options import add_log_options
from toolbus.cli.option_values import require_utf8
from toolbus.cli.standard_streams import ReaderClosed, StdoutError, guard_streams
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.telemetry.tracing import toolbus_version
from toolbus.untrusted_text import one_line

__all__ = ["COMMANDS", "CommandGroup", "main", "make_app", "missing_extra"]

COMMANDS = "toolbus.commands"
"""The entry point group of commands."""
_ORDER = (
    "serve",
    "host",
    "tools",
    "builders",
    "call",
    "lock",
    "stubs",
    "participants",
    "send",
    "listen",
    "watch",
    "calls",
    "trace",
    "context",
    "credential",
    "token",
    "key",
    "admin",
    "doctor",
    "demo",
)
_OWN_EXTRAS = frozenset({"dev", "demo", "docs"})
"""The extras of a clone, which no message recommends."""
_NEEDED_EXTRAS = MappingProxyType(
    {
        "credential": {"keyring": "credentials"},
        "trace": {"uvicorn": "otel"},
        "demo": {"rfc8785": "server", "uvicorn": "otel"},
    }
)
"""Modules, with their extras, that a command imports only when it runs."""
_EXTRA = re.compile(r"^(?P<name>[A-Za-z0-9._-]+).*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

_INSTALL = "pip install 'toolbus["

_Command: TypeAlias = TyperCommand | TyperGroup


def main(on_command: Callable[[], None] | None = None) -> None:
    """Run the command line of this process.

    Args:
        on_command: Called once the command is imported, before it is run.
    """
    guard_streams()
    try:
        try:
            make_app(on_command)(prog_name="toolbus")
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        typer.echo(f"toolbus: {_to_install(error, extra)}", err=True)
        raise SystemExit(ExitCode.USAGE) from error
    except StdoutError as error:  # of a command that has no `reporting`
        report(error, as_json=False, local=True)
        raise SystemExit(ExitCode.USAGE) from error
    except ReaderClosed as closed:
        raise SystemExit(closed.exit_code) from closed


def make_app(on_command: Callable[[], None] | None = None) -> typer.Typer:
    """Create the command line; a command is imported only when it is used.

    Args:
        on_command: Called once a command is imported, before it is run.
    """
    app = typer.Typer(
        rich_markup_mode="markdown",  # joins the lines of a paragraph
        cls=CommandGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they print local variables, which may hold tokens
        context_settings={"help_option_names": ["-h", "--help"], "obj": on_command},
    )
    app.callback()(_root)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"toolbus {toolbus_version()}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Host toolkits as services, call them from anywhere, see every call."""


class CommandGroup(TyperGroup):
    """The installed commands, each imported when it is first used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add_log_options(self)
        self._loaded: dict[str, _Command] = {}
        self._entries: dict[str, EntryPoint] | None = None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; remove pydantic's prefix from errors about flags.

        Ctrl-C that the command does not handle itself, also at a question, ends the process
        without a traceback.
        """
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            typer.echo("toolbus: cancelled with Ctrl-C", err=True)
            raise typer.Exit(ExitCode.CANCELLED) from None
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command; from here on Ctrl-C is an exception, which the command handles.

        An unknown command is refused with similar ones.
        """
        # typer suggests only commands that are imported already.
        near = [] if args[0] in self._installed() else get_close_matches(args[0], self._installed())
        if near and not args[0].startswith("-"):
            suggested = " or ".join(repr(each) for each in near)
            ctx.fail(f"No such command {args[0]!r}. Did you mean {suggested}?")
        found = super().resolve_command(ctx, args)
        if ctx.obj is not None:
            ctx.obj()
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands: our own in the order of first use, then others by name."""
        names = self._installed()
        ranks = {name: rank for rank, name in enumerate(_ORDER)}
        return sorted(names, key=lambda name: (ranks.get(name, len(ranks)), name))

    def get_command(self, ctx: Any, cmd_name: str) -> _Command | None:
        """Import one command."""
        entry = self._installed().get(cmd_name)
        if entry is None:
            return None
        if cmd_name not in self._loaded:
            self._loaded[cmd_name] = _load(entry)
            if extras := _missing_extras(cmd_name):
                text = f"(an extra is missing: pip install 'toolbus[{extras}]')"
                self._loaded[cmd_name].short_help = text
            _prepare_options(self._loaded[cmd_name], ctx)
        return self._loaded[cmd_name]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `toolbus` itself; switches are shown without a value."""
        own = super().get_params(ctx)
        for each in own:
            _hide_switch_value(each)
        return own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; report a command's own option in that place."""
        own = {name for each in self.get_params(ctx) for name in each.opts}
        first = args[0].partition("=")[0] if args else ""
        if first.startswith("--") and first not in own:
            self._refuse_misplaced(ctx, first, args)
        return super().parse_args(ctx, args)

    def _refuse_misplaced(self, ctx: Any, flag: str, args: Sequence[str]) -> None:
        name = next((each for each in args if each in self._installed()), None)
        command = None if name is None else self.get_command(ctx, name)
        if command is not None and any(flag in each.opts for each in command.params):
            text = f"toolbus: {flag} must follow the command: toolbus {name} ... {flag}"
            typer.echo(text, err=True)
            raise typer.Exit(ExitCode.USAGE)

    def _installed(self) -> dict[str, EntryPoint]:
        if self._entries is None:
            self._entries = {}
            for entry in entry_points(group=COMMANDS):
                self._entries.setdefault(entry.name, entry)
        return self._entries


def _load(entry: EntryPoint) -> _Command:
    try:
        return _as_command(entry.name, entry.load())
    except ImportError as error:
        return _unavailable(entry.name, _import_error_text(error))
    except Exception as error:  # a broken command of another package must not break ours
        return _unavailable(entry.name, f"cannot be loaded: {type(error).__name__}: {error}")


def _import_error_text(error: ImportError) -> str:
    """Return what a command lacks; a package that names its extra itself is right about it."""
    if _INSTALL in str(error):
        return str(error)
    if not isinstance(error, ModuleNotFoundError):
        return f"cannot be loaded: {type(error).__name__}: {error}"
    extra = missing_extra(error)
    return f"{error.name} is missing" if extra is None else _to_install(error, extra)


def _missing_extras(command: str) -> str:
    """Return the extras that a command needs and that are not installed, as pip takes them."""
    needed = _NEEDED_EXTRAS.get(command, {})
    return ",".join(extra for module, extra in needed.items() if find_spec(module) is None)


def _as_command(name: str, loaded: Any) -> _Command:
    if isinstance(loaded, typer.Typer):
        group = loaded
    else:
        group = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        group.command(name)(loaded)
    command = get_command(group)
    command.name = name
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


def _prepare_options(command: Any, parent: Any) -> None:
    """Give a command, and those below it, the options that all have, and what options share."""
    add_log_options(command)
    context = typer.Context(command, parent=parent)
    for each in command.get_params(context):
        _hide_switch_value(each)
        require_utf8(each)
    for below in getattr(command, "commands", {}).values():
        _prepare_options(below, context)


def _hide_switch_value(option: Any) -> None:
    """Remove `<bool>` beside a switch in the help text: it looks like a value to type."""
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""


def _unavailable(name: str, text: str) -> _Command:
    def explain() -> None:
        typer.echo(f"toolbus {name}: {one_line(text)}", err=True)
        raise typer.Exit(ExitCode.USAGE)

    group = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    decorate: Callable[..., Any] = group.command(
        name,
        help=f"({one_line(text)})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    decorate(explain)
    return _as_command(name, group)


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the extra of toolbus that contains the missing module, if there is one."""
    try:
        requirements = requires("toolbus") or []
    except PackageNotFoundError:
        return None
    parts = (error.name or "").replace("_", "-").lower().split(".")
    candidates = {"-".join(parts[:length]) for length in range(1, len(parts) + 1)}
    for requirement in requirements:
        match = _EXTRA.match(requirement)
        if match and match["extra"] not in _OWN_EXTRAS and match["name"].lower() in candidates:
            return match["extra"]
    return None


def _to_install(error: ModuleNotFoundError, extra: str) -> str:
    return f"{error.name} is missing: {_INSTALL}{extra}]'"
