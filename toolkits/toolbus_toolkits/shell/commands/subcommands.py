"""Commands with sub-commands: `git -C folder log`, `docker compose ps`.

The options before the sub-command are read by the row of the command itself, the rest by the row of
`git log`. Where options stand before the sub-command, the command counts as one that starts the
same command without them, so that a rule for `git push` also sees `git -C folder push`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    by_title,
    command_of,
    read_arguments,
    row_effect,
    unknown_command,
)
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = [
    "RUNS",
    "SETTINGS",
    "renamed",
    "starts_itself",
    "subcommand_effect",
    "with_subcommands",
]

_MAX_WORDS = 3
"""The most words of a sub-command: `gh repo view` has two behind its name."""

SETTINGS = "it changes settings of the user"
"""What a sub-command does that a person decides about, whatever the rules allow."""
RUNS = "it runs a command that its words name, or programs"
"""What a sub-command does that a deny rule looks into, also if that is in a container."""
_MAX_TAILS = 8
"""So many words behind an option that is not known are taken as the sub-command."""


def with_subcommands(
    top: Command, rows: Mapping[str, Command], whys: Mapping[str, str]
) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command with sub-commands.

    Args:
        top: The command itself, with the options before its sub-command.
        rows: The sub-commands that are known to only read in some form: `docker compose ps`.
        whys: What others do, as a clause, by `docker run`.
    """
    clauses = by_title(whys.items())

    def effect(command: SimpleCommand) -> Effect:
        arguments = read_arguments(top, command)
        if arguments.first_operand > 1:
            return starts_itself(arguments)
        return subcommand_effect(command, top.name, rows, clauses)

    return effect


def starts_itself(arguments: Arguments) -> Effect:
    """Return the effect of a command that has options before its sub-command, or none at all."""
    command = arguments.command
    fault = arguments.fault
    if not arguments.operands:
        return Effect(read_only=not fault, why=fault, reads=())
    begins = [arguments.first_operand]
    if fault:
        # An option that is not known may take the next word as its value.
        rest = range(arguments.first_operand + 1, len(command.words))
        begins += [i for i in rest if not command.words[i].source.startswith("-")][:_MAX_TAILS]
    runs = [_from(command, begin) for begin in begins]
    if begins[0] >= len(command.words) or len(begins) > _MAX_TAILS:
        runs.append(unknown_command(command.source))
    return Effect(
        read_only=not fault, why=fault, reads=(), runs=tuple(runs), is_transparent=not fault
    )


def renamed(command: SimpleCommand, count: int, text: str) -> tuple[SimpleCommand, ...]:
    """Return a command with its first words replaced, for `Effect.same`.

    Args:
        command: The command.
        count: How many words are replaced.
        text: The words in their place.
    """
    words = (*(Word(word, word) for word in text.split()), *command.words[count:])
    source = " ".join(word.source for word in words)
    return (SimpleCommand(words, source=source, takes_more=command.takes_more),)


def _from(command: SimpleCommand, begin: int) -> SimpleCommand:
    return command_of(command, (command.words[0], *command.words[begin:]))


def subcommand_effect(
    command: SimpleCommand, name: str, rows: Mapping[str, Command], whys: Mapping[str, str]
) -> Effect:
    """Return what a command does whose sub-command stands right behind its name."""
    if len(command.words) == 1 and not command.takes_more:
        row = rows.get(name)
        if row is not None:
            return row_effect(row, command)
        return Effect(why=whys.get(name, "it is not known to only read"))
    texts = [name]
    for word in command.words[1 : 1 + _MAX_WORDS]:
        if word.value is None or word.is_pattern:
            break
        texts.append(word.value)
    for count in range(len(texts), 1, -1):
        title = " ".join(texts[:count])
        if title in rows:
            return row_effect(rows[title], command, count)
        if title in whys:
            why = whys[title]
            immune = f"`{title}`: {why}" if why == SETTINGS else ""
            return Effect(why=why, immune=immune, runs_words=why == RUNS)
    if len(texts) == 1:
        return Effect(why=f"the sub-command of `{name}` is known only when the line runs")
    return Effect(why=whys.get(name, f"`{' '.join(texts[:2])}` is not known"))
