"""sed and awk, whose scripts are read as far as that is safe, and interpreters of other languages.

The readers are allow-lists. What is not understood asks, and so does a script that is known only
when the line runs. Code of another language is not read: where it stands in the line it is asked
about, as a person reads it in the question. Code that is known only when the line runs, and code
that comes from another command, is an immune ask.

Source: sed(1) and its manual, GNU sed 4.9; gawk(1), GNU Awk 5.2; mawk(1), mawk 1.3.4; the manual
pages of python 3.11, perl 5.36, ruby 3.1, node 18, PHP 8.2 and lua 5.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    may_be_several,
    unknown_command,
)
from toolbus_toolkits.shell.reading import SimpleCommand

__all__ = ["ROWS", "SPECIAL", "awk_fault", "interpreter", "is_code_option", "sed_fault"]

_MAX_CHARS = 8_000
"""A longer script is not read: it would take too long, and no person reads it in a question."""

_SED_ADDRESS = re.compile(r"[0-9]+(?:~[0-9]+)?|\$|[+~][0-9]+")
_SED_BLANKS = re.compile(r"[ \t]*")
_SED_BETWEEN = re.compile(r"(?:[ \t\n;]|#[^\n]*)*")
# A backslash before the `]` would be another letter for some seds, and an escape for others.
_SED_BRACKETS = re.compile(r"\[\^?\]?(?:\[:[a-z]+:\]|\\[^\]\n]|[^\[\]\\\n])*\]")
_SED_HARM_OR_END = re.compile(r"[weWrR\n]")
_SED_FLAGS = re.compile(r"[gpIiMm0-9]*")
_SED_END = re.compile(r"[ \t]*(?:[;\n]|(?=[}#])|\Z)")
_SED_PLAIN = frozenset("=dDgGhHnNpPxzF")
_SED_LABEL = re.compile(r"[ \t]*[A-Za-z0-9_]*")
_SED_TEXT = re.compile(r"[ \t]*(?:\\\n)?(?:[^\\\n]|\\.)(?:[^\\\n]|\\.|\\\n)*(?:\n|\Z)")


class _SedError(Exception):
    """A script of sed that is not understood; its argument is the clause for a person."""


class _Sed:
    """Reads a script of sed. No part but the text of a, i and c goes over the end of a line."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0

    def read(self) -> None:
        depth = 0
        while True:
            self._skip(_SED_BETWEEN)
            if self._position >= len(self._script):
                break
            if self._peek() == "}":
                self._position += 1
                depth -= 1
                continue
            self._read_addresses()
            if self._peek() == "{":
                self._position += 1
                depth += 1
                continue
            self._read_command()
        if depth != 0:
            raise _SedError("its script is not understood")

    def _peek(self) -> str:
        return self._script[self._position : self._position + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._script, self._position)
        if match is None:
            raise _SedError("its script is not understood")
        self._position = match.end()
        return match[0]

    def _read_addresses(self) -> None:
        if self._read_address():
            self._skip(_SED_BLANKS)
            if self._peek() == ",":
                self._position += 1
                self._skip(_SED_BLANKS)
                if not self._read_address():
                    raise _SedError("its script is not understood")
        self._skip(_SED_BLANKS)
        while self._peek() == "!":
            self._position += 1
            self._skip(_SED_BLANKS)

    def _read_address(self) -> bool:
        mark = self._peek()
        if mark in ("/", "\\"):
            if mark == "\\":
                self._position += 1
            self._read_delimited(1)
            self._skip(re.compile("[IM]*"))
            return True
        match = _SED_ADDRESS.match(self._script, self._position)
        if match is None:
            return False
        self._position = match.end()
        return True

    def _read_delimited(self, parts: int, *, is_pattern: bool = True) -> None:
        """Read the parts of `/re/` or `s/re/text/`, up to the last delimiter."""
        delimiter = self._peek()
        if not delimiter or delimiter.isalnum() or delimiter in "\\\n ;{}":
            raise _SedError("its script is not understood")
        self._position += 1
        for part in range(parts):
            while self._peek() != delimiter:
                if self._peek() in ("", "\n"):
                    raise _SedError("its script is not understood")
                if self._peek() == "[" and part == 0 and is_pattern:
                    self._read_brackets(delimiter)
                else:
                    self._position += 2 if self._peek() == "\\" else 1
                if self._script[self._position - 1 : self._position] == "\n":
                    raise _SedError("its script is not understood")
            self._position += 1

    def _read_brackets(self, delimiter: str) -> None:
        match = _SED_BRACKETS.match(self._script, self._position)
        if match is None:
            raise _SedError("its script is not understood")
        self._position = match.end()
        # GNU sed 4.9 takes a delimiter inside of brackets as a letter, others end the part there:
        # then what follows must be harmless in both readings.
        if delimiter in match[0]:
            found = _SED_HARM_OR_END.search(self._script, match.start())
            if found is not None and found[0] != "\n":
                raise _SedError("its script is not understood")

    def _read_command(self) -> None:
        name = self._peek()
        self._position += 1
        if name == "s":
            self._read_delimited(2)
            self._skip(_SED_FLAGS)
            if self._peek() in ("e", "w"):
                self._refuse(self._peek())
        elif name == "y":
            self._read_delimited(2, is_pattern=False)
        elif name in ("a", "i", "c"):
            self._skip(_SED_TEXT)
            return
        elif name in ("b", "t", "T", ":"):
            self._skip(_SED_LABEL)
        elif name in ("q", "Q", "l"):
            self._skip(re.compile("[ \t]*[0-9]*"))
        elif name not in _SED_PLAIN:
            self._refuse(name)
        self._skip(_SED_END)

    def _refuse(self, name: str) -> None:
        clauses = {"w": "writes a file", "W": "writes a file", "e": "runs a command"}
        clauses |= {"r": "reads a file", "R": "reads a file"}
        if name in clauses:
            raise _SedError(f"`{name}` of its script {clauses[name]}")
        raise _SedError("its script is not understood")


