r"""Patterns of rules over the simple commands of a line, and the rules that a person may add.

A pattern is compared with the text of one command: its words with single spaces between them,
without quotes, and its name without the folders of the system.

| pattern | covers |
|---|---|
| `git status:*` | `git status`, and what begins with these words |
| `npm run *` | the same: a `*` as the last word of several may stand for nothing |
| `docker * --rm` | `*` stands for any characters, the rest for itself |
| `make test` | exactly this text |

`\*` and `\\` are the characters; quotes keep spaces together, as those of bash do. A command that
writes to a file (`echo x > log`) is two: the second one is `> log`.

A pattern is read in two ways. An allow rule has to be sure (`covers`): what is known only when the
line runs is covered by a `*` alone. For a deny or an ask it suffices that the command may be meant
(`matches_any`): unknown words match anything, a program counts by its name in whatever folder it
is, options before or between the words of the pattern count nothing, and the pattern's own options
count wherever they stand, `-rf` also as `-fr` and `-f -r`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from toolbus_toolkits.shell.commands import (
    files,
    names_in,
    reaches_further,
    scripts,
    without_standard_folder,
    wrappers,
)
from toolbus_toolkits.shell.commands.scripts import interpreter, is_code_option
from toolbus_toolkits.shell.reading import Assignment, SimpleCommand, Word

__all__ = ["covers", "exact_line", "is_text", "matches_any", "suggestion"]

_HOLE = "\0"
"""What is known only when the line runs; no word and no pattern has a NUL."""
_INNER_SPACE = "\x1f"
"""A space inside of a word, where it must not count as one between words."""
_SPACE = re.compile(r"\s")
_SPACES = re.compile(r"\s+")  # U+001F is one of them
_MAY_BE_MORE = re.compile(r"[\s\0]")
"""A word with one of these may be a command with its words, or more than is known."""
_TEXT_OPTION = re.compile(
    r"-[A-Za-z]*m|-k|-d|--(?:[a-z-]*(?:message|title|body|description|notes?|subject|comment|reason"
    r"|prompt|summary|name-?pattern)|grep|author|trailer|exclude|include|data(?:-[a-z]+)?)",
    re.IGNORECASE,
)
"""Options whose value is a text for people, or a pattern."""
_TESTERS = frozenset("ava jest mocha playwright test vitest".split())
"""Programs of which `-t` and `-g` are followed by the name of a test."""
_MAX_BEGINS = 40
"""So many words that have the name of a pattern are compared with it, each with all that follow;
with more of them, it matches. `x rm rm ...` took 40 s where it has 3,000 of them."""
_MAX_EXACT_CHARS = 1_000
"""The longest text that is suggested as it is: a person has to judge it."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    chunks: tuple[str, ...]
    """Its text between its wildcards; one chunk is a text without any."""
    may_end: bool
    """Whether further words may follow (`:*` and ` *` at the end, which are not in `chunks`)."""
    name: str
    """The name of the program without its folder; "" if a wildcard is in it."""


@lru_cache(maxsize=512)  # the rules of an operator: the same for each line
def _parsed(pattern: str) -> _Pattern:
    tokens = list(_tokens(pattern.replace(_HOLE, "\ufffd").strip()))
    may_end = len(tokens) > 2 and tokens[-1] is None and tokens[-2] in (" ", ":")
    if may_end:
        del tokens[-2:]
    chunks = [""]
    for token in tokens:
        if token is None:
            chunks.append("")
        else:
            chunks[-1] += token
    first, space, _ = chunks[0].partition(" ")
    is_whole = bool(space) or len(chunks) == 1
    return _Pattern(tuple(chunks), may_end, first.rpartition("/")[2] if is_whole else "")


def _tokens(pattern: str) -> Iterator[str | None]:
    """Yield the characters of a pattern as they are compared; None for a wildcard."""
    at = 0
    quote = ""
    last: str | None = " "
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "\\" and at < len(pattern):
            last = pattern[at].replace(" ", _INNER_SPACE)
            at += 1
        elif character == quote:
            quote = ""
            continue
        elif not quote and character in "'\"" and character in pattern[at:]:
            quote = character
            continue
        elif character == "*" and not quote:
            last = None
        elif character.isspace():
            if not quote and last == " ":
                continue
            last = _INNER_SPACE if quote else " "
        else:
            last = character
        yield last


