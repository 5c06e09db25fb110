"""Functions that a line defines."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolbus_toolkits.shell.reading.parts import SimpleCommand, UnreadableError

__all__ = ["without_calls"]

# `compgen -b` of bash 5.2, and the names that bash itself calls.
_BUILTINS = frozenset(
    ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare"
    " dirs disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill"
    " let local logout mapfile popd printf pushd pwd read readarray readonly return set shift shopt"
    " source suspend test times trap true type typeset ulimit umask unalias unset wait"
    " command_not_found_handle".split()
)


def without_calls(
    commands: Sequence[SimpleCommand],
    functions: Mapping[str, tuple[int, int]],
    environment: Mapping[str, str],
) -> tuple[SimpleCommand, ...]:
    """Return the commands without calls of functions: the commands of the body stand for them.

    Args:
        commands: The commands of the line.
        functions: By name, where the commands of its body are.
        environment: The variables that the line starts with.

    Raises:
        UnreadableError: A function hides a command, or functions call each other.
    """
    if not functions:
        return tuple(commands)
    for name, (start, end) in functions.items():
        # A call before the definition, or where it did not run, is that command.
        if name in _BUILTINS or shutil.which(name, path=environment.get("PATH")):
            raise UnreadableError(f"the function `{name}` hides a command")
        if any(
            command.words and command.words[0].value in functions for command in commands[start:end]
        ):
            raise UnreadableError(f"the function `{name}` calls a function")
    left = []
    for command in commands:
        if command.words and command.words[0].value in functions:
            if not command.assignments and not command.redirections:
                continue
            left.append(replace(command, words=()))
        else:
            left.append(command)
    return tuple(left)
