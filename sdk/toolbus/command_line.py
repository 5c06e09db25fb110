"""`toolbus`: finds the commands, and runs the one that was typed.

Commands join through the entry point group `toolbus.commands`: a function with typer's annotations,
or a `typer.Typer` for a group of them. Each is imported only when it is needed; one that cannot be
imported stays in the list and says what to install.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from toolbus.exit_codes import ExitCode
from toolbus.telemetry import toolbus_version

__all__ = ["COMMANDS", "CommandGroup", "main", "make_app", "missing_extra"]

COMMANDS = "toolbus.commands"
"""The entry point group of commands."""
_ORDER = (
    "serve",
    "host",
    "tools",
    "builders",
    "call",
    "watch",
    "trace",
    "token",
    "key",
    "admin",
    "doctor",
    "demo",
)
_EXTRA = re.compile(r"^(?P<name>[A-Za-z0-9._-]+).*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

_Command: TypeAlias = TyperCommand | TyperGroup


def main() -> None:
    """Run the command line of this process.

    Nobody looks for garbage among modules while they are loaded, nor afterwards: they stay, and it
    would be a fifth of the time of a short command, most of it at its end.
    """
    gc.disable()
    try:
        make_app()(prog_name="toolbus")
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        typer.echo(f"toolbus: {_to_install(error, extra)}", err=True)
        raise SystemExit(ExitCode.USAGE) from error


def make_app() -> typer.Typer:
    """Make the command line; nothing is imported for a command before it is asked for."""
    app = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they print local variables, and tokens are among those
        context_settings={"help_option_names": ["-h", "--help"]},
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
            "--version", help="Print the release.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Host toolkits as services, call them from anywhere, see every call."""
    if not gc.isenabled():  # in a process of its own: the command is loaded now, and begins
        gc.freeze()
        gc.enable()


class CommandGroup(TyperGroup):
    """The commands that are installed, each imported when it is first asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loaded: dict[str, _Command] = {}
        self._entries: dict[str, EntryPoint] | None = None

    def invoke(self, ctx: Any) -> Any:
        """Run what was typed; what is wrong with a flag is said in our words.

        Ctrl-C that comes before the command can say so itself ends it quietly.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("toolbus: given up by Ctrl-C", err=True)
            raise typer.Exit(ExitCode.GIVEN_UP) from None
        except typer.BadParameter as wrong:
            wrong.message = wrong.message.removeprefix("Value error, ")
            raise

    def list_commands(self, ctx: Any) -> list[str]:
        """Name them: ours in the order in which people meet them, then others."""
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
            _show_switches_alone(self._loaded[cmd_name], ctx)
        return self._loaded[cmd_name]

    def get_params(self, ctx: Any) -> list[Any]:
        """Give its own options, switches without a value."""
        own = super().get_params(ctx)
        for each in own:
            _show_alone(each)
        return own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options that stand before the command; say of one of its own where it goes."""
        own = {name for each in self.get_params(ctx) for name in each.opts}
        first = args[0].partition("=")[0] if args else ""
        if first.startswith("--") and first not in own:
            self._explain_place(ctx, first, args)
        return super().parse_args(ctx, args)

    def _explain_place(self, ctx: Any, flag: str, args: Sequence[str]) -> None:
        name = next((each for each in args if each in self._installed()), None)
        command = None if name is None else self.get_command(ctx, name)
        if command is not None and any(flag in each.opts for each in command.params):
            words = f"toolbus: {flag} comes after the command: toolbus {name} ... {flag}"
            typer.echo(words, err=True)
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
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        words = f"{error.name} is missing" if extra is None else _to_install(error, extra)
        return _unavailable(entry.name, words)
    except Exception as error:  # another distribution's command must not take ours along
        return _unavailable(entry.name, f"cannot be loaded: {type(error).__name__}: {error}")


def _as_command(name: str, loaded: Any) -> _Command:
    if isinstance(loaded, typer.Typer):
        group = loaded
    else:
        group = typer.Typer(add_completion=False)
        group.command(name)(loaded)
    command = get_command(group)
    command.name = name
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


def _show_switches_alone(command: Any, parent: Any) -> None:
    """Let help show no `<bool>` beside a switch: it looks like a value to be given."""
    context = typer.Context(command, parent=parent)
    for each in command.get_params(context):
        _show_alone(each)
    for below in getattr(command, "commands", {}).values():
        _show_switches_alone(below, context)


def _show_alone(option: Any) -> None:
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""


def _unavailable(name: str, words: str) -> _Command:
    def explain() -> None:
        typer.echo(f"toolbus {name}: {words}", err=True)
        raise typer.Exit(ExitCode.USAGE)

    group = typer.Typer(add_completion=False)
    decorate: Callable[..., Any] = group.command(
        name,
        help=f"({words})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    decorate(explain)
    return _as_command(name, group)


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return the extra of toolbus that brings the module that was not found, if one does."""
    try:
        requirements = requires("toolbus") or []
    except PackageNotFoundError:
        return None
    parts = (error.name or "").replace("_", "-").lower().split(".")
    candidates = {"-".join(parts[:length]) for length in range(1, len(parts) + 1)}
    for requirement in requirements:
        match = _EXTRA.match(requirement)
        if match and match["extra"] != "dev" and match["name"].lower() in candidates:
            return match["extra"]
    return None


def _to_install(error: ModuleNotFoundError, extra: str) -> str:
    return f"{error.name} is missing: pip install 'toolbus[{extra}]'"