def covers(pattern: str, command: SimpleCommand) -> bool:
    """Whether a pattern covers a command for sure: for rules that allow it.

    Assignments before the command are words of it here, since they change what it does.
    """
    found = _parsed(pattern)
    words = [_assignment_text(assignment) for assignment in command.assignments]
    if command.words:
        words.append(without_standard_folder(_text_of(command.words[0])))
    words = [_SPACE.sub(_INNER_SPACE, word) for word in words]
    if found.name and (not words or words[0].rpartition("/")[2] != found.name):
        return False
    words += (_SPACE.sub(_INNER_SPACE, _text_of(word)) for word in command.words[1:])
    name, space, rest = found.chunks[0].partition(" ")
    chunks = (f"{without_standard_folder(name)}{space}{rest}", *found.chunks[1:])
    text = " ".join(words)
    if command.takes_more:
        text += f" {_HOLE}"
    if _is_glob(chunks, text):
        return True
    if not found.may_end or not _is_glob((*_more(chunks), ""), text):
        return False
    # `git fetch:*` does not cover `git fetch --upload-pack=./x`: what runs another program, or
    # works in another place, is covered where the pattern itself has that option.
    return not reaches_further(command, " ".join(chunks).split())


def matches_any(
    pattern: str,
    command: SimpleCommand,
    *,
    everywhere: bool = False,
    unknown: bool = False,
    first_operand: int = 0,
) -> bool:
    """Whether a pattern matches what a command may be: for rules that deny it or ask about it.

    Args:
        pattern: The pattern.
        command: The command.
        everywhere: Whether it may run any of its words as a command, as one that is not known may.
        unknown: Whether that holds for words that are known only when the line runs too: for `eval
            "$X"`, and not for `./run.sh "$X"`.
        first_operand: Where its sub-command stands, if that is known; the word before it is then no
            option whose value it would be.
    """
    if not command.words:
        return False
    found = _parsed(pattern)
    if _may_be(found, command.words, command.takes_more, first_operand):
        return True
    if command.assignments and (not found.name or "=" in found.name):
        assigned = [Word("", text) for text in map(_assignment_text, command.assignments)]
        if _may_be(found, (*assigned, *command.words), command.takes_more):
            return True
    # What begins with a wildcard and matches the last words matches all of them too.
    if not everywhere or not found.chunks[0]:
        return False
    for count, at in enumerate(_begins(found, command, unknown=unknown)):
        if count == _MAX_BEGINS or _may_be(found, command.words[at:], command.takes_more):
            return True
    return False


def _begins(found: _Pattern, command: SimpleCommand, *, unknown: bool) -> Iterator[int]:
    """Yield where a command that a pattern names may begin among the words of another one."""
    head = _SPACES.sub(" ", found.chunks[0].partition(" ")[0].rpartition("/")[2])
    for at, word in enumerate(command.words[1:], 1):
        value = word.value
        base = (value or "").rpartition("/")[2]
        if value is None:
            may_begin = unknown
        elif word.is_pattern:
            # `/bin/r? v` is a program by its folder; `src/*` names files.
            is_program = "/" in value and base.strip("*?") != "" and fnmatchcase(found.name, base)
            may_begin = unknown or is_program
        elif _MAY_BE_MORE.search(value):
            is_named = _SPACES.sub(" ", base).startswith(head)
            may_begin = is_named and not is_text(command.words, at)
        else:
            may_begin = base.startswith(head) and value.endswith(found.name)
        if may_begin:
            yield at


def is_text(words: Sequence[Word], at: int) -> bool:
    """Whether a word is the value of an option for text, or code for an interpreter before it."""
    option, equals, _ = words[at].known.partition("=")
    if equals and _TEXT_OPTION.fullmatch(option):
        return True
    before = words[at - 1].known
    if _TEXT_OPTION.fullmatch(before):
        return True
    if before in ("-t", "-g") and any(word.value in _TESTERS for word in words[: at - 1]):
        return True
    if not is_code_option(before):
        return False
    # `docker exec node sh -c 'rm x'` runs a shell: the last word that is no option counts.
    names = (word.known for word in reversed(words[: at - 1]) if not word.known.startswith("-"))
    return interpreter(next(names, "").rpartition("/")[2]) is not None


