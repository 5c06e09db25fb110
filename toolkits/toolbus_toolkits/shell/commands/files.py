"""Commands that create, change, move and delete files, and `find` and `fd`, which look for files.

The latter may run commands for what they find, or delete it.

Source: the manual pages and `--help` of GNU coreutils 9.1 and findutils 4.9, fd 8.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    asking,
    may_be_several,
    row_effect,
    takes_words,
    with_flags,
)
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
        deletes = self._deletes or any(
            body and body[0].known in _DELETING for _, body, _ in self._bodies
        )
        why = self._fault
        if self._fault:
            # The `"$X"` of `find "$X" -name x` is one word, and no command.
            no_commands = [
                word
                for before, word in pairwise(self._words)
                if word.value is None and not may_be_several(word) and before.value not in _RUNS
            ]
            found = tails(self._command)
            runs.extend(run for run in found if run.words[0] not in no_commands)
            deletes = deletes or any(word.value == "-delete" for word in self._words)
        elif self._deletes:
            why = "`-delete` deletes files"
        # Where `-execdir` runs its command is known only when something is found.
        is_elsewhere = any(name in ("-execdir", "-okdir") for name, _, _ in self._bodies)
        return Effect(
            read_only=not why,
            why=why,
            reads=None if self._fault else paths,
            deletes=paths if deletes else (),
            runs=tuple(runs),
            directory=Word("the folder of what is found", None) if is_elsewhere else None,
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


_OPEN_TO_ALL = re.compile(r"[0-7]{0,4}[2367]")
_OPENS_TO_ALL = re.compile(r"(?:.*,)?[ugoa]*[oa][ugoa]*[-+=rxXst]*[+=][rxXst]*w.*")
_MAX_LINKS = 20
"""Each link is combined with each source."""
_ROOT = re.compile(r"/*|/+[^/]+/*|~[^/]*/*|\.\.(?:/+\.\.)*/*")


def _below(folder: Word, path: Word) -> Word:
    """Return where a file arrives that is put into a folder: `cp a/b folder` writes `folder/b`."""
    source = f"{folder.source}/{path.source}"
    name = (path.value or "").rstrip("/").rpartition("/")[2]
    if folder.value is None or folder.is_pattern or name in ("", ".", ".."):
        prefix = folder.prefix if folder.value is None else f"{folder.value}/"
        return Word(source, None, prefix=prefix)
    return Word(source, f"{folder.value}/{name}", is_pattern=path.is_pattern)


def _changes(why: str) -> Callable[[Arguments], Effect]:
    return lambda arguments: Effect(why=why, reads=arguments.paths(), changes=arguments.operands)


def _removes(arguments: Arguments) -> Effect:
    operands = arguments.operands
    return Effect(
        why="it deletes files", reads=arguments.paths(), changes=operands, deletes=operands
    )


def _sources(arguments: Arguments) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the sources of cp and mv, and every path that they may write."""
    operands = arguments.operands
    targets = arguments.values("-t --target-directory")[-1:]
    if targets:
        sources = operands
    else:
        sources, targets = operands[:-1], operands[-1:]
    if arguments.has("-T --no-target-directory"):
        return sources, targets
    # The target may be a folder: `cp x/.bashrc ~` writes `~/.bashrc`.
    return sources, (
        *targets,
        *(_below(target, source) for target in targets for source in sources),
    )


def _copy(arguments: Arguments) -> Effect:
    sources, written = _sources(arguments)
    return Effect(
        why="it copies files",
        reads=tuple(sources),
        is_recursive=arguments.is_recursive(),
        changes=tuple(written),
    )


def _move(arguments: Arguments) -> Effect:
    sources, written = _sources(arguments)
    return Effect(
        why="it moves files",
        reads=tuple(sources),
        changes=(*sources, *written),
        deletes=tuple(sources),
    )


