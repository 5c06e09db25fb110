"""The `toolbus` command line: finds the installed commands and runs one.

Our own commands stand in `own_commands`, and are imported only to be run. Other packages add
commands through the entry point group `toolbus.commands`: a function with typer's annotations, or a
`typer.Typer` for a group. A command that cannot be imported stays in the list and says which
package to install.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from toolbus.cli.error_report import ReaderClosed, StdoutError, guard_streams, report
from toolbus.cli.help_pages import add_help_page
from toolbus.cli.options import add_log_options, require_utf8
from toolbus.cli.own_commands import (
    LACKING,
    MOVED_COMMANDS,
    OWN_COMMANDS,
    PANELS,
    OwnCommand,
    install_line,
    with_install_line,
)
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.untrusted_text import one_line

__all__ = ["COMMANDS", "CommandGroup", "main", "make_app", "missing_extra"]

COMMANDS = "toolbus.commands"
"""The entry point group of the commands of other packages."""
_OWN_EXTRAS = frozenset({"dev", "demo", "docs"})
"""The extras of a clone, which no message recommends."""
_EXTRA = re.compile(r"^(?P<name>[A-Za-z0-9._-]+).*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")

_UNREADABLE: type[Exception] = typer.BadParameter.__bases__[0]
"""An error about the command line as it was typed; typer does not export its name."""
_Command: TypeAlias = TyperCommand | TyperGroup


def main(on_command: Callable[[], None] | None = None) -> None:
    """Run the command line of this process, as `make_app` makes it."""
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
        typer.echo(f"toolbus: {_to_install(error, [extra])}", err=True)
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
        rich_markup_mode=None,  # errors without a border
        cls=CommandGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they print local variables, which may hold tokens
        context_settings={"help_option_names": ["-h", "--help"], "obj": on_command},
    )
    app.callback()(_root)
    return app


def _print_version(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from toolbus.telemetry.tracing import toolbus_version

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
    """The installed commands: `get_command` tells about one, `import_command` imports it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add_log_options(self)
        add_help_page(self, hides_all=True)
        self._imported: dict[str, _Command] = {}
        self._others: dict[str, EntryPoint] | None = None

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
        except _UNREADABLE as error:
            if hasattr(error, "possibilities"):
                _explain_unknown_option(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command; from here on Ctrl-C is an exception, which the command handles.

        An unknown command is refused with its new name, or with similar ones.
        """
        command = self.import_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing:  # completion refuses nothing
            if args[0] in MOVED_COMMANDS:
                text = f"toolbus: there is no `toolbus {args[0]}`: write {MOVED_COMMANDS[args[0]]}"
                typer.echo(text, err=True)
                raise typer.Exit(ExitCode.USAGE)
            # typer would suggest nothing, because it does not ask for the list of commands.
            from toolbus.cli.suggestions import nearest  # brings in the client

            near = nearest(args[0], self.list_commands(ctx), 3)
            if near and not args[0].startswith("-"):
                suggested = " or ".join(repr(name) for name in near)
                ctx.fail(f"No such command {args[0]!r}. Did you mean {suggested}?")
        if command is None:
            return super().resolve_command(ctx, args)
        if ctx.obj is not None:
            ctx.obj()
        return args[0], command, args[1:]

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands: our own by panel, others by name, those that lack an extra."""
        lacking = [name for name, own in OWN_COMMANDS.items() if own.missing_extras()]
        ready = [name for name in OWN_COMMANDS if name not in lacking]
        return [*ready, *sorted(self._other_commands()), *lacking]

    def get_command(self, ctx: Any, cmd_name: str) -> _Command | None:
        """Return a command for lists of commands: one of ours has only its name and its help."""
        own = OWN_COMMANDS.get(cmd_name)
        if own is None:
            other = self.import_command(ctx, cmd_name)
            if other is not None:
                other.rich_help_panel = other.rich_help_panel or PANELS[-1]
            return other
        if extras := own.missing_extras():
            return TyperCommand(cmd_name, help=install_line(extras), rich_help_panel=LACKING)
        return TyperCommand(cmd_name, help=own.help, rich_help_panel=own.panel)

    def import_command(self, ctx: Any, name: str) -> _Command | None:
        """Import one command; None if there is none of this name."""
        if name not in self._imported:
            own = OWN_COMMANDS.get(name)
            if own is not None:
                self._imported[name] = _load(EntryPoint(name, own.place, COMMANDS), own)
            elif name in self._other_commands():
                self._imported[name] = _load(self._other_commands()[name])
            else:
                return None
            _prepare_options(self._imported[name], ctx)
        return self._imported[name]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `toolbus` itself; switches are shown without a value."""
        own = super().get_params(ctx)
        for option in own:
            _hide_switch_value(option)
        return own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; report a command's own option in that place."""
        own = {name for option in self.get_params(ctx) for name in option.opts}
        flag = "".join(args[:1]).partition("=")[0]
        if flag.startswith("--") and flag not in own and not ctx.resilient_parsing:
            name = next((word for word in args if word in self.list_commands(ctx)), "")
            command = self.import_command(ctx, name)
            if command is not None and any(flag in option.opts for option in command.params):
                text = f"toolbus: {flag} must follow the command: toolbus {name} ... {flag}"
                typer.echo(text, err=True)
                raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def _other_commands(self) -> dict[str, EntryPoint]:
        """Find the commands of other packages, which cannot replace ours."""
        if self._others is None:
            self._others = {}
            for entry in entry_points(group=COMMANDS):
                if entry.name not in OWN_COMMANDS:
                    self._others.setdefault(entry.name, entry)
        return self._others


def _explain_unknown_option(error: Any) -> None:
    """Suggest only near options; one of `toolbus call` may be meant as an argument of the tool."""
    from toolbus.cli.suggestions import nearest  # brings in the client

    name = error.option_name
    error.possibilities = nearest(name, error.possibilities or (), 3)
    if error.ctx.command.name == "call":
        argument = one_line(name.lstrip("-"), 64)
        error.message += f"; an argument of the tool is written NAME=VALUE: {argument}=..."


def _load(entry: EntryPoint, own: OwnCommand | None = None) -> _Command:
    try:
        return _as_command(entry.name, entry.load())
    except (Exception, SystemExit) as error:  # of another package: must not break our commands
        text = f"cannot be loaded: {type(error).__name__}: {error}"
        if isinstance(error, ImportError) and "pip install 'toolbus[" in str(error):
            # A package that names its extra itself is right about it.
            text = with_install_line(str(error))
        elif isinstance(error, ModuleNotFoundError):
            extra = missing_extra(error)
            extras = [] if extra is None else [extra]
            if own is not None and extra is None:  # a package that those of an extra need
                extras = own.missing_extras() or list(own.extras)
            text = _to_install(error, extras)
        return _unavailable(entry.name, text)


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


def _prepare_options(command: Any, parent: Any) -> None:
    """Give a command, and those below it, the options that all have, and what options share."""
    add_log_options(command)
    add_help_page(command)
    context = typer.Context(command, parent=parent)
    for option in command.get_params(context):
        _hide_switch_value(option)
        require_utf8(option)
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

    return TyperCommand(
        name,
        callback=explain,
        help=f"({one_line(text)})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )


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


def _to_install(error: ModuleNotFoundError, extras: Sequence[str]) -> str:
    text = f"{error.name} is missing"
    return f"{text}: {install_line(extras)}" if extras else text