def _may_be(
    found: _Pattern, words: Sequence[Word], takes_more: bool, first_operand: int = 0
) -> bool:
    if words[0].value is None or words[0].is_pattern:
        _, slash, end = words[0].suffix.rpartition("/")
        # What ends in `/w` is not `rm`: `docker run -v "$X:/w"`.
        is_other = slash and not words[0].is_split and not words[0].is_pattern
        return not (is_other and found.name and found.name != end)
    base = words[0].value.rpartition("/")[2]
    if found.name and found.name != base and not _MAY_BE_MORE.search(words[0].value):
        return False
    name, space, rest = found.chunks[0].partition(" ")
    # A folder of the pattern counts nothing: `/bin/rm:*` is meant for `rm`, however it is called.
    name = name.rpartition("/")[2]
    # The words behind are joined for a name that fits alone: a line may have thousands of them.
    if _HOLE not in base and not _SPACES.sub(" ", base).startswith(_SPACES.sub(" ", name)):
        return False
    texts = [base, *(_text_of(word) for word in words[1:])]
    if takes_more:
        texts.append(_HOLE)
    chunks = (f"{name}{space}{rest}", *found.chunks[1:])
    chunks = tuple(_SPACES.sub(" ", chunk) for chunk in chunks)
    text = _SPACES.sub(" ", " ".join(texts))
    if _may_be_glob(chunks, text):
        return True
    if not found.may_end:
        return False
    return _may_be_glob((*_more(chunks), ""), text) or (
        len(chunks) == 1 and _begins_with(chunks[0].split(" "), texts, first_operand)
    )


