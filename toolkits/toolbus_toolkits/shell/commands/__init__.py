"""What is known about commands: which of their options only read, and what the others do.

`effect_of` is the one question. `table` says how a command is described, and the other modules are
the descriptions, by area. A command, an option or an argument that is not described counts as
unknown: then the command is asked about.

A module of descriptions has `ROWS`, its `Command` rows, and may have `SPECIAL`: functions for
commands whose words follow rules of their own, by the names of the commands. A command with
sub-commands is a special one that finds its sub-command and then asks the row of `git log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import ModuleType

from toolbus_toolkits.shell.commands import (
    archives,
    files,
    git,
    packages,
    scripts,
    services,
    shell_builtins,
    systems,
    text,
    wrappers,
)
from toolbus_toolkits.shell.commands.program_options import (
    may_get_program_options,
    program_options,
)
from toolbus_toolkits.shell.commands.table import Command, Effect, by_name, by_title, row_effect
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = [
    "MODULES",
    "ROWS",
    "SPECIAL",
    "Effect",
    "command_name",
    "effect_of",
    "names_in",
    "reaches_further",
    "without_standard_folder",
]


MODULES: tuple[ModuleType, ...] = (
    archives,
    files,
    git,
    packages,
    scripts,
    services,
    shell_builtins,
    systems,
    text,
    wrappers,
)
"""The modules of descriptions."""

_STANDARD_FOLDERS = frozenset(
    ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
)
"""Where a program is the one that its bare name finds; anywhere else it may be any program."""


def _described(
    modules: Iterable[ModuleType],
) -> tuple[Mapping[str, Command], Mapping[str, Callable[[SimpleCommand], Effect]]]:
    rows = chain.from_iterable(module.ROWS for module in modules)
    special = (getattr(module, "SPECIAL", {}) for module in modules)
    return by_name(*rows), by_title(*special)


ROWS, SPECIAL = _described(MODULES)
"""The rows, and the functions for commands of their own rules, each by the name of its command. The
functions go first."""


def names_in(*modules: ModuleType) -> frozenset[str]:
    """Return the names of the commands that some modules describe."""
    return frozenset(chain(*_described(modules)))


def command_name(command: SimpleCommand) -> str | None:
    """Return the name of a command without a standard folder; None where it is not known."""
    word = command.words[0]
    if word.value is None or word.is_pattern:
        return None
    return without_standard_folder(word.value)


def without_standard_folder(name: str) -> str:
    """Return a name without a standard folder: a rule for `ls` is about `/bin/ls` too."""
    folder, _, base = name.rpartition("/")
    return base if folder in _STANDARD_FOLDERS else name


def effect_of(command: SimpleCommand) -> Effect:
    """Return what a command does. It has at least one word."""
    effect = _effect_by_name(command)
    programs = [run for option in program_options(command, ROWS) for run in option.programs]
    return replace(effect, same=(*effect.same, *programs)) if programs else effect


def reaches_further(command: SimpleCommand, described: Sequence[str]) -> bool:
    """Whether an option of a command may run a program or lead elsewhere.

    An option among the words described counts nothing: a person has seen it.
    """
    return may_get_program_options(command, ROWS) or not all(
        any(word == option.word.known or word.startswith(option.name) for word in described)
        for option in program_options(command, ROWS)
    )


def _effect_by_name(command: SimpleCommand) -> Effect:
    name = command_name(command)
    if name is None:
        return Effect(
            why="its name is known only when the line runs",
            immune=f"`{command.words[0].source}` names a command only when the line runs",
        )
    if special := SPECIAL.get(name):
        return special(command)
    # `"git log"` as one word is a program of that name, not the sub-command.
    if " " not in name and (row := ROWS.get(name)):
        return row_effect(row, command)
    if special := scripts.interpreter(name):
        return special(command)
    return Effect(why=f"`{name}` is not known", runs_words=True)
