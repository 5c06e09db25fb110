"""Builtins of bash, and the small commands that are builtins too.

What a builtin does to the shell ends with the line; a variable that it sets counts as an assignment
of the line, so that it is judged as `NAME=value` is. Builtins that run others are in `wrappers`.

Builtins that evaluate their words are read by `reading` in their plain forms alone: the others
(`test -v`, `set -k`, `declare`, `let`, `mapfile`) never come here.

Source: bash(1), GNU bash 5.2, and `help`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import Arguments, Command, Effect, asking, shows, starts
from toolbus_toolkits.shell.commands.wrappers import run_text, tails
from toolbus_toolkits.shell.reading import Assignment, SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:=|\Z)")
_PRINTF_COUNT = re.compile(r"%[^A-Za-z%]*[hlLqjzt]*n")


def _assigns(names: Sequence[Word], *, is_exported: bool = False) -> Effect:
    """Set the variables of `NAME` and `NAME=value` words."""
    assignments: list[Assignment] = []
    for word in names:
        match = _ASSIGNMENT.match(word.known)
        # A subscript is evaluated, and may run a command: `unset 'a[$(rm x)]'`.
        if match is None or (word.value is None and not match[0].endswith("=")):
            return Effect(why=f"`{word.source}` is no plain name of a variable")
        value = Word(word.source, None)
        if word.value is not None and match[0].endswith("="):
            value = replace(word, value=word.value[match.end() :])
        assignments.append(Assignment(match[1], value, is_exported))
    if not assignments:
        return Effect(read_only=True, reads=())
    runs = (SimpleCommand((), tuple(assignments)),)
    return Effect(read_only=True, reads=(), runs=runs, is_transparent=True)


def _changes_directory(arguments: Arguments) -> Effect:
    name = arguments.row.name
    directory = Word({"cd": "~"}.get(name, name), None)
    for word in arguments.operands[:1]:
        if not (word.value or "").startswith("+"):  # `pushd +1`
            directory = word
    return Effect(read_only=True, reads=(), directory=directory)


def _printf(arguments: Arguments) -> Effect:
    template = arguments.operands[:1]
    if any(word.value is None or _PRINTF_COUNT.search(word.value) for word in template):
        return Effect(why="`%n` of its format may set a variable")
    return Effect(read_only=True, reads=())


def _shopt(command: SimpleCommand) -> Effect:
    if any(word.value is None or word.value not in ("-p", "-q") for word in command.words[1:]):
        return Effect(why="it may change how the line is read")
    return Effect(read_only=True, reads=())


def _jobs(command: SimpleCommand) -> Effect:
    letters = [word.value for word in command.words[1:]]
    if all(text is not None and re.fullmatch(r"-[lnprs]+|%.*|[0-9]+", text) for text in letters):
        return Effect(read_only=True, reads=())
    return Effect(why="`-x` runs a command", runs=tails(command))


def _alias(arguments: Arguments) -> Effect:
    """Define names for lines, which later lines of an interactive shell may run."""
    if not arguments.operands:
        return Effect(read_only=True, reads=())
    lines = [word.value.partition("=")[2] for word in arguments.operands if word.value is not None]
    same = tuple(command for line in lines for command in run_text(line, line)[0])
    return Effect(why="it changes what later commands are", same=same)


ROWS: tuple[Command, ...] = (
    Command(
        ":, true, false, echo, pwd, type, help, ulimit, umask, times, exit, return, break,"
        " continue, shift, bg, fg, disown, logout, dirs, caller, set, test, [, [[",
        any_words=True,
    ),
    shows("cd, pushd, popd", "-L -P -e -@ -n", permutes=False, effect=_changes_directory),
    starts("printf", asks={"-v": "sets a variable"}, effect=_printf),
    starts(
        "export, readonly, local",
        # With names `-p` counts nothing: `export -p PATH=.` sets PATH.
        "-p -r -x",
        effect=lambda arguments: _assigns(
            arguments.operands,
            is_exported=arguments.row.name == "export" or arguments.has("-x"),
        ),
    ),
    starts("unset", "-v -f", effect=lambda arguments: _assigns(arguments.operands)),
    starts(
        "read",
        "-r -s",
        valued="-p -d -n -N -t -u",
        effect=lambda arguments: _assigns(arguments.operands),
    ),
    starts("wait", "-f -n", asks={"-p": "sets a variable"}),
    starts("hash", "-r -l -t -d", asks={"-p": "sets what a command is"}),
    shows("unalias", "-a"),
    starts("alias", "-p", effect=_alias),
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "shopt": _shopt,
    "jobs": _jobs,
    "enable": asking("may load code"),
    "suspend": asking("stops the shell"),
}
