"""Which patterns of rules a command may match: by its words, and by what these may run.

A command that is known to run the commands of its words has them in `Effect.runs` and
`Effect.same`. Of others some words may be lines, such as the value of `core.pager=`. They are
looked at here, for rules that deny or ask alone; what cannot be read of them counts as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from toolbus.permissions.plain import MAX_PARTS
from toolbus_toolkits.shell.commands import ROWS, SPECIAL, Effect, command_name, effect_of
from toolbus_toolkits.shell.commands.scripts import interpreter
from toolbus_toolkits.shell.commands.table import command_of, unknown_command
from toolbus_toolkits.shell.commands.wrappers import run_text
from toolbus_toolkits.shell.reading import SimpleCommand, Word, read_line
from toolbus_toolkits.shell.rules import is_text, matches_any

__all__ = [
    "MAX_DEPTH",
    "LineCommand",
    "all_commands",
    "commands_inside",
    "matching",
    "reads_input",
]

MAX_DEPTH = 8
"""How deep commands may start others: `sudo env nice bash -c '...'` is four."""
_MAX_INSIDE_CHARS = 128 * 1024
"""How long the further commands may be that one command may run: some 0.3 s to read."""
_RUN_BY_PROGRAMS = re.compile(
    r".*(?:PAGER|EDITOR|VISUAL|OPEN|LESSCLOSE|SSH|RSH|SHELL|COMMAND|BROWSER|ASKPASS|EXTERNAL_DIFF"
    r"|WRAPPER|GIT_CONFIG_VALUE_[0-9]+)",
    re.DOTALL,
)
"""Variables whose value a program runs, as git runs `GIT_SSH_COMMAND` and less `LESSOPEN`."""
_TAKE_TEXT = frozenset(
    "psql mysql mariadb sqlite3 mongosh redis-cli sed awk gawk mawk nawk find fd curl".split()
)
"""Commands whose words are patterns, or code of a language that is not read."""
_NO_PROGRAMS = frozenset("exec eval source . builtin trap".split())
"""Names that are commands of a shell alone: the `exec` of `docker exec` is none."""
_BEFORE_LINE = re.compile(
    r"\A[\s+!]*(?:\|[\s|-]*)?(?:(?:exec|system|shell)[:=])?[\s!|]*", re.IGNORECASE
)
"""What stands before a line in a word: `+!rm x` for less, `exec=rm x` for tar, `EXEC:rm x`."""
_MARK = re.compile(r"[^\s=|]*[=|]")
_SPACE = re.compile(r"\s")
_FORGE = frozenset(
    "api gist issue label mr pr release repo run search secret variable workflow".split()
)
_TEXT_GROUPS = {
    "gh": _FORGE,
    "glab": _FORGE,
    "git": frozenset(
        "add branch checkout clone merge mv notes restore rm show stash switch tag worktree".split()
    ),
}
"""Sub-commands that run no words, apart from the options that are described; `gh alias` does."""


@dataclass(frozen=True, slots=True)
class LineCommand:
    """A command of a line, or one that another of its commands starts."""

    command: SimpleCommand
    effect: Effect
    input: str | None
    """What it reads, as far as the line gives it; empty for the input of the line itself, and None
    where it is known only when the line runs."""


def all_commands(
    commands: Sequence[SimpleCommand], outer: str | None = ""
) -> Iterator[LineCommand | None]:
    """Yield each command of a line, and those that it starts; None at a limit.

    What the line itself reads is `outer`.
    """
    left = [(command, outer, 0) for command in reversed(commands)]
    count = 0
    while left:
        command, given, depth = left.pop()
        count += 1
        if count > MAX_PARTS or depth > MAX_DEPTH:
            yield None
            return
        effect = effect_of(command) if command.words else Effect(read_only=True, reads=())
        found = LineCommand(command, effect, _input_of(command, given))
        yield found
        started = (*effect.runs, *_lines_that_it_reads(found))
        left += ((inner, found.input, depth + 1) for inner in reversed(started))


def _input_of(command: SimpleCommand, outer: str | None) -> str | None:
    given = [redirection for redirection in command.redirections if redirection.is_input]
    if not given:
        return None if command.is_piped else outer
    if len(given) == 1 and (text := given[0].text) is not None:
        return text.value
    if all(entry.target and entry.target.value == "/dev/null" for entry in given):
        return ""
    return None


def _lines_that_it_reads(found: LineCommand) -> tuple[SimpleCommand, ...]:
    """Return the commands that a shell without a script reads, and runs."""
    effect = found.effect
    # Of `nsenter -m wc` it is `wc` that reads.
    if (
        not effect.reads_lines
        or found.input == ""
        or any(_is_described(started.words[0]) for started in effect.runs if started.words)
    ):
        return ()
    if found.input is None:
        return (unknown_command(found.command.source),)
    return run_text(found.input, found.command.source)[0]


def _is_described(word: Word) -> bool:
    """Whether a word is the name of a command that is described."""
    name = command_name(SimpleCommand((word,)))
    return name is not None and (name in ROWS or name in SPECIAL)


def reads_input(found: LineCommand) -> bool:
    """Whether a command runs what the line itself gets as input: `bash`, `docker exec -i c sh`."""
    return any(
        other.effect.reads_lines and other.input == "" for other in (found, *commands_inside(found))
    )


def matching(
    patterns: Sequence[str], found: LineCommand, inside: Sequence[LineCommand]
) -> Iterator[str]:
    """Yield the patterns that a command, or one of its `commands_inside`, may match.

    Those of the commands in `runs` are not among them.
    """
    command = found.command
    effect = found.effect
    first_operand = 0
    if len(effect.runs) == 1 and effect.runs[0].words[:1] == command.words[:1]:
        # Where the sub-command stands: `git --no-pager stash push` is not a `git push`.
        first_operand = len(command.words) - len(effect.runs[0].words) + 1
    # What is not known before it runs, as `eval "$X"`, may run anything too. Code of another
    # language is not seen, wherever it stands: `python3 - <<E` is as `python3 -c`.
    unknown = bool(effect.immune) and not _runs_code(command)
    everywhere = unknown or (effect.runs_words and not _runs_code(command))
    for pattern in patterns:
        may_match = matches_any(
            pattern, command, everywhere=everywhere, unknown=unknown, first_operand=first_operand
        )
        if may_match or any(
            matches_any(pattern, other.command, everywhere=other.effect.runs_words)
            for other in inside
        ):
            yield pattern


def commands_inside(found: LineCommand) -> Iterator[LineCommand]:
    """Yield the commands that a command may run, beside those of `runs`.

    Beyond a limit of their length one that is not known stands for the rest.
    """
    left = _MAX_INSIDE_CHARS
    for other in _inside(found, 0):
        yield other
        left -= len(other.command.source)
        if left < 0:
            yield _unknown(found.command)
            return


def _inside(found: LineCommand, depth: int) -> Iterator[LineCommand]:
    if depth > MAX_DEPTH:
        return
    same = (
        other or _unknown(command)
        for command in found.effect.same
        for other in all_commands((command,), found.input)
    )
    for other in chain(same, _in_tails(found), _in_texts(found)):
        yield other
        yield from _inside(other, depth + 1)


def _unknown(command: SimpleCommand) -> LineCommand:
    unknown = unknown_command(command.source)
    return LineCommand(unknown, effect_of(unknown), None)


def _in_tails(found: LineCommand) -> Iterator[LineCommand]:
    """Yield what the words of a command start, from one on that names a command: `... sudo rm x`.

    By its own words that tail is compared in `matches_any`.
    """
    command = found.command
    if not found.effect.runs_words or _runs_code(command):
        return
    begins = [
        at
        for at, word in enumerate(command.words)
        if at and _is_described(word) and word.value not in _NO_PROGRAMS
    ]
    for begin in begins[:MAX_DEPTH]:
        tail = command_of(command, command.words[begin:])
        has_unknown = any(word.value is None for word in tail.words)
        for other in all_commands((tail,), found.input):
            # Without an input or a word that is not known, as in `docker exec c sh -c "$X"`,
            # `tool parallel` is no question of what it runs.
            is_asked = has_unknown or (other is not None and other.input is None)
            if other is not None and (_is_known(other.command) or is_asked):
                yield replace(other, effect=replace(other.effect, runs_words=False))
    if not begins and found.input and _is_described(command.words[0]):
        yield from _in_text(found.input)  # the image of `docker run -i image` may be a shell


def _in_texts(found: LineCommand) -> Iterator[LineCommand]:
    """Yield the commands of texts that programs may run, by their settings and options."""
    command = found.command
    effect = found.effect
    texts = [
        assignment.value.known
        for assignment in command.assignments
        if _RUN_BY_PROGRAMS.fullmatch(assignment.name)
    ]
    if not (effect.read_only or effect.changes is not None or _takes_text(command, effect)):
        for at, word in enumerate(command.words[1:], 1):
            if _SPACE.search(word.known) and not is_text(command.words, at):
                texts += (word.known, *_parts_of(word.known))
    for text in dict.fromkeys(texts):
        yield from _in_text(text)


def _parts_of(text: str) -> Iterator[str]:
    """Yield what follows each mark before which no blank stands: `--to=exec=rm x`, `A=|rm x`."""
    for _ in range(MAX_DEPTH):
        match = _MARK.match(text)
        if match is None:
            return
        text = text[match.end() :]
        yield text


def _takes_text(command: SimpleCommand, effect: Effect) -> bool:
    """Whether the words of a command are known to be texts, code or names of files."""
    name = command_name(command) or ""
    if name in _TAKE_TEXT or _runs_code(command):
        return True
    if groups := _TEXT_GROUPS.get(name):
        return any(word.value in groups for word in command.words[1:2])
    return name in ROWS and not effect.runs_words


def _runs_code(command: SimpleCommand) -> bool:
    """Whether a command runs code of another language, such as `python` and `.venv/bin/python`."""
    return interpreter(command.base_name) is not None


def _in_text(text: str) -> Iterator[LineCommand]:
    """Yield the commands of a text that may be a line; what cannot be read of it is left out."""
    line = _BEFORE_LINE.sub("", text, count=1)
    for other in all_commands(read_line(line, {}).commands):
        if other is not None and _is_known(other.command):
            yield replace(other, effect=replace(other.effect, runs_words=False))


def _is_known(command: SimpleCommand) -> bool:
    """Whether a command of a text has a name; in `-k 'rm or x'` the second word is none."""
    if not command.words:
        return True
    name = command.words[0].value
    return name is not None and not _SPACE.search(name)
