"""How a command is described, and how its words are read by that description.

A command is one row, a `Command`: which of its options only read, which take a value, which write
or run others, and what its operands are. A row is an allow-list: an option that is not on it, an
abbreviated long option and a value where none is described make the command unknown, so that a
person is asked. `Command.kinds` has every option of a row by its name, for whatever else reads the
rows.

Words are read as getopt of GNU does: `-no` is `-n -o`, `-k1` is `-k 1`, `--key=1` is `--key 1`,
`--` ends the options, and options may follow operands. A word that bash replaces when the line runs
(`"$x"`, `*`) may become an option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal, TypeVar

from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = [
    "RUNS",
    "SETTINGS",
    "Arguments",
    "Command",
    "Effect",
    "Kind",
    "asking",
    "by_name",
    "by_title",
    "command_of",
    "may_be_several",
    "read_arguments",
    "reads_files",
    "renamed",
    "row_effect",
    "shows",
    "starts",
    "starts_itself",
    "subcommand_effect",
    "takes_words",
    "unknown_command",
    "with_flags",
    "with_subcommands",
]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a command does with its words. Assignments and redirections are judged apart."""

    read_only: bool = False
    """Whether it changes no file, no process and no system elsewhere, and starts no program but
    those of `runs`."""
    why: str = ""
    """Why it is not read-only, as a clause for a person: "`-o` writes a file"."""
    immune: str = ""
    """Why a person decides whatever the rules allow, as a clause; empty if no one has to."""
    reads: tuple[Word, ...] | None = None
    """The files and folders that it reads, as far as they are among its words; None where that is
    not known: then every word counts as one."""
    is_recursive: bool = False
    """Whether it reads the contents of all files below the folders of `reads`."""
    changes: tuple[Word, ...] | None = None
    """The files and folders that it creates, changes or deletes, if it does nothing else and all of
    them are among its words: then `accept_edits` may allow it. None otherwise."""
    deletes: tuple[Word, ...] = ()
    """The files and folders that it deletes, if any; also where `changes` is None."""
    runs: tuple[SimpleCommand, ...] = ()
    """The commands that it starts with its own words, as `env` and `xargs` do. Each is judged as a
    command of the line."""
    same: tuple[SimpleCommand, ...] = ()
    """Commands that rules about denials see beside it: the same one by the name that rules know it
    by, as `npm install` for `npm i`, and those that it runs on another machine, as `ssh` does."""
    reads_lines: bool = False
    """Whether it runs each line that it reads as a command line: a shell without a script."""
    runs_words: bool = False
    """Whether it may run what other words of it name, as a program or a text, here or elsewhere:
    what denies such a command denies this one."""
    is_transparent: bool = False
    """Whether it does nothing but start `runs`, as `time` does: no rule has to cover it itself."""
    directory: Word | None = None
    """The directory that it changes to (`cd`), or that its words are relative to (`git -C`)."""