def _more(chunks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the chunks of a pattern after which a space and anything may follow."""
    return (*chunks[:-1], f"{chunks[-1]} ")


def _begins_with(wanted: list[str], texts: list[str], first_operand: int) -> bool:
    """Whether a command begins with words, its options left out; theirs have to be anywhere."""
    if texts[0] != wanted[0] or not _has_options(wanted[1:], texts[1:]):
        return False
    left = [word for word in wanted[1:] if not word.startswith("-")]
    may_be_value = False
    for at, text in enumerate(texts[1:], 1):
        if not left or _HOLE in text:
            return True
        may_be_value = may_be_value and at != first_operand
        if text == left[0]:
            left.pop(0)
            may_be_value = False
        elif text.startswith("-"):
            may_be_value = True
        elif may_be_value:  # the value of the option before it, as in `git -C folder push`
            may_be_value = False
        else:
            return False
    return not left


def _has_options(wanted: list[str], texts: list[str]) -> bool:
    """Whether all options of the wanted words are among others, or may be."""
    if any(_HOLE in text for text in texts):
        return True
    letters = {letter for text in texts if text[:1] == "-" and text[:2] != "--" for letter in text}
    for option in wanted:
        if option.startswith("--"):
            # An option may be cut as long as it is plain which one is meant, and have a value.
            starts = (text.partition("=")[0] for text in texts if len(text) > 2)
            if not any(map(option.startswith, starts)):
                return False
        elif option.startswith("-") and not letters.issuperset(option):
            return False
    return True


def _text_of(word: Word) -> str:
    """Return what is known of a word, with a hole for the rest."""
    if word.value is None:
        return word.prefix + _HOLE
    if word.is_pattern:
        known = min(word.value.find(mark) % (len(word.value) + 1) for mark in "*?[")
        return word.value[:known] + _HOLE
    return word.value


def _assignment_text(assignment: Assignment) -> str:
    return f"{assignment.name}={_text_of(assignment.value)}"


def _is_glob(chunks: Sequence[str], text: str) -> bool:
    """Whether a text is that of the chunks, with anything between each two of them."""
    first, last = chunks[0], chunks[-1]
    if len(chunks) == 1:
        return text == first
    if not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    for chunk in chunks[1:-1]:
        # The first place is the best one: what follows has the most room. So no time explodes.
        found = text.find(chunk, at)
        if found < 0:
            return False
        at = found + len(chunk)
    return at + len(last) <= len(text)


def _may_be_glob(chunks: Sequence[str], text: str) -> bool:
    """Whether a text with holes may become that of the chunks; sometimes also where it cannot."""
    if _HOLE not in text:
        return _is_glob(chunks, text)
    # An unquoted variable may become nothing, with the space next to it.
    start = text.partition(_HOLE)[0].rstrip()
    end = text.rpartition(_HOLE)[2].lstrip()
    if len(chunks) == 1:
        return chunks[0].startswith(start) and chunks[0].endswith(end)
    first, last = chunks[0], chunks[-1]
    begins = first.startswith(start) or start.startswith(first.rstrip())
    return begins and (last.endswith(end) or end.endswith(last))


_ONLY_EXACT = names_in(wrappers, scripts, files) | frozenset(
    # Interpreters beside those of `commands.scripts`: whatever stands in what they get.
    "java ed vim vi ex sqlite3 psql mysql jshell ghci erl iex julia cmake ansible mongosh mariadb"
    # Programs that run others.
    " nodemon concurrently watchexec at batch"
    # What they do is all in what they name: a file, an address, a process.
    " curl wget http nc ncat scp sftp kill pkill killall mount umount tar zip"
    # What they do to the rest of the line; and the files that redirections write.
    " alias export declare typeset readonly set shopt unset enable hash [ [[ test >".split()
)
"""Names of which two words would allow too much: only the whole text is suggested."""
_RUNNING_PAIRS = frozenset(
    "uv run, poetry run, pipenv run, conda run, pdm run, hatch run, npm exec, npm x, pnpm exec,"
    " pnpm dlx, yarn exec, yarn dlx, yarn workspace, docker run, docker exec, podman run,"
    " podman exec, kubectl exec, kubectl run, go run, bundle exec, nix run, nix shell, git bisect,"
    " git submodule, git config, uv tool, pipx run, mise exec, direnv exec, opam exec,"
    " cargo install".split(", ")
)
"""Commands that run what their further words say, as the names above."""
_RUNNING_WORDS = frozenset("exec x dlx shell ssh develop debug foreach".split())
"""Sub-commands that do so of any program: `asdf exec`, `adb shell`, `docker compose exec`."""
_GROUPS: Mapping[str, str] = {
    "docker": "builder buildx compose container context image manifest network plugin system"
    " volume",
    "podman": "compose container image machine network pod system volume",
    "git": "bundle lfs notes reflog remote stash svn worktree",
    "uv": "cache pip python",
    "pip": "cache",
    "kubectl": "config rollout set",
    "npm": "cache pkg",
}
"""Second words of which the third one says what is done: `docker compose up`."""
_ALL_GROUPS = frozenset("gh glab aws gcloud az".split())
"""Names of which every second word is such one."""
_SEVERAL_TOOLS = frozenset(
    "git gh glab hg svn docker podman kubectl helm npm pnpm yarn pip pip3 uv poetry pdm hatch"
    " pipenv pipx conda cargo rustup go gem bundle composer dotnet apt apt-get dnf yum pacman brew"
    " nix systemctl terraform aws gcloud az ip npx uvx mise direnv opam toolbus".split()
)
"""Names of which the second word says what is done: the name alone would allow too much."""
_WORD = re.compile("[A-Za-z][A-Za-z0-9:_-]*")
"""A second word that says what is done; no option, and no path with a dot or a slash."""


def suggestion(command: SimpleCommand, *, is_exact: bool) -> str:
    """Return a pattern for commands of the same kind; the text itself where that is too much.

    It is empty where no pattern is sure to cover the command.
    """
    words = command.words
    if not words or words[0].value is None or words[0].is_pattern or command.assignments:
        return ""
    name = without_standard_folder(words[0].value)
    second = command.value(1) or ""
    third = command.value(2) or ""
    base = name.rpartition("/")[2]  # `.venv/bin/python` runs what `python` does
    is_code = interpreter(base) is not None
    if name.startswith("-") or (is_code and all(word.known[:1] == "-" for word in words[1:])):
        # Its program is what it reads, as in `.venv/bin/python - <<E` and `uv run -`.
        return ""
    is_exact = is_exact or is_code or base in _ONLY_EXACT or reaches_further(command, ())
    if is_exact or second in _RUNNING_WORDS or f"{name} {second}" in _RUNNING_PAIRS:
        return _exact(command, name)
    if name in _ALL_GROUPS or second in _GROUPS.get(name, "").split():
        if third in ("run", *_RUNNING_WORDS) or not _WORD.fullmatch(third) or words[2].is_pattern:
            return _exact(command, name)
        return f"{_escaped(name)} {second} {third}:*"
    if _WORD.fullmatch(second) and not words[1].is_pattern:
        return f"{_escaped(name)} {second}:*"
    return _exact(command, name) if name in _SEVERAL_TOOLS else f"{_escaped(name)}:*"


def _exact(command: SimpleCommand, name: str) -> str:
    """Return the text of a command as a pattern; "" if it is not known, or too long to judge."""
    if command.takes_more:
        return ""
    texts = [name]
    for word in command.words[1:]:
        if not word.value or word.is_pattern:
            return ""
        texts.append(word.value)
    exact = " ".join(_escaped(text) for text in texts)
    return exact if len(exact) <= _MAX_EXACT_CHARS and exact.isprintable() else ""


def exact_line(line: str) -> str:
    """Return the pattern that covers a whole line and no other; empty for one that is too long.

    It is compared as a text with the pattern of a line. As a pattern of one command it covers at
    most what has the same words.
    """
    exact = _escaped(line.strip(), "\\*'\"\n\t")
    is_shown = exact.replace("\n", "").replace("\t", "").isprintable()
    return exact if len(exact) <= _MAX_EXACT_CHARS and is_shown else ""


def _escaped(text: str, special: str = "\\*'\" ") -> str:
    """Return a text as a pattern of itself: by default that of a word."""
    return text.translate({ord(char): f"\\{char}" for char in special})
