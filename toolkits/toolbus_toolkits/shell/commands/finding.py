"""`find` and `fd`, which look for files and may run commands for them or delete them.

Source: find(1), GNU findutils 4.9; fd(1), fd 8.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from toolbus_toolkits.shell.commands.table import Command, Effect, may_be_several, row_effect
from toolbus_toolkits.shell.commands.wrappers import tails
from toolbus_toolkits.shell.reading import SimpleCommand, Word

__all__ = ["ROWS", "SPECIAL"]

_OPERATORS = frozenset("( ) ! , -a -and -o -or -not".split())
_PLAIN = frozenset(
    "-daystart -depth -d -follow -ignore_readdir_race -noignore_readdir_race -mount -xdev -noleaf"
    " -nowarn -warn -empty -executable -readable -writable -false -true -nouser -nogroup -print"
    " -print0 -ls -prune -quit -help --help -version --version".split()
)
_WITH_VALUE = frozenset(
    "-maxdepth -mindepth -regextype -amin -anewer -atime -cmin -cnewer -ctime -fstype -gid -group"
    " -ilname -iname -inum -ipath -iwholename -iregex -links -lname -mmin -mtime -name -newer"
    " -path -perm -regex -samefile -size -type -uid -used -user -wholename -xtype -printf"
    " -context".split()
)
_NEWER = re.compile(r"-newer[aBcm][aBcmt]")
_RUNS = frozenset("-exec -execdir -ok -okdir".split())
_WRITES = frozenset("-fprint -fprint0 -fls -fprintf".split())

_DELETING = frozenset("rm unlink shred /bin/rm /usr/bin/rm".split())
_MAX_COMMANDS = 100
"""So many commands are made of those that find runs, one for each folder where it looks: what it
finds begins with that. Beyond, it is not known with what it begins."""


class _Find:
    """Reads the words of find in their order."""

    def __init__(self, command: SimpleCommand) -> None:
        self._command = command
        self._words = command.words
        self._position = 1
        self._paths: list[Word] = []
        self._bodies: list[tuple[str, Sequence[Word], bool]] = []
        self._deletes = False
        self._fault = ""

    def effect(self) -> Effect:
        self._read_paths()
        while not self._fault and self._position < len(self._words):
            self._read_expression()
        if self._command.takes_more:
            self._note("a word that is added when it runs may be an action")
        paths = tuple(self._paths) or (Word(".", "."),)
        runs = [run for body in self._bodies for run in self._commands(*body)]
        # As `-delete`: which files are found is not looked at, so it may be all of them.
        gone = any(body and body[0].known in _DELETING for _, body, _ in self._bodies)
        # Where `-execdir` runs its command is known only when something is found.
        is_elsewhere = any(name in ("-execdir", "-okdir") for name, _, _ in self._bodies)
        directory = Word("the folder of what is found", None) if is_elsewhere else None
        if self._fault:
            # The `"$X"` of `find "$X" -name x` is one word, and no command.
            no_commands = [
                word
                for before, word in pairwise(self._words)
                if word.value is None and not may_be_several(word) and before.value not in _RUNS
            ]
            found = tails(self._command)
            runs.extend(run for run in found if run.words[0] not in no_commands)
            named = any(word.value == "-delete" for word in self._words)
            deletes = paths if self._deletes or named or gone else ()
            return Effect(why=self._fault, deletes=deletes, runs=tuple(runs), directory=directory)
        if self._deletes:
            return Effect(
                why="`-delete` deletes files",
                reads=paths,
                deletes=paths,
                runs=tuple(runs),
                directory=directory,
            )
        return Effect(
            read_only=True,
            reads=paths,
            deletes=paths if gone else (),
            runs=tuple(runs),
            directory=directory,
        )

    def _note(self, fault: str) -> None:
        self._fault = self._fault or fault

    def _read_paths(self) -> None:
        words = self._words
        while self._position < len(words) and words[self._position].value in ("-H", "-L", "-P"):
            self._position += 1
        while self._position < len(words):
            word = words[self._position]
            text = word.known
            if word.value in _OPERATORS or text.startswith("-"):
                return
            if not text or text[0] in "*?[" or (word.value is None and word.is_split):
                self._note(f"`{word.source}` may become an action of `find`")
            self._paths.append(word)
            self._position += 1

    def _read_expression(self) -> None:
        word = self._words[self._position]
        self._position += 1
        name = word.value
        if name is None or may_be_several(word):
            self._note(f"`{word.source}` may become an action of `find`")
        elif name in _PLAIN or name in _OPERATORS:
            return
        elif name in _WITH_VALUE or _NEWER.fullmatch(name):
            self._read_value(name)
        elif name in _RUNS:
            self._read_command(name)
        elif name == "-delete":
            self._deletes = True
        elif name in _WRITES:
            self._note(f"`{name}` writes a file")
        else:
            self._note(f"`{name}` of `find` is not known")

    def _read_value(self, name: str) -> None:
        if self._position >= len(self._words):
            self._note(f"`{name}` has no value")
            return
        value = self._words[self._position]
        self._position += 1
        text = value.known
        # `-name *` becomes several words if files match, and one of them may be named `-delete`.
        is_split = value.value is None and value.is_split
        if is_split or (value.is_pattern and text[:1] in ("*", "?", "[", "-", "")):
            self._note(f"`{value.source}` may become an action of `find`")

    def _read_command(self, name: str) -> None:
        body: list[Word] = []
        while self._position < len(self._words):
            word = self._words[self._position]
            self._position += 1
            if word.value == ";":
                self._bodies.append((name, body, False))
                return
            if word.value == "+" and body and body[-1].value == "{}":
                self._bodies.append((name, body, True))
                return
            if may_be_several(word):
                self._note(f"`{word.source}` may end the command of `{name}`")
            body.append(word)
        self._note(f"the command of `{name}` has no end")

    def _commands(self, name: str, body: Sequence[Word], adds: bool) -> list[SimpleCommand]:
        # What is found begins with the folder where the search began, so that it is no option.
        texts = [path.known for path in self._paths] or ["."]
        if name in ("-execdir", "-okdir") or len(texts) * len(self._bodies) > _MAX_COMMANDS:
            texts = [""]
        return [
            SimpleCommand(
                tuple(_found(word, text) for word in body),
                source=" ".join(word.source for word in body),
                takes_more=adds,
            )
            for text in texts
            if body
        ]


def _found(word: Word, path: str) -> Word:
    if word.value is None or "{}" not in word.value:
        return word
    before = word.value.partition("{}")[0]
    return replace(word, value=None, prefix=before + path)


_FD = Command(
    "fd",
    "-H --hidden -I --no-ignore -u --unrestricted --no-ignore-vcs --no-ignore-parent -s"
    " --case-sensitive -i --ignore-case -g --glob --regex -F --fixed-strings -a --absolute-path -L"
    " --follow -p --full-path -0 --print0 -1 --prune -q --quiet --show-errors --one-file-system -h"
    " --help -V --version",
    valued="-d --max-depth --min-depth --exact-depth -t --type -e --extension -S --size"
    " --changed-within --changed-before -o --owner -E --exclude -c --color -j --threads"
    " --max-results --path-separator",
    files="--base-directory --search-path",
    asks={
        "-x --exec -X --exec-batch": "runs a command for each file",
        "-l --list-details": "runs `ls`",
    },
    leading=1,
)


def _fd(command: SimpleCommand) -> Effect:
    effect = row_effect(_FD, command)
    return effect if effect.read_only else replace(effect, runs=tails(command))


ROWS: tuple[Command, ...] = (_FD, replace(_FD, name="fdfind"))

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "find": lambda command: _Find(command).effect(),
    "fd": _fd,
    "fdfind": _fd,
}
