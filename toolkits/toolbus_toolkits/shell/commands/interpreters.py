"""Interpreters of other languages: their code is not read.

Code that stands in the line is asked about, as a person reads it in the question. Code that is
known only when the line runs, and code that comes from another command, is an immune ask.

Source: the manual pages of python 3.11, perl 5.36, ruby 3.1, node 18, PHP 8.2 and lua 5.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from toolbus_toolkits.shell.commands.effects import Effect
from toolbus_toolkits.shell.commands.table import may_be_several
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["SPECIAL", "interpreter", "is_code_option"]

_VERSION = frozenset("--version -V -VV --help -h".split())

_NAMES = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|tsx|ts-node|php|lua|luajit|Rscript|deno|bun|tclsh|guile"
    r"|osascript)"
    r"[0-9.]*"
)
"""Also with a version: `python3.12`."""


def _interpreter(command: SimpleCommand) -> Effect:
    words = command.words[1:]
    name = command.words[0].source
    values = [word.value for word in words]
    if len(words) == 1 and not command.takes_more:
        # `python -v` is another option.
        if values[0] in _VERSION or (values[0] == "-v" and not name.startswith("py")):
            return Effect(read_only=True, reads=())
    # The first word is the program, or begins the options; behind `-c` stands code.
    code = [
        word
        for position, word in enumerate(words)
        if position == 0 or is_code_option(values[position - 1])
    ]
    if any(may_be_several(word) or word.value is None for word in code):
        why = f"`{name}` runs code that is known only when the line runs"
        return Effect(why=why, immune=why)
    if all(value is None or value[:1] == "-" for value in values) and "-m" not in values:
        why = f"`{name}` runs what it reads"
        return Effect(why=why, immune=why)
    if any(is_code_option(value) for value in values):
        return Effect(why=f"`{name}` runs code of a language that is not read")
    return Effect(why=f"`{name}` runs a program")


def is_code_option(text: str | None) -> bool:
    """Whether a word is an option that is followed by code: `-c`, `-e`, `-ne`, `--eval`."""
    if text is None:
        return False
    is_long = text.partition("=")[0] in ("--eval", "--print", "eval")
    return is_long or re.fullmatch(r"-[A-Za-z0-9]*[ceErpR]", text) is not None


def interpreter(name: str) -> Callable[[SimpleCommand], Effect] | None:
    """Return the function for an interpreter of any version; None for any other command."""
    return _interpreter if _NAMES.fullmatch(name) else None


SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "python, python3, perl, ruby, node, php, lua, deno, bun": _interpreter,
}