def _link(arguments: Arguments) -> Effect:
    operands = arguments.operands
    if len(operands) == 1 and not arguments.has("-t --target-directory"):
        operands = (*operands, Word(".", "."))
    sources, written = _sources(replace(arguments, operands=operands))
    # What a link leads to counts as changed: later it is written through the link. A relative
    # symlink leads on from the folder of the link.
    if len(sources) > _MAX_LINKS:
        return Effect(why="it makes many links", reads=tuple(sources))
    led_to = tuple(_from_link(link, source) for link in written for source in sources)
    return Effect(why="it makes links", reads=tuple(sources), changes=(*sources, *written, *led_to))


def _from_link(link: Word, source: Word) -> Word:
    text = f"{link.source} -> {source.source}"
    if link.value is None or source.value is None:
        return Word(text, None)
    if source.value.startswith("/"):
        return source
    folder = PurePosixPath(link.value).parent
    return Word(text, f"{folder}/{source.value}", is_pattern=source.is_pattern)


def _tee(arguments: Arguments) -> Effect:
    if not arguments.operands:
        return Effect(read_only=True, reads=())
    return Effect(why="it writes files", reads=(), changes=arguments.operands)


def _chmod(command: SimpleCommand) -> Effect:
    # The mode may begin with `-`: `chmod -w f`. So words are looked at, not options.
    words = command.words[1:]
    values = [word.value for word in words if word.value is not None]
    letters = {letter for value in values if re.fullmatch(r"-[A-Za-z]+", value) for letter in value}
    is_recursive = "R" in letters or "--recursive" in values
    opens = any(_OPEN_TO_ALL.fullmatch(value) or _OPENS_TO_ALL.fullmatch(value) for value in values)
    why = "it changes who may read, write and run files"
    if is_recursive and opens:
        return Effect(why=why, immune="it lets everybody write all files of a folder")
    if is_recursive and any(_ROOT.fullmatch(value) for value in values if value):
        return Effect(why=why, immune="it changes all files of a folder of the system")
    return Effect(why=why)


def _chown(command: SimpleCommand) -> Effect:
    values = [word.value for word in command.words[1:] if word.value]
    is_recursive = any(re.fullmatch(r"-[A-Za-z]*R[A-Za-z]*|--recursive", value) for value in values)
    why = "it changes to whom files belong"
    if is_recursive and any(_ROOT.fullmatch(value) for value in values):
        return Effect(why=why, immune="it changes all files of a folder of the system")
    return Effect(why=why)


_DD_WORDS = re.compile(
    r"(?:bs|cbs|conv|count|ibs|iflag|iseek|obs|oflag|oseek|seek|skip|status)=.*", re.DOTALL
)
_DD_DEVICES = re.compile(r"/dev/(?:null|stdout|stderr|fd/[0-9]+)")


def _dd(command: SimpleCommand) -> Effect:
    files: dict[str, list[Word]] = {"if": [], "of": []}
    fault = "a word is added when it runs" if command.takes_more else ""
    for word in command.words[1:]:
        text = word.known
        name, _, path = text.partition("=")
        if may_be_several(word) and not text.startswith("if="):
            fault = fault or f"`{word.source}` may become an operand of `dd`"
        if name in files:
            value = word.value and path
            files[name].append(replace(word, source=path or word.source, value=value, prefix=path))
        elif word.value is None or not _DD_WORDS.fullmatch(text):
            fault = fault or f"`{word.source}` of `dd` is not known"
    for target in files["of"]:
        path = target.known
        if path.startswith("/dev/") and not _DD_DEVICES.fullmatch(path):
            return Effect(why="it writes to a device", immune=f"it writes to the device `{path}`")
    if fault:
        return Effect(why=fault)
    reads = tuple(files["if"])
    if files["of"]:
        return Effect(why="`of=` writes a file", reads=reads, changes=tuple(files["of"]))
    return Effect(read_only=True, reads=reads)


