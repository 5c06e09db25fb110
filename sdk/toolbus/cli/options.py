"""Options that several commands share: how a group of them is declared, the log, records, checks.

Commands are listed with this module imported, so what is slow is imported where it is used. A check
is a callback of an option or an argument: it returns the value, or raises `typer.BadParameter`,
which names the option.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer
from typer.core import TyperGroup
from typer.main import get_command

from toolbus.diagnostics.exit_codes import UsageError
from toolbus.untrusted_text import SHOWN_CHARS

if TYPE_CHECKING:
    from toolbus.records.records import Records

__all__ = [
    "Instance",
    "ListenHost",
    "ListenPort",
    "RecordChoices",
    "ServerDrain",
    "TlsCert",
    "TlsKey",
    "TrustedProxies",
    "add_log_options",
    "check_drain",
    "check_listen_host",
    "log_options",
    "options_of",
    "read_mib",
    "require_utf8",
    "takes",
    "warn_if_readable",
    "with_parameters",
]


# Declaring


def takes(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a dataclass, in place of its parameter of that type.

        @dataclass(frozen=True, kw_only=True)
        class Choices:
            steps: Annotated[int, typer.Option(help="...")] = 20

        @takes(Choices)
        def command(choices: Choices, other: ...) -> None:

    The command has the flag `--steps`, after its own, and gets what was chosen.

    Args:
        kind: The class. All its fields have defaults; a `typer.Context` is that of the command.
    """
    hints = get_type_hints(kind, include_extras=True)
    flags = [
        inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=flag.default,
            annotation=hints[flag.name],
        )
        for flag in fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        given_by = inspect.signature(command, eval_str=True).parameters.values()
        (taken,) = (parameter.name for parameter in given_by if parameter.annotation is kind)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in given_by
            if parameter.name != taken
        ]

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            chosen = kind(**{flag.name: given.pop(flag.name) for flag in flags})
            command(**given, **{taken: chosen})

        return with_parameters(with_flags, [*own, *flags])

    return decorate


def with_parameters(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Let typer read other parameters of a function than its own."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def options_of(command: Callable[..., None]) -> list[Any]:
    """Return the options that typer makes of the parameters of a function."""
    declared = typer.Typer(add_completion=False)
    declared.command()(command)
    return get_command(declared).params


# The log: options of all commands, before and after the command
#
#     toolbus -v serve
#     toolbus serve --log-level debug --log-json
#
# Without them and without `TOOLBUS_LOG_LEVEL` a command logs as it does by itself: warnings.

_VARIABLE = "TOOLBUS_LOG_LEVEL"
_CHOSEN = "toolbus.log"
"""In the context of the command line: what the options before and after the command chose."""


def add_log_options(command: Any) -> None:
    """Give a command the options; one that does something itself logs as they say meanwhile."""
    # Copies, because `app` adds checks to the options of each command.
    command.params.extend(copy(option) for option in log_options())
    if isinstance(command, TyperGroup) and not command.invoke_without_command:
        return
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        chosen: dict[str, Any] = ctx.meta.get(_CHOSEN, {})
        if not chosen and not os.environ.get(_VARIABLE):
            return run(ctx)
        # Most commands log as they do by themselves.
        from toolbus.log_output import LogOutput, chosen_output

        if chosen_output() is not None:  # that of the group which this command is in
            return run(ctx)
        output = LogOutput(_level(ctx, chosen), as_json=chosen.get("_log_json", False))
        with output.running():
            return run(ctx)

    command.invoke = invoke


def _level(ctx: Any, chosen: dict[str, Any]) -> int | None:
    """Return the level: `--log-level`, else `-v`, else the variable; None without them."""
    if "_log_level" in chosen:
        level: int = chosen["_log_level"]
        return level
    if "_verbose" in chosen:
        return logging.INFO if chosen["_verbose"] == 1 else logging.DEBUG
    if variable := os.environ.get(_VARIABLE):
        return _read_level(variable, ctx, hint=_VARIABLE)
    return None


def _read_level(name: str, ctx: Any, hint: str | None = None) -> int:
    from toolbus.log_output import level_of

    try:
        return level_of(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), ctx=ctx, param_hint=hint) from None


def _keep(ctx: typer.Context, parameter: typer.CallbackParam, value: Any) -> None:
    """Keep what an option says; of `-v` before and after the command, both count."""
    if value in (None, 0, False) or ctx.resilient_parsing:
        return
    name = str(parameter.name)
    chosen = ctx.meta.setdefault(_CHOSEN, {})
    if name == "_log_level":
        value = _read_level(value, ctx)
    elif name == "_verbose":
        value += chosen.get(name, 0)
    chosen[name] = value


_LogOption = functools.partial(
    typer.Option, callback=_keep, expose_value=False, rich_help_panel="Log"
)


@functools.cache
def log_options() -> list[Any]:
    """Return the options, each once for all commands."""

    def declare(
        _log_level: Annotated[
            str | None,
            _LogOption(
                "--log-level",
                metavar="LEVEL",
                help="Log to stderr from this level on: debug, info, warning, error or critical. "
                "[TOOLBUS_LOG_LEVEL]",
            ),
        ] = None,
        _verbose: Annotated[
            int,
            _LogOption(
                "-v",
                "--verbose",
                count=True,
                metavar="",
                help="Log from level info on; -vv from debug on.",
                show_default=False,
            ),
        ] = 0,
        _log_json: Annotated[
            bool, _LogOption("--log-json", help="Log each record as one line of JSON.")
        ] = False,
    ) -> None: ...

    return options_of(declare)