_Entry = TypeVar("_Entry")
Kind = Literal["flag", "value", "file", "optional", "asks"]
"""What an option is: without a value; with a value; with a value that is a file which is read; with
a value that only follows at once (`--color=auto`, `-i4`); or one that asks."""


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """What is known about one command.

    Options are written as they are given, with spaces between them: `-r -R --recursive`. Raises
    `ValueError` if an option is described twice, or does not begin with `-`.
    """

    name: str
    """Such as `sort`, or with its sub-command `git log`; of several that are the same, with commas:
    `hexdump, hd`."""
    flags: str = ""
    """The options without a value that are understood."""
    _: KW_ONLY
    valued: str = ""
    """Those with a value that is no file."""
    files: str = ""
    """Those whose value is a file that is read."""
    optional: str = ""
    """Those with a value that may be left out, and that only follows at once."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """Those that write or run others, with what they do: `{"-o --output": "writes a file"}`. Where
    the clause begins with `runs`, `names` or `asks`, an allow rule for all that begins so does not
    cover them; see `program_options`."""
    any_option: bool = False
    """Whether no option at all writes, runs others or changes anything, listed here or not. Only
    then may a word that is known when the line runs stand where an option may stand."""
    any_words: bool = False
    """Whether it only reads whatever its words are, as echo; then nothing else is described."""
    operands: Literal["paths", "words"] = "paths"
    """What its operands are: files and folders that it reads, or other words."""
    leading: int = 0
    """How many of the first operands are other words, as the pattern of grep."""
    leading_given_by: str = ""
    """The options that give what `leading` counts, so that all operands are paths: `-e -f`."""
    at_most: int | None = None
    """How many operands it may have."""
    beyond: str = "it has more operands than are known"
    """What a further operand would be, as a clause for a person."""
    permutes: bool = True
    """Whether options may follow operands. False for commands that read a command of their own,
    and for builtins of bash."""
    ends_options: bool = True
    """Whether `--` ends the options."""
    single_dash: bool = False
    """Whether a word that begins with `-` is one option (`-json`), not several letters."""
    digits: bool = False
    """Whether `-5` is an option."""
    plus: str = ""
    """What a word does that begins with `+`, if it asks: `runs a command of less`."""
    recursive: str = ""
    """The options with which it reads all files below a folder; `*` if it always does."""
    effect: Callable[[Arguments], Effect] | None = None
    """What it does with its arguments; None if it reads its operands and changes nothing."""
    kinds: Mapping[str, Kind] = field(init=False)
    """Every option by its name. Made from the others."""
    clauses: Mapping[str, str] = field(init=False)
    """What each option of `asks` does, by its name. Made from the others."""

    def __post_init__(self) -> None:
        kinds: dict[str, Kind] = {}
        clauses = {name: clause for names, clause in self.asks.items() for name in names.split()}
        groups: tuple[tuple[Kind, str], ...] = (
            ("flag", self.flags),
            ("value", self.valued),
            ("file", self.files),
            ("optional", self.optional),
            ("asks", " ".join(self.asks)),
        )
        for kind, names in groups:
            for name in names.split():
                if name in kinds or len(name) < 2 or name[0] not in "-+":
                    raise ValueError(f"{self.name}: {name} is described twice, or is no option")
                kinds[name] = kind
        if self.any_option and (clauses or self.plus):
            raise ValueError(f"{self.name}: an option that asks is not any option")
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "clauses", clauses)


reads_files = partial(Command, any_option=True)
"""Describe a command that reads its operands, and of which no option does more. One that is not
listed is asked about nevertheless: nobody has looked what it does."""
shows = partial(Command, any_option=True, operands="words")
"""Describe one whose operands are no files, and of which no option does more than to show."""
takes_words = partial(Command, operands="words")
"""Describe one whose operands are no files."""
starts = partial(Command, operands="words", permutes=False)
"""Describe one whose first operand ends its options, as of a command that starts another one."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The words of a command, as its row describes them."""

    row: Command
    command: SimpleCommand
    options: tuple[tuple[str, Word | None], ...]
    """Its options in their order, each with its value."""
    operands: tuple[Word, ...]
    """The other words; the last one is unknown where the command takes more."""
    first_operand: int
    """Where the first operand stands among the words of the command, or where it would."""
    fault: str = ""
    """Why the command is not understood, or what an option of `Command.asks` does, as a clause."""
    has_other_option: bool = False
    """Whether it has an option that is not described, or one of `Command.asks`."""

    def has(self, names: str) -> bool:
        """Whether one of some options is given."""
        wanted = names.split()
        return any(name in wanted for name, _ in self.options)

    def values(self, names: str) -> tuple[Word, ...]:
        """Return the values of some options in their order."""
        wanted = names.split()
        return tuple(value for name, value in self.options if name in wanted and value is not None)

    def count_is_known(self) -> bool:
        """Whether no operand may become several, or none, when the line runs."""
        return not any(may_be_several(word) for word in self.operands)

    def paths(self) -> tuple[Word, ...]:
        """Return the files and folders that the command is given."""
        given = tuple(
            value
            for name, value in self.options
            if value is not None and self.row.kinds.get(name) == "file"
        )
        if self.row.operands == "words":
            return given
        leading = 0 if self.has(self.row.leading_given_by) else self.row.leading
        operands = self.operands
        # `grep $x file`: if x is empty, `file` is the pattern; if x is `a b`, then b is a path.
        if not any(may_be_several(word) for word in operands[:leading]):
            operands = operands[leading:]
        if self.is_recursive() and not operands:
            operands = (Word(".", "."),)
        return given + operands

    def is_recursive(self) -> bool:
        """Whether the command reads all files below its folders."""
        return self.row.recursive == "*" or self.has(self.row.recursive)


def by_title(*tables: Mapping[str, _Entry]) -> dict[str, _Entry]:
    """Return the entries of tables by one name each; a key may have several names, with commas.

    Raises `ValueError` if a name has two entries.
    """
    found: dict[str, _Entry] = {}
    for titles, entry in chain.from_iterable(table.items() for table in tables):
        for title in titles.split(", "):
            if title in found:
                raise ValueError(f"{title} is described twice")
            found[title] = entry
    return found


