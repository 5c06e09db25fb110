"""The options of all commands for their log, before and after the command.

    toolbus -v serve
    toolbus serve --log-level debug --log-json

Without them and without `TOOLBUS_LOG_LEVEL` a command logs as it does by itself: warnings.
"""

from __future__ import annotations

import logging
import os
from copy import copy
from functools import cache, partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

__all__ = ["add_log_options"]

_VARIABLE = "TOOLBUS_LOG_LEVEL"
_CHOSEN = "toolbus.log"
"""In the context of the command line: what the options before and after the command chose."""


def add_log_options(command: Any) -> None:
    """Give a command the options; one that is no group logs as they say while it runs."""
    # Copies, because `app` adds checks to the options of each command.
    command.params.extend(copy(option) for option in _options())
    if isinstance(command, TyperGroup):
        return
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        chosen: dict[str, Any] = ctx.meta.get(_CHOSEN, {})
        if not chosen and not os.environ.get(_VARIABLE):
            return run(ctx)
        from toolbus.log_output import LogOutput  # most commands log as they do by themselves

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
    variable = os.environ.get(_VARIABLE)
    return _read_level(variable, ctx, hint=_VARIABLE) if variable else None


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


_Option = partial(typer.Option, callback=_keep, expose_value=False, rich_help_panel="Log")


def _declare(
    _log_level: Annotated[
        str | None,
        _Option(
            "--log-level",
            metavar="LEVEL",
            help="Log to stderr from this level on: debug, info, warning, error or critical. "
            "[TOOLBUS_LOG_LEVEL]",
        ),
    ] = None,
    _verbose: Annotated[
        int,
        _Option(
            "-v",
            "--verbose",
            count=True,
            metavar="",
            help="Log from level info on; -vv from debug on.",
            show_default=False,
        ),
    ] = 0,
    _log_json: Annotated[
        bool, _Option("--log-json", help="Log each record as one line of JSON.")
    ] = False,
) -> None:
    """Declare the options, for `_options`."""


@cache
def _options() -> list[Any]:
    declared = typer.Typer(add_completion=False)
    declared.command()(_declare)
    return get_command(declared).params