def sed_fault(script: str) -> str:
    """Return why a script of sed does more than to change its output, or an empty text."""
    if len(script) > _MAX_CHARS:
        return "its script is too long to be read"
    try:
        _Sed(script).read()
    except _SedError as error:
        return str(error)
    return ""


_SED_SUFFIX = re.compile(r"[A-Za-z0-9._~-]*")


def _sed(arguments: Arguments) -> Effect:
    scripts = arguments.values("-e --expression")
    files = arguments.operands
    if not arguments.has("-e --expression -f --file"):
        scripts = files[:1]
        files = files[1:]
    if any(script.value is None or script.is_pattern for script in scripts):
        fault = "its script is known only when the line runs"
    elif arguments.has("-f --file"):
        fault = "it runs a script of a file"
    else:
        fault = sed_fault("\n".join(script.known for script in scripts))
    if "runs a command" in fault:
        return Effect(why=fault, runs=(unknown_command(arguments.command.source),))
    if fault:
        return Effect(why=fault)
    if not arguments.has("-i --in-place"):
        return Effect(read_only=True, reads=files)
    # `-i.orig` keeps the file as it was under another name.
    changes = list(files)
    for suffix in arguments.values("-i --in-place")[-1:]:
        if suffix.value is None or not _SED_SUFFIX.fullmatch(suffix.value):
            return Effect(why="`-i` names further files")
        for file in files:
            known = None if file.value is None else file.value + suffix.value
            changes.append(replace(file, value=known))
    return Effect(why="`-i` changes its files", reads=files, changes=tuple(changes))


# A string ends on its line; a comment and a backslash outside of strings are not understood.
_AWK_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_AWK_WORDS = re.compile(
    r"\b(?:system|getline|close|fflush|ARGV|ARGC|ARGIND|ENVIRON|PROCINFO|SYMTAB|FUNCTAB|function"
    r"|func|include|load|eval|extension|namespace)\b"
)
_AWK_PRINT = re.compile(r"\b(?:print|printf)\b")


def awk_fault(program: str) -> str:
    """Return why a program of awk may do more than to print, or an empty text."""
    if len(program) > _MAX_CHARS:
        return "its program is too long to be read"
    # Without a slash, what is a string is certain. With one, it depends on whether the slash
    # divides or begins a regular expression: then no text is skipped.
    bare = _AWK_STRING.sub('""', program)
    has_slash = "/" in bare
    text = program if has_slash else bare
    found = _AWK_WORDS.search(text)
    if found is not None:
        return f"`{found[0]}` of its program may run a command or read other files"
    if "@" in text or "`" in text or "\\\n" in text or "\0" in text:
        return "its program is not understood"
    if not has_slash and ("#" in text or "\\" in text or '"' in text.replace('""', "")):
        return "its program is not understood"
    if "|" in text.replace("||", ""):
        return "a pipe of its program may run a command"
    if has_slash and ">" in text:
        return "`>` of its program may write a file"
    for statement in re.split("[;{}]", text):
        printing = _AWK_PRINT.search(statement)
        if printing is not None and ">" in statement[printing.end() :]:
            return "`>` of its program may write a file"
    return ""


def _awk(arguments: Arguments) -> Effect:
    if arguments.has("--version -V") or not arguments.operands:
        return Effect(read_only=True, reads=())
    program = arguments.operands[0]
    if program.value is None or program.is_pattern:
        return Effect(why="its program is known only when the line runs")
    if fault := awk_fault(program.value):
        return Effect(why=fault)
    return Effect(read_only=True, reads=arguments.operands[1:])


ROWS: tuple[Command, ...] = (
    Command(
        "sed",
        "-n --quiet --silent --debug --posix -E -r --regexp-extended -s --separate --sandbox -u"
        " --unbuffered -z --null-data --help --version",
        valued="-e --expression -l --line-length",
        files="-f --file",
        optional="-i --in-place",
        asks={"--follow-symlinks": "changes files that links lead to"},
        effect=_sed,
    ),
    Command(
        "awk, gawk, mawk, nawk",
        "--version -V",
        valued="-F -v --field-separator --assign",
        asks={
            "-f --file -E --exec": "runs a program of a file",
            "-i --include -l --load": "loads code",
            "-o --pretty-print -d --dump-variables -p --profile": "writes a file",
            "-W": "sets an option of the program",
        },
        permutes=False,
        effect=_awk,
    ),
)


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