def by_name(*rows: Command) -> dict[str, Command]:
    """Return rows by their names, each with one name."""
    found = by_title(*({row.name: row} for row in rows))
    return {
        name: row if row.name == name else replace(row, name=name) for name, row in found.items()
    }


def with_flags(flags: str, *rows: Command) -> tuple[Command, ...]:
    """Return rows with further flags, which all of them have."""
    return tuple(replace(row, flags=f"{row.flags} {flags}") for row in rows)


def may_be_several(word: Word) -> bool:
    """Whether bash may replace a word by several words, or by none."""
    return word.is_pattern or (word.value is None and word.is_split)


def command_of(command: SimpleCommand, words: tuple[Word, ...]) -> SimpleCommand:
    """Return the command that some words of another one are; it takes more where that one does."""
    source = " ".join(word.source for word in words)
    return SimpleCommand(words, source=source, takes_more=command.takes_more)


def unknown_command(source: str) -> SimpleCommand:
    """Return a command that is known only when it runs, so that every deny rule matches it."""
    return SimpleCommand((Word(source, None, is_split=True),), source=source, takes_more=True)


def asking(
    why: str, *, immune: bool = False, unless: str = ""
) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command that is asked about whatever its words are.

    Args:
        why: What it does, as a clause.
        immune: Whether a person decides whatever the rules allow.
        unless: Options that only show something; one of them has to be the only word.
    """
    shown = frozenset(unless.split())

    def effect(command: SimpleCommand) -> Effect:
        words = command.words[1:]
        if len(words) == 1 and words[0].value in shown and not command.takes_more:
            return Effect(read_only=True, reads=())
        name = command.words[0].source
        return Effect(why=why, immune=f"`{name}` {why}" if immune else "")

    return effect


def row_effect(row: Command, command: SimpleCommand, start: int = 1) -> Effect:
    """Return what a command does by its row.

    Its options begin at the word `start`: behind its name and its sub-command.
    """
    if row.any_words:
        return Effect(read_only=True, reads=())
    arguments = read_arguments(row, command, start)
    if row.effect is None:
        effect = Effect(
            read_only=True, reads=arguments.paths(), is_recursive=arguments.is_recursive()
        )
    else:
        effect = row.effect(arguments)
    if not arguments.fault:
        return effect
    # What it deletes and runs is kept: a deny rule and the roots are looked at in any case. An
    # option that is not understood may run the word behind it, `rg --pre rm`; an operand does not,
    # and `cp "$A" "$B"` is asked about, but no rule against another command denies it.
    return replace(
        effect,
        read_only=False,
        why=arguments.fault,
        reads=None,
        changes=None,
        runs_words=effect.runs_words or arguments.has_other_option,
    )


def read_arguments(row: Command, command: SimpleCommand, start: int = 1) -> Arguments:
    """Read the words of a command by its row; see `row_effect`.

    It reads to the end in any case: after a fault, an option that is not known counts as one
    without a value.
    """
    return _Reader(row, command, start).read()


class _Reader:
    def __init__(self, row: Command, command: SimpleCommand, start: int) -> None:
        self._row = row
        self._command = command
        self._words = enumerate(command.words[start:], start)
        self._options: list[tuple[str, Word | None]] = []
        self._operands: list[Word] = []
        self._first_operand = len(command.words)
        self._fault = ""
        self._has_other_option = False
        self._is_open = True
        """Whether options may still follow."""

    def read(self) -> Arguments:
        row = self._row
        for position, word in self._words:
            if self._is_open and self._read_option(word):
                continue
            if not self._operands:
                self._first_operand = position
            if row.plus and word.known.startswith("+"):
                self._note(f"`{word.source}` {row.plus}")
                self._has_other_option = True
            self._operands.append(word)
            if not row.permutes:
                self._is_open = False
        if self._command.takes_more:
            more = Word("", None, is_split=True)
            if self._is_open:
                self._may_be_option(more)
            self._operands.append(more)
        is_known = not any(may_be_several(word) for word in self._operands)
        if row.at_most is not None and (len(self._operands) > row.at_most or not is_known):
            self._note(row.beyond)
        return Arguments(
            self._row,
            self._command,
            tuple(self._options),
            tuple(self._operands),
            self._first_operand,
            self._fault,
            self._has_other_option,
        )

    def _note(self, fault: str) -> None:
        self._fault = self._fault or fault

    def _may_be_option(self, word: Word) -> None:
        if not self._row.any_option:
            self._note(f"{word.shown} may become an option of `{self._row.name}`")

    def _read_option(self, word: Word) -> bool:
        """Whether a word is an option, or the `--` behind the options."""
        if word.value == "--" and self._row.ends_options:
            self._is_open = False
            return True
        text = word.known
        if word.value is None and (not text or word.is_split):
            self._may_be_option(word)
        elif word.is_pattern and text[:1] in ("*", "?", "[", ""):
            # A file of the folder may be named `-o`.
            self._may_be_option(word)
        if not text.startswith("-") or word.value == "-":
            return False
        if self._row.digits and word.value is not None and text[1:].isdecimal():
            self._options.append((text, None))
        elif text.startswith("--") or self._row.single_dash:
            self._read_long(word, text)
        else:
            self._read_letters(word, text)
        return True

    def _read_long(self, word: Word, text: str) -> None:
        name, equals, attached = text.partition("=")
        if word.value is None and not equals:
            self._may_be_option(word)
            return
        kind = self._row.kinds.get(name)
        if kind == "flag" and equals:
            kind = None
        if kind is None or kind == "asks":
            self._note_kind(name)
            self._options.append((name, None))
        elif equals:
            self._options.append((name, _rest(word, attached)))
        else:
            self._options.append((name, self._next_value(kind)))

    def _read_letters(self, word: Word, text: str) -> None:
        for position, letter in enumerate(text[1:], 2):
            name = f"-{letter}"
            kind = self._row.kinds.get(name)
            if kind is None or kind == "asks":
                self._note_kind(name)
                self._options.append((name, None))
                continue
            is_last = position == len(text) and word.value is not None
            if kind == "flag":
                self._options.append((name, None))
                continue
            value = self._next_value(kind) if is_last else _rest(word, text[position:])
            self._options.append((name, value))
            return
        if word.value is None:
            self._may_be_option(word)

    def _note_kind(self, name: str) -> None:
        self._has_other_option = True
        clause = self._row.clauses.get(name)
        self._note(f"`{name}` {clause or f'of `{self._row.name}` is not known'}")

    def _next_value(self, kind: Kind) -> Word | None:
        if kind in ("flag", "optional"):
            return None
        following = next(self._words, None)
        if following is None:
            if not self._command.takes_more:
                self._note(f"an option of `{self._row.name}` has no value")
            return Word("", None)
        _, word = following
        if may_be_several(word):
            self._may_be_option(word)
        return word


def _rest(word: Word, text: str) -> Word:
    """Return the value behind an option in the same word."""
    if word.value is None:
        return replace(word, prefix=text)
    return replace(word, source=text, value=text)


SETTINGS = "it changes settings of the user"
"""What a sub-command does that a person decides about, whatever the rules allow."""
RUNS = "it runs a command that its words name, or programs"
"""What a sub-command does that a deny rule looks into, also if that is in a container."""
_MAX_TAILS = 8
"""So many words behind an option that is not known are taken as the sub-command."""


def with_subcommands(
    top: Command, rows: Iterable[Command], whys: Mapping[str, str]
) -> Callable[[SimpleCommand], Effect]:
    """Return the function for a command with sub-commands.

    Args:
        top: The command itself, with the options before its sub-command.
        rows: The sub-commands that are known to only read in some form: `docker compose ps`.
        whys: What others do, as a clause, by `docker run`.
    """
    known = by_name(*rows)
    clauses = by_title(whys)

    def effect(command: SimpleCommand) -> Effect:
        arguments = read_arguments(top, command)
        if arguments.first_operand > 1:
            return starts_itself(arguments)
        return subcommand_effect(command, top.name, known, clauses)

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
    runs = [command_of(command, (command.words[0], *command.words[i:])) for i in begins]
    if begins[0] >= len(command.words) or len(begins) > _MAX_TAILS:
        runs.append(unknown_command(command.source))
    return Effect(
        read_only=not fault, why=fault, reads=(), runs=tuple(runs), is_transparent=not fault
    )


def renamed(command: SimpleCommand, count: int, text: str) -> tuple[SimpleCommand, ...]:
    """Return a command with the words of a text for its first `count` ones, for `Effect.same`."""
    words = (*(Word(word, word) for word in text.split()), *command.words[count:])
    return (command_of(command, words),)


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
    for word in command.words[1:4]:  # `docker container exec` has two behind its name
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
