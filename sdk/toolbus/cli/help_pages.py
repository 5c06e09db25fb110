"""The help page of a command, in panels; options of the room and of the log are in `--help-all`.

Lines are wrapped to the terminal, without cutting a word: the tables of typer cut names of options
in 80 columns, and fill the lines of a pipe with blanks.
"""

from __future__ import annotations

import functools
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from toolbus.cli.columns import wrapped
from toolbus.cli.options import options_of
from toolbus.untrusted_text import one_line

__all__ = ["add_help_page"]

_HIDDEN = ("Room", "Log")
"""The panels that a page has only with `--help-all`: the same for every command."""
_SHOWN_NAMES = 3
"""How many options the line names that stands for them."""
_ALL = "toolbus.help_all"
_Row = tuple[str, str]


def add_help_page(command: Any, *, hides_all: bool = False) -> None:
    """Give a command `--help-all`, and a page with the other panels.

    Args:
        command: The command or group, which has its options.
        hides_all: Whether the page has no options at all.
    """
    command.params.append(copy(_help_all()))
    command.rich_markup_mode = None  # typer writes to the formatter
    command.format_options = lambda ctx, page: _write_panels(command, ctx, page)
    write = command.format_help

    def format_help(ctx: Any, formatter: Any) -> None:
        hidden = []
        if not ctx.meta.get(_ALL):
            options = [option for option in command.get_params(ctx) if not option.hidden]
            hidden = [
                option for option in options if hides_all or option.rich_help_panel in _HIDDEN
            ]
        command.epilog = _line_of(hidden, hides_all=hides_all)
        for option in hidden:
            option.hidden = True
        page = _Page(width=shutil.get_terminal_size().columns)
        write(ctx, page)
        for option in hidden:  # completion offers them
            option.hidden = False
        formatter.write(page.getvalue())

    command.format_help = format_help


@functools.cache
def _help_all() -> Any:
    def declare(
        _help_all: Annotated[
            bool,
            typer.Option(
                "--help-all",
                help="Show this page with all options, and exit.",
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                rich_help_panel="Log",
            ),
        ] = False,
    ) -> None: ...

    (option,) = options_of(declare)
    return option


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _line_of(hidden: Sequence[Any], *, hides_all: bool) -> str | None:
    """Return the line that stands for options: "Log options: --log-level, ... see --help-all"."""
    if not hidden:
        return None
    title = "Options"
    if not hides_all:
        panels = {option.rich_help_panel for option in hidden}
        title = " and ".join(name.lower() for name in _HIDDEN if name in panels).capitalize()
        title = f"{title} options"
    names = [max(option.opts, key=len) for option in hidden]
    return f"{title}: {', '.join(names[:_SHOWN_NAMES])} ... see --help-all"


# Plain lines


class _Page(typer.Context.formatter_class):  # type: ignore[valid-type,misc]  # a class attribute
    """Lines of at most a width, unless one word is longer: no word is cut."""

    def getvalue(self) -> str:
        """Return the lines, without blanks at their ends."""
        return "\n".join(line.rstrip() for line in super().getvalue().split("\n"))

    def write_heading(self, heading: str) -> None:
        """Write the title of a panel."""
        self.write(f"{typer.style(f'{heading}:', bold=True)}\n")

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write how the command is written."""
        self.write(self._wrapped(f"Usage: {prog} {args}", "", " " * 4) + "\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        indent = " " * self.current_indent
        paragraphs = (self._wrapped(part, indent) for part in text.split("\n\n"))
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(self, rows: Sequence[_Row], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names, and their texts beside or below them."""
        rows = [(one_line(name), text) for name, text in rows]
        longest = max(len(name) for name, _ in rows)
        column = min(longest, col_max, self.width // 3) + col_spacing
        margin = " " * self.current_indent
        for name, text in rows:
            lines = self._wrapped(text, margin + " " * column)
            if len(name) <= column - col_spacing:
                lines = f"{margin}{name:{column}}{lines.lstrip()}"
            else:
                lines = f"{margin}{name}\n{lines}"
            self.write(f"{lines}\n")

    def _wrapped(self, text: str, indent: str, further: str = "") -> str:
        words = one_line(" ".join(text.split()))  # of another package, perhaps
        return "\n".join(wrapped(f"{indent}{words}", self.width, indent + further))


def _write_panels(command: Any, ctx: Any, page: Any) -> None:
    panels: dict[str, list[_Row]] = defaultdict(list)
    for title, row in (*_options(command, ctx), *_commands(command, ctx)):
        panels[title].append(row)
    for title, rows in panels.items():
        with page.section(title):
            page.write_dl(rows)


def _options(command: Any, ctx: Any) -> Iterator[tuple[str, _Row]]:
    shown = [option for option in command.get_params(ctx) if not option.hidden]
    for option in sorted(shown, key=lambda option: option.param_type_name != "argument"):
        default = "Arguments" if option.param_type_name == "argument" else "Options"
        yield option.rich_help_panel or default, option.get_help_record(ctx)


def _commands(command: Any, ctx: Any) -> Iterator[tuple[str, _Row]]:
    names = command.list_commands(ctx) if isinstance(command, TyperGroup) else ()
    column = max(map(len, names), default=0)  # the same in all panels
    for name in names:
        listed: Any = command.get_command(ctx, name)
        if not listed.hidden:
            first, _, _ = (listed.help or "").partition("\n\n")
            yield (
                listed.rich_help_panel or "Commands",
                (name.ljust(column), " ".join(first.split())),
            )