def _shred(command: SimpleCommand) -> Effect:
    files = tuple(word for word in command.words[1:] if not word.known.startswith("-"))
    effect = Effect(why="it overwrites files", deletes=files)
    if any(word.known.startswith("/dev/") for word in files):
        return replace(effect, immune="it overwrites a device")
    return effect


_COREUTILS = with_flags(
    "--help --version",
    takes_words(
        "mkdir",
        "-p --parents -v --verbose -Z",
        valued="-m --mode",
        optional="--context",
        effect=_changes("it makes folders"),
    ),
    takes_words(
        "touch",
        "-a -c --no-create -f -h --no-dereference -m",
        valued="-d --date -t --time",
        files="-r --reference",
        effect=_changes("it makes files, or sets their times"),
    ),
    takes_words(
        "truncate",
        "-c --no-create -o --io-blocks",
        valued="-s --size",
        files="-r --reference",
        effect=_changes("it cuts files"),
    ),
    takes_words(
        "rm",
        "-f --force -i -I --one-file-system -r -R --recursive -d --dir -v --verbose",
        optional="--interactive --preserve-root",
        asks={"--no-preserve-root": "lets it delete the root of the system"},
        effect=_removes,
    ),
    takes_words(
        "rmdir",
        "--ignore-fail-on-non-empty -v --verbose",
        asks={"-p --parents": "deletes the folders above too"},
        effect=_removes,
    ),
    takes_words("unlink", effect=_removes),
    Command(
        "mv",
        "-b -f --force -i --interactive -n --no-clobber --strip-trailing-slashes -T"
        " --no-target-directory -u --update -v --verbose -Z --context",
        valued="-t --target-directory",
        optional="--backup",
        effect=_move,
    ),
    Command(
        "cp",
        "-a --archive --attributes-only -b --copy-contents -d -f --force -i --interactive -H -L"
        " --dereference -n --no-clobber -P --no-dereference -p -R -r --recursive"
        " --remove-destination --strip-trailing-slashes -T --no-target-directory -u --update -v"
        " --verbose -x --one-file-system -Z",
        valued="--no-preserve --sparse -t --target-directory",
        optional="--backup --preserve --reflink --context",
        asks={
            "-l --link -s --symbolic-link": "makes links",
            "--parents": "makes folders",
            "-S --suffix": "names further files",
        },
        recursive="-R -r --recursive -a --archive",
        effect=_copy,
    ),
    Command(
        "ln",
        "-b -f --force -i --interactive -L --logical -n --no-dereference -P --physical -r"
        " --relative -s --symbolic -T --no-target-directory -v --verbose",
        valued="-t --target-directory",
        optional="--backup",
        asks={"-d -F --directory": "links folders", "-S --suffix": "names further files"},
        effect=_link,
    ),
    Command(
        "install",
        "-b -c -C --compare -p --preserve-timestamps -T --no-target-directory -v --verbose",
        valued="-m --mode -t --target-directory",
        optional="--backup",
        asks={
            "-s --strip --strip-program": "runs a program",
            "-o --owner -g --group": "changes to whom files belong",
            "-d --directory -D": "makes folders",
        },
        effect=_copy,
    ),
    Command(
        "tee",
        "-a --append -i --ignore-interrupts -p",
        optional="--output-error",
        effect=_tee,
    ),
)

ROWS: tuple[Command, ...] = (*_COREUTILS, _FD, replace(_FD, name="fdfind"))

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "find": lambda command: _Find(command).effect(),
    "fd, fdfind": _fd,
    "chmod": _chmod,
    "chown, chgrp": _chown,
    "dd": _dd,
    "shred": _shred,
    "split, csplit": asking("writes files"),
    "mktemp": asking("makes a file"),
    "mkfifo": asking("makes a named pipe"),
    "mknod": asking("makes a special file"),
    "link": asking("makes a link"),
    "rsync": asking("copies files, and may delete them"),
    "patch": asking("changes files"),
    "sync": asking("writes what the system has not written yet"),
}
