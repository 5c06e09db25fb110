"""Builtins of bash that evaluate their arguments, or change how the rest of the line is read.

`read 'a[$(rm x)]'` runs `rm x`, and no parser shows it: the name of a variable may have a
subscript, subscripts are arithmetic, and arithmetic expands. So these builtins are understood in
the forms that are listed here alone. Each was tried with bash 5.2. Functions that a line defines
are here too: none may hide a command.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from toolbus_toolkits.shell.reading.parts import SimpleCommand, UnreadableError, Word

__all__ = [
    "assigned_names",
    "evaluation_fault",
    "is_plain_condition",
    "is_special_name",
    "without_calls",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_OR_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\+?=.*)?", re.DOTALL)

# An assignment to these evaluates its value as arithmetic, expands it later, or changes how bash
# reads and looks up. IFS is not among them: see `read_line`.
_SPECIAL_NAMES = frozenset(
    "RANDOM SRANDOM OPTIND OPTERR HISTCMD SECONDS LINENO DIRSTACK GROUPS FUNCNAME FUNCNEST"
    " PS0 PS1 PS2 PS3 PS4 PROMPT_COMMAND POSIXLY_CORRECT SHELLOPTS ENV CDPATH MAPFILE COPROC"
    " EPOCHSECONDS EPOCHREALTIME GLOBIGNORE EXECIGNORE TIMEFORMAT UID EUID PPID".split()
)
_SPECIAL_PREFIXES = ("BASH", "COMP", "READLINE_")

# These always evaluate, or run later what they are given.
_EVALUATING = frozenset(
    "declare typeset let getopts mapfile readarray compgen complete compopt bind fc history"
    " coproc".split()
)
_SET_OPTIONS = re.compile(r"[-+][euxvC]*o?")
_SET_NAMES = frozenset("errexit nounset xtrace verbose noclobber pipefail".split())
_SHOPT_WORDS = frozenset("nullglob globstar dotglob failglob nocaseglob -s -u -q -p".split())
_TEST_UNARY = re.compile(r"-[abcdefghkprstuwxzGLNOSn]")
_TEST_BINARY = frozenset("= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef".split())
_ARITHMETIC = frozenset("-eq -ne -lt -le -gt -ge".split())
_NUMBER = re.compile(r"-?[0-9]+|\$[?#]|\$\{#[A-Za-z_][A-Za-z0-9_]*\}")
_READ_PLAIN_OPTIONS = re.compile(r"-[rse]+")
_READ_OPTIONS_WITH_VALUE = frozenset("-d -n -N -p -t -u".split())


def is_special_name(name: str) -> bool:
    """Whether an assignment to a variable does more than to keep its value."""
    return name in _SPECIAL_NAMES or name.startswith(_SPECIAL_PREFIXES)


def _builtin(command: SimpleCommand) -> SimpleCommand:
    """Return the command without the words that only say that it is a builtin."""
    words = command.words
    while words and words[0].value in {"command", "builtin"}:
        words = words[1:]
        while words and words[0].value in {"-p", "--"}:
            words = words[1:]
    return replace(command, words=words)


def _has_plain_names(words: Iterable[Word]) -> bool:
    return all(_NAME.fullmatch(word.source) for word in words)


def _is_plain_declaration(arguments: Sequence[Word]) -> bool:
    words = [word for word in arguments if word.source not in {"-p", "-x"}]
    return all(_NAME_OR_ASSIGNMENT.fullmatch(word.source) for word in words)


def _is_plain_read(arguments: Sequence[Word]) -> bool:
    words = list(arguments)
    while words and words[0].source.startswith("-"):
        option = words.pop(0).source
        if option in _READ_OPTIONS_WITH_VALUE:
            if not words or words.pop(0).value is None:
                return False
        elif not _READ_PLAIN_OPTIONS.fullmatch(option):
            return False
    return _has_plain_names(words)


def _is_plain_printf(arguments: Sequence[Word]) -> bool:
    if not arguments:
        return True
    first = arguments[0]
    if first.value is not None:
        return not first.value.startswith("-v")
    return first.prefix not in {"", "-"} and not first.prefix.startswith("-v")


def _is_plain_test(arguments: Sequence[Word]) -> bool:
    """Whether no argument may be `-v` or `-R`. bash decides by the number of the arguments."""
    words = list(arguments)
    if any(word.value is None and word.is_split for word in words):
        return False
    while words and words[0].value == "!":
        words.pop(0)
    values = [word.value for word in words]
    if len(values) <= 1:
        return True
    if len(values) == 2:
        return values[0] is not None and _TEST_UNARY.fullmatch(values[0]) is not None
    if len(values) == 3:
        return values[1] in _TEST_BINARY
    # Longer ones are joined by -a and -o: then any of them may be an operator.
    return all(value is not None and value not in {"-v", "-R"} for value in values)


def is_plain_condition(words: Sequence[Word]) -> bool:
    """Whether one test of `[[` is known to evaluate nothing: `-eq` and its like do."""
    words = list(words)
    while words and words[0].source == "!":
        words.pop(0)
    if len(words) == 1:
        return True
    if len(words) == 2:
        # Only unquoted operators count.
        return _TEST_UNARY.fullmatch(words[0].source) is not None
    if len(words) != 3 or words[1].source not in _TEST_BINARY:
        return False
    if words[1].source in _ARITHMETIC:
        return all(_NUMBER.fullmatch(word.source) for word in (words[0], words[2]))
    return True


def _is_plain_set(arguments: Sequence[Word]) -> bool:
    words = list(arguments)
    while words:
        option = words.pop(0).value
        if option in {"-", "--"}:
            # The rest are positional parameters, which are never known.
            return True
        if option is None or not _SET_OPTIONS.fullmatch(option):
            return False
        if option.endswith("o") and words and words.pop(0).value not in _SET_NAMES:
            return False
    return True


_PLAIN_FORMS: dict[str, Callable[[Sequence[Word]], bool]] = {
    "export": _is_plain_declaration,
    "readonly": _is_plain_declaration,
    "local": _is_plain_declaration,
    "unset": lambda arguments: _has_plain_names(
        word for word in arguments if word.source not in {"-v", "-f"}
    ),
    "read": _is_plain_read,
    "printf": _is_plain_printf,
    "test": _is_plain_test,
    "set": _is_plain_set,
    "shopt": lambda arguments: all(word.value in _SHOPT_WORDS for word in arguments),
}


def evaluation_fault(command: SimpleCommand) -> str:
    """Return why what a command evaluates cannot be read, or an empty text."""
    builtin = _builtin(command)
    words = builtin.words
    name = builtin.value(0)
    if name is None:
        return ""
    if name in _EVALUATING:
        return f"`{name}` may evaluate its arguments"
    if name == "[":
        if words[-1].value != "]" or not _is_plain_test(words[1:-1]):
            return "`[` may evaluate its arguments"
        return ""
    is_plain = _PLAIN_FORMS.get(name)
    if is_plain is not None and not is_plain(words[1:]):
        return f"`{name}` may evaluate its arguments, or change how the line is read"
    special = next((found for found in assigned_names(command) if is_special_name(found)), None)
    if special is not None:
        return f"`{special}` changes how bash reads the line"
    return ""


def assigned_names(command: SimpleCommand) -> list[str]:
    """Return the variables that a command sets; `*` stands for any."""
    names = [assignment.name for assignment in command.assignments]
    builtin = _builtin(command)
    name = builtin.value(0)
    if name in {"export", "readonly", "local", "unset", "read"}:
        matches = (_NAME_OR_ASSIGNMENT.fullmatch(word.source) for word in builtin.words[1:])
        names += [match[1] for match in matches if match is not None]
        if name == "read":
            names.append("REPLY")
    if name in {"cd", "pushd", "popd"}:
        names += ["PWD", "OLDPWD"]
    if name in {"source", ".", "eval"}:
        names.append("*")
    if "IFS" in names and name != "read":
        # Another value would split other values.
        names.append("*")
    return names


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

    Of each function it is given where the commands of its body are. Raises `UnreadableError` if one
    hides a command, or calls a function.
    """
    if not functions:
        return tuple(commands)
    for name, (start, end) in functions.items():
        # A call before the definition, or where it did not run, is that command.
        if name in _BUILTINS or shutil.which(name, path=environment.get("PATH")):
            raise UnreadableError(f"the function `{name}` hides a command")
        if any(command.value(0) in functions for command in commands[start:end]):
            raise UnreadableError(f"the function `{name}` calls a function")
    left = []
    for command in commands:
        if command.value(0) in functions:
            if not command.assignments and not command.redirections:
                continue
            left.append(replace(command, words=()))
        else:
            left.append(command)
    return tuple(left)