# Records


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoices:
    """The flags of commands that record calls: whether, where, how long, and what of them."""

    records: Annotated[
        bool | None,
        typer.Option(
            "--records/--no-records",
            help="Record each call in records.db of TOOLBUS_HOME, or no call at all. "
            "Default: as the toolkit itself does. `toolbus records` lists them.",
            show_default=False,
        ),
    ] = None
    records_file: Annotated[Path | None, typer.Option(help="Record each call in this file.")] = None
    records_days: Annotated[
        float | None,
        typer.Option(help="Days that recorded calls are kept. Default: 30.", min=0.01, max=36_500),
    ] = None
    records_arguments: Annotated[
        bool, typer.Option("--records-arguments", help="Record the arguments of calls too.")
    ] = False

    @property
    def are_given(self) -> bool:
        """Whether the flags say if calls are recorded."""
        return self.records is not None or self.records_file is not None

    def check(self) -> None:
        """Raise UsageError for flags about records where nothing is recorded."""
        further = {
            "--records-days": self.records_days is not None,
            "--records-arguments": self.records_arguments,
        }
        given = [name for name, is_given in further.items() if is_given]
        if self.records is False and (self.records_file or given):
            raise UsageError("--no-records records nothing: leave it out, or the other options")
        if given and not (self.records or self.records_file):
            raise UsageError(f"{given[0]} is for recorded calls: add --records")

    def open(self) -> Records | None:
        """Open the file of records, by default the one of this user; None for no records.

        Raises `UsageError`.
        """
        if self.records is False or not self.are_given:
            return None
        from toolbus.records.records import Records
        from toolbus.records.sqlite_file import RecordsUnavailable
        from toolbus.settings import records_file

        path = self.records_file
        try:
            if path is None:
                path = records_file(os.environ)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            store = Records.sqlite(path, self.records_days or 30, arguments=self.records_arguments)
        except (RecordsUnavailable, OSError) as error:
            raise UsageError(f"{error}; name another file with --records-file") from error
        warn_if_readable("--records-file", path)
        return store


# Checks


def check_drain(value: float | None) -> float | None:
    """Check the seconds that running calls may take to finish."""
    from toolbus.settings import DRAIN_FORM, is_drain

    if value is None or is_drain(value):
        return value
    raise typer.BadParameter(f"{value} is not {DRAIN_FORM}")


def _check_instance(value: str | None) -> str | None:
    from toolbus.settings import checked_instance

    try:
        return value and checked_instance(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Instance: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Distinguishes replicas that use the same name. Default: random.",
        callback=_check_instance,
    ),
]
"""The option `--instance` of commands that host."""


def check_listen_host(value: str) -> str:
    """Check the form of an address to listen on; it is not looked up."""
    try:
        value.encode("idna")  # as a lookup does
        is_valid = value != "" and value.isprintable()
    except UnicodeError:
        is_valid = False
    if is_valid:
        return value
    raise typer.BadParameter(
        f"{value[:SHOWN_CHARS]!r} is not an address to listen on: write 127.0.0.1, a host name, or "
        "0.0.0.0 for all interfaces"
    )


def read_mib(value: str | int) -> int:
    """Read a size in MiB, without a unit."""
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return int(text)
    text = text[:SHOWN_CHARS]
    raise typer.BadParameter(f"{text!r} is not a whole number of MiB: write 64 for 64 MiB")


# Declared once for the commands that listen

ListenHost: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Address to listen on.", envvar="TOOLBUS_LISTEN_HOST", callback=check_listen_host
    ),
]
# Not TOOLBUS_PORT and TOOLBUS_GATEWAY_PORT: Kubernetes sets them for services of these names.
ListenPort: TypeAlias = Annotated[
    int,
    typer.Option(
        help="Port to listen on; 0 takes a free one.",
        envvar="TOOLBUS_LISTEN_PORT",
        min=0,
        max=65535,
    ),
]
ServerDrain: TypeAlias = Annotated[
    float,
    typer.Option(
        "--drain",
        help="Seconds that running calls may take to finish at shutdown.",
        envvar="TOOLBUS_DRAIN",
        callback=check_drain,
    ),
]
TlsCert: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Certificate for TLS, a PEM file.", envvar="TOOLBUS_TLS_CERT"),
]
TlsKey: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="The certificate's private key, a PEM file.", envvar="TOOLBUS_TLS_KEY"),
]
TrustedProxies: TypeAlias = Annotated[
    list[str],
    typer.Option(
        help="Networks of proxies whose X-Forwarded-For names the client, such as 10.0.0.0/8.",
        envvar="TOOLBUS_TRUSTED_PROXIES",
        metavar="CIDR[,CIDR]",
    ),
]


def warn_if_readable(flag: str, path: Path) -> None:
    """Warn of the private file of a flag if other users can read it; one that we make is 0600."""
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        text = f"{flag}: other users can read {path}: chmod 600 {shlex.quote(str(path))}"
        typer.echo(text, err=True)


def require_utf8(option: Any) -> None:
    """Make an option or argument refuse text with bytes that are not UTF-8: it cannot be sent.

    Paths, and text that is the name of an existing file, also after `@`, may have any bytes.
    """
    check = option.callback

    def callback(context: Any, parameter: Any, value: Any) -> Any:
        for item in value if isinstance(value, list | tuple) else (value,):
            try:
                if isinstance(item, str):
                    item.encode()
            except UnicodeEncodeError:
                if not os.path.isfile(item.removeprefix("@")):
                    text = f"{item[:SHOWN_CHARS]!r} is not valid UTF-8"
                    raise typer.BadParameter(text) from None
        if check is None:
            return value
        return check(context, parameter, value)

    option.callback = callback
