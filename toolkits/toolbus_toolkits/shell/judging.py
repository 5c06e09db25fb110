"""Judges one simple command of a line: what it reads, changes and deletes, and where."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from toolbus_toolkits.shell.commands import Effect
from toolbus_toolkits.shell.commands.git_repository import config_programs
from toolbus_toolkits.shell.config import is_harmless
from toolbus_toolkits.shell.path_resolver import PathResolver, Target, TooMuch
from toolbus_toolkits.shell.reading import Assignment, Redirection, SimpleCommand, Word
from toolbus_toolkits.workspace import HARMLESS_DEVICES, has_wildcard, is_same_or_below

__all__ = ["Verdict", "changes_meaning", "is_moved_by", "judge_command"]

_OWN_VARIABLE = re.compile("[a-z_][a-z0-9_]*")
"""A variable that no program looks for: those of programs are upper-case, but for proxies."""
_MEANING_IN_LOWER_CASE = re.compile(r"(?:[a-z]+_proxy|histchars|auto_resume|_)")
_READ_BY_BASH = frozenset(
    "CHILD_MAX EDITOR EMACS FCEDIT FIGNORE HOME HOSTFILE HOSTNAME IFS IGNOREEOF INPUTRC LINENO MAIL"
    " MAILCHECK MAILPATH OLDPWD OPTARG PATH PROMPT_DIRTRIM PWD SHELL SHLVL TERM TMOUT TMPDIR"
    " VISUAL".split()
)
"""Variables that bash reads itself. Any other reaches a program only if it is exported."""
_NAMES_ONLY = frozenset(
    "ls dir vdir stat test [ [[ du df find fd tree file realpath readlink basename dirname pathchk"
    " namei cd pushd popd wc".split()
)
"""Commands that show names, sizes and kinds of files, never what they contain: a file with secrets
may be listed."""
_NAMED_IN_FILES = {
    "file": re.compile(r"-[A-Za-z]*f|--files"),
    "du": re.compile(r"--files"),
    "wc": re.compile(r"--files"),
    "tree": re.compile(r"--(?:from|git|info)file"),
}
"""The options of them that read names from a file: what is no name is shown, too."""
_PLACES_NO_LINK = frozenset("mkdir touch rm rmdir unlink tee truncate chmod sed shred >".split())
"""File commands that put no symlink anywhere: what is written below their paths later in a line
stays where it was when the line was judged."""
_NEGATED_SET = re.compile(r"\[[!^]\]?[^\]/]*\]")
_GLOB_OPTION = re.compile(r"(?:-[A-Za-z]*g|--i?glob|--type-add(?=[^:]*:))[=\n]?(?:[^:]*:)?")
"""An option of ripgrep, and what stands before its glob: `-g`, `--type-add x:`."""
_PROCESS = re.compile(r"<\([^()]*\)")
_OPTION = re.compile(r"-[A-Za-z]+|--[a-z-]+")
_IN_WORD = re.compile("[=:@,]")
"""Where a path may begin inside of a word: `if=.env`, `-d@.env`, `host:.ssh`."""


@dataclass(slots=True)
class Verdict:
    """What was found about one command."""

    command: SimpleCommand
    effect: Effect
    reads: list[Target] = field(default_factory=list)
    """The files that it reads, as far as they are known."""
    edits: list[Target] = field(default_factory=list)
    """The files that it changes, as far as they are known."""
    written: list[Word] = field(default_factory=list)
    """The files that its redirections write."""
    doubts: list[str] = field(default_factory=list)
    """Why it counts as more than reading, apart from its effect; each as a sentence."""
    immune: list[str] = field(default_factory=list)
    """Why a person decides whatever the rules allow; each as a sentence."""
    is_outside: bool = False
    """Whether it changes what is not for sure in a working directory, or is no file command."""
    writes_outside: bool = False
    """Whether a file that it names as one that it changes is not for sure in one."""
    is_elsewhere: bool = False
    """Whether it may run in a folder that is not in a working directory: `cd ../other && make`."""

    @property
    def is_read_only(self) -> bool:
        """Whether it changes nothing."""
        reads = self.effect.read_only or self.effect.is_transparent
        return reads and not (self.doubts or self.immune or self.written)

    @property
    def needs_rule(self) -> bool:
        """Whether a rule has to allow the command itself, apart from the files that it writes."""
        return not (self.effect.read_only or self.effect.is_transparent) or bool(self.doubts)

    @property
    def may_place_links(self) -> bool:
        """Whether a symlink may be where it has written."""
        name = self.command.base_name
        if self.effect.read_only:
            return False  # its redirections make plain files
        if name == "cp" and not _has_option(self.command, "rRPda", ""):
            return False  # of a symlink it copies the file
        return bool(self.edits) and name not in _PLACES_NO_LINK


def changes_meaning(
    command: SimpleCommand, environment: Mapping[str, str]
) -> tuple[Assignment, ...]:
    """Return the assignments of a command that may change what it, or a later one, does."""
    found = []
    for assignment in command.assignments:
        name = assignment.name
        # A variable of the line is no program's, unless it stands before one or is exported.
        is_own = not command.words and name not in environment and name not in _READ_BY_BASH
        if is_own and (_OWN_VARIABLE.fullmatch(name) or not assignment.is_exported):
            if not _MEANING_IN_LOWER_CASE.fullmatch(name):
                continue
        # `IFS= read -r x` splits what is read, and nothing else.
        is_of_read = name == "IFS" and command.value(0) == "read"
        if not is_harmless(name) and not is_of_read:
            found.append(assignment)
    return tuple(found)


def judge_command(
    command: SimpleCommand, effect: Effect, resolver: PathResolver, environment: Mapping[str, str]
) -> Verdict:
    """Judge one command, which may have no words, of a line that starts with some variables."""
    verdict = Verdict(command, effect)
    if effect.immune:
        verdict.immune.append(effect.immune)
    for assignment in changes_meaning(command, environment):
        verdict.doubts.append(f"it sets {assignment.name}, which may change what a program does")
    directories = resolver.directories
    if effect.directory is not None:
        directories = resolver.entered(effect.directory)
    inside = (resolver.is_inside(Target("", directory)) for directory in directories)
    verdict.is_elsewhere = not all(inside)
    if effect.read_only and not effect.runs and command.base_name == "git":
        verdict.doubts += _repository_doubts(directories)
    # What is too much for one of them must not hide what another one finds.
    steps: list[Callable[[], None]] = [
        partial(_judge_redirection, verdict, redirection, resolver)
        for redirection in command.redirections
    ]
    for word in effect.deletes:
        steps.append(partial(_judge_deletion, verdict, word, resolver, directories))
    steps.append(partial(_judge_reads, verdict, resolver, directories))
    steps.append(partial(_judge_changes, verdict, resolver, directories))
    for step in steps:
        try:
            step()
        except TooMuch as error:
            verdict.doubts.append(str(error))
    is_file_command = effect.changes is not None or effect.read_only or effect.is_transparent
    if verdict.doubts or not is_file_command or (command.takes_more and effect.changes is not None):
        verdict.is_outside = True
    return verdict


def _repository_doubts(directories: Iterable[str | None]) -> Iterator[str]:
    for directory in directories:
        if directory is None:
            yield "its repository is known only when the line runs"
        elif reason := config_programs(directory):
            yield f"{reason}, and may make git run programs"


def _judge_reads(
    verdict: Verdict, resolver: PathResolver, directories: tuple[str | None, ...]
) -> None:
    effect = verdict.effect
    if effect.read_only and _shows_names(verdict.command):
        return
    if effect.reads is None:
        _judge_any_words(verdict, resolver, directories)
        return
    for word in effect.reads:
        _judge_read(verdict, word, resolver.targets(word, directories), resolver)


def _shows_names(command: SimpleCommand) -> bool:
    """Whether a command shows nothing that a file contains."""
    name = command.base_name
    if name not in _NAMES_ONLY:
        return False
    reads_names = _NAMED_IN_FILES.get(name)
    return reads_names is None or not any(
        reads_names.match(word.known) for word in command.words[1:]
    )


def _judge_any_words(
    verdict: Verdict, resolver: PathResolver, directories: tuple[str | None, ...]
) -> None:
    """Judge the words of a command of which it is not known what they are: each may be a path."""
    changes = verdict.effect.changes or ()
    for word in verdict.command.words[1:]:
        if word in changes:  # judged as what is written
            continue
        for part in _possible_paths(word):
            for target in resolver.targets(part, directories):
                verdict.reads.append(target)
                if secret := resolver.sensitive(target, writes=False):
                    verdict.immune.append(secret)
    if verdict.effect.read_only and any(word.value is None for word in verdict.command.words):
        verdict.doubts.append("what it reads is known only when the line runs")


def _possible_paths(word: Word) -> Iterator[Word]:
    """Yield a word, and the parts of it that may be paths too."""
    if word.value is None:
        yield word
        return
    parts = [word.value]
    if word.value.startswith("-") and not word.value.startswith("--"):
        parts.append(word.value[2:])  # `-f.env`
    if _IN_WORD.search(word.value):
        parts += _IN_WORD.split(word.value)
    for part in parts:
        if part and not _OPTION.fullmatch(part):
            yield replace(word, value=part)


def _judge_read(
    verdict: Verdict, word: Word, targets: Sequence[Target], resolver: PathResolver
) -> None:
    """Judge what is read: no secret, and of a folder that is read as a whole nothing below it."""
    effect = verdict.effect
    # ripgrep leaves out what begins with a dot; the second `-u` changes that.
    reads_hidden = verdict.command.base_name != "rg" or (
        _has_option(verdict.command, "u.", "--hidden")
        or _has_option(verdict.command, "", "--unrestricted")
        or _globs_hidden(verdict.command, resolver)
    )
    for target in targets:
        verdict.reads.append(target)
        if secret := resolver.sensitive(target, writes=False):
            verdict.immune.append(secret)
        elif target.path is None:
            # What a program that is asked about anyhow reads is no further question, and what
            # `<(sort a)` reads is judged with `sort a`.
            if _PROCESS.fullmatch(word.source):
                continue
            if effect.read_only or effect.changes is not None:
                verdict.doubts.append(f"{word.shown} {target.why}")
        elif effect.is_recursive and os.path.isdir(target.path):
            if secret := resolver.secret_below(target.path, hidden=reads_hidden):
                verdict.immune.append(f"it reads all below `{word.source}`, and {secret}")


def _globs_hidden(command: SimpleCommand, resolver: PathResolver) -> bool:
    """Whether a glob of ripgrep may name hidden files: `-g .env`, `-g '*'`."""
    texts = [word.known for word in command.words]
    # Joined with its option a glob stands in one word, else in the next one.
    for text in (*texts, *map("\n".join, pairwise(texts))):
        if option := _GLOB_OPTION.match(text):
            name = text[option.end() :]
            if name.endswith(("*", "]")) or resolver.sensitive(Target(name, None), writes=False):
                return True
    return False


def _judge_redirection(verdict: Verdict, redirection: Redirection, resolver: PathResolver) -> None:
    word = redirection.target
    if word is None:
        return
    value = word.known
    if value.startswith(("/dev/tcp/", "/dev/udp/")):
        verdict.doubts.append(f"`{word.source}` is a connection over the network")
        return
    if value in HARMLESS_DEVICES:
        return
    targets = resolver.targets(word)
    if not redirection.writes:
        for target in targets:
            verdict.reads.append(target)
            if secret := resolver.sensitive(target, writes=False):
                verdict.immune.append(secret)
            elif target.path is None:
                verdict.doubts.append(f"{word.shown} {target.why}")
        return
    if targets:
        verdict.written.append(word)
    _judge_written(verdict, targets, resolver)


def _judge_written(verdict: Verdict, targets: Iterable[Target], resolver: PathResolver) -> None:
    """Judge files that are changed: within a working directory, and none that is sensitive."""
    for target in targets:
        verdict.edits.append(target)
        if reason := resolver.sensitive(target, writes=True):
            verdict.immune.append(reason)
        elif not resolver.is_inside(target) and target.path not in HARMLESS_DEVICES:
            verdict.is_outside = verdict.writes_outside = True


def _judge_changes(
    verdict: Verdict, resolver: PathResolver, directories: tuple[str | None, ...]
) -> None:
    effect = verdict.effect
    if effect.changes is None:
        return
    sources = list(verdict.reads)
    for word in effect.changes:
        targets = resolver.targets(word, directories)
        _judge_written(verdict, targets, resolver)
        if word.is_pattern and word.value is not None:
            # What it matches may be another file by then, but only below this folder.
            folder = re.split(r"[*?\[]", word.value)[0].rpartition("/")[0]
            start = replace(word, value=folder or ".", is_pattern=False)
            if not word.value.startswith("/") or folder:
                _judge_written(verdict, resolver.targets(start, directories), resolver)
        sources += targets
    # Copied into a folder, a file keeps its name there: `cp other/.gitconfig .`
    if not effect.reads and len(effect.changes) < 2:
        return
    folders = [edit.path for edit in verdict.edits if edit.path and os.path.isdir(edit.path)]
    for folder in dict.fromkeys(folders):
        for source in sources:
            if source.path not in (None, folder):
                _judge_copy(verdict, source, folder, resolver)


def _judge_copy(verdict: Verdict, source: Target, folder: str, resolver: PathResolver) -> None:
    """Judge the path that a file or folder gets in a folder, and those of all that is below it."""
    name = source.text.rstrip("/").rpartition("/")[2]
    if name in (".", ".."):
        name = ""
    copy = os.path.join(folder, name)
    copies = [copy]
    # Into a folder that is there already, the rest may follow symlinks of it.
    path = source.path
    if path is not None and source in verdict.reads and os.path.isdir(path) and os.path.isdir(copy):
        start = len(path.rstrip("/")) + 1
        copies += (os.path.join(copy, inner[start:]) for inner in resolver.below(path))
    _judge_written(verdict, [Target(text, resolver.resolved(text)) for text in copies], resolver)


def _judge_deletion(
    verdict: Verdict, word: Word, resolver: PathResolver, directories: tuple[str | None, ...]
) -> None:
    """Let a person decide about what takes away a working directory, a home or the system."""
    if word.value is None:
        name = verdict.command.base_name
        keeps_folders = name == "rm" and not _has_option(verdict.command, "rR", "--recursive")
        if not keeps_folders and name not in ("rmdir", "unlink", "shred"):
            what = f"{word.shown}, which it deletes with all below it,"
            verdict.immune.append(f"{what} is known only when the line runs")
        return
    if word.is_pattern:
        folder, slash, name = word.value.rstrip("/").rpartition("/")
        # All that is in a folder: `*`, `./*`, `*/*`, `[!.]*`
        if not _NEGATED_SET.sub("?", name).strip("*?."):
            start = replace(word, value=folder or slash or ".", is_pattern=has_wildcard(folder))
            _judge_deletion(verdict, start, resolver, directories)
    for target in resolver.targets(word, directories):
        if target.path is None:
            # A name may be anything there; these are the directory itself, and those above it.
            if not target.text.strip("./"):
                verdict.immune.append(f"it deletes `{word.source}`, which {target.why}")
        elif protected := resolver.protected_as(target.path):
            verdict.immune.append(f"it deletes `{word.source}`: {target.path} is {protected}")


def _has_option(command: SimpleCommand, letters: str, long: str) -> bool:
    """Whether a command has one of some letters as an option, also among others (`-fr`).

    Or a long option, also if it is cut (`--recurs`); "" is any long one.
    """
    for word in command.words[1:]:
        value = word.known
        if value == "--":
            return False
        if value.startswith("--"):
            if not long or (len(value) > 2 and long.startswith(value)):
                return True
        elif value.startswith("-") and set(letters) & set(value[1:]):
            return True
    return False


def is_moved_by(placing: Verdict, other: Verdict) -> bool:
    """Whether a command may put a symlink where another one reads or writes."""
    if not placing.may_place_links:
        return False
    placed = [target.path for target in placing.edits if target.path is not None]
    used = [target.path for target in (*other.edits, *other.reads) if target.path is not None]
    return any(is_same_or_below(path, start) for start in placed for path in used)
