"""The files that words of one line may name, from every directory it may be in.

Nothing here changes a file. What is looked at is bounded for each line: 10,000 entries of folders,
for patterns and for folders that are read as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from toolbus_toolkits.shell.reading import Word
from toolbus_toolkits.workspace import (
    ProcessPath,
    Roots,
    SensitivePaths,
    UnresolvedPath,
    has_wildcard,
    link_target,
    resolve,
)

__all__ = ["PathResolver", "Target", "TooManyWords", "TooMuch"]

_MAX_ENTRIES = 10_000
"""A repository of usual size; some 40 ms."""
_MAX_WORDS = 20_000
"""How many words of one line are looked at, each once for each directory: some 100 ms."""
_MAX_DIRECTORIES = 16
"""How many directories a line may be in before they count as unknown."""
_SETS = re.compile(r"\[[!^]?\]?(?:\[[:.=]\w+[:.=]\]|[^\]/])*\]")
_WITHOUT_QUOTES = str.maketrans("", "", "'\"\\")
_DESCRIPTORS = re.compile(r"/dev/fd/\d+|/dev/std(?:in|out|err)|/proc/self/fd/\d+")
"""Files that the command has already."""
_OF_PROCESS = "leads through a process to a file that may be any"
"""Why `/proc/self/root/etc/shadow` is not known."""


class TooMuch(Exception):
    """There are more files than are looked at for one line; why, as a clause."""


class TooManyWords(Exception):
    """The line has more words than are looked at."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file that a word may name."""

    text: str
    """As it is written, as far as that is known."""
    path: str | None
    """Resolved; None where that is not known."""
    why: str = ""
    """Why it is not known, as a clause that follows the word."""


class PathResolver:
    """What one line may reach, at the moment when it is assessed.

    The home is that of its user; "" if that is not known.
    """

    def __init__(
        self, directory: str, *, home: str, roots: Roots, sensitive: SensitivePaths
    ) -> None:
        self._look = cache(link_target)  # of this moment alone
        self._roots = roots
        self._sensitive = sensitive
        self._entries_left = _MAX_ENTRIES
        self._words_left = _MAX_WORDS
        self._home = self.resolved(home) if home else None
        self.directories: tuple[str | None, ...] = (self.resolved(directory),)
        """Where the line may be: by real paths, and by the names that it came by; None among them
        if it may be anywhere."""

    def resolved(self, path: str, directory: str = "/") -> str | None:
        """Return what a path names; None if it names nothing that can be found."""
        try:
            return resolve(path, directory, self._look)
        except UnresolvedPath:
            return None

    def entered(self, word: Word | None) -> tuple[str | None, ...]:
        """Return the directories that a change to a directory, or to the home, may lead to."""
        if word is None:
            return (self._home,)
        if word.value == "-":
            return (None,)
        found: list[str | None] = [target.path for target in self.targets(word)]
        if word.value is not None:
            # `cd` goes up by names where commands go up by folders: behind a symlink these differ.
            for directory in self.directories:
                if directory is not None:
                    found.append(os.path.normpath(os.path.join(directory, word.value)))
        return tuple(dict.fromkeys(found)) or (None,)

    def enter(self, directories: Iterable[str | None], *, is_certain: bool = False) -> None:
        """Let the line be in directories from now on.

        Unless it is certain that what follows runs only after the change, it may be where it was.
        """
        if not is_certain:
            directories = (*self.directories, *directories)
        self.directories = tuple(dict.fromkeys(directories))
        if len(self.directories) > _MAX_DIRECTORIES:
            self.directories = (*self.directories[:1], None)

    def targets(
        self, word: Word, directories: tuple[str | None, ...] | None = None
    ) -> tuple[Target, ...]:
        """Return the files that a word may name; by default where the line may be.

        Raises `TooMuch` for a pattern with too many files, and `TooManyWords`.
        """
        if word.value is None:
            # What is written of it may tell enough: `"$X/.env"`, `.ssh/$X`.
            written = word.source.translate(_WITHOUT_QUOTES)
            why = "is known only when the line runs"
            return tuple(Target(text, None, why) for text in {written, word.prefix})
        if not word.value or _DESCRIPTORS.fullmatch(word.value):
            return ()
        found = []
        for directory in directories or self.directories:
            if directory is None and not word.value.startswith("/"):
                why = "is in a directory that is known only when the line runs"
                found.append(Target(word.value, None, why))
                continue
            base = directory or "/"
            self._words_left -= 1
            if self._words_left < 0:
                raise TooManyWords
            texts: Iterable[str] = (word.value,)
            if word.is_pattern:
                texts = self._matching(word.value, base)
            for text in texts:
                found.append(self._target(text, base))
        return tuple(found)

    def _target(self, text: str, directory: str) -> Target:
        try:
            return Target(text, resolve(text, directory, self._look))
        except ProcessPath:
            return Target(text, None, _OF_PROCESS)
        except UnresolvedPath as error:
            return Target(text, None, f"cannot be found: {error}")

    def _matching(self, pattern: str, directory: str) -> list[str]:
        """Return what bash may replace a pattern by; the pattern itself if nothing matches.

        It may be more than bash finds: a quoted `*` counts as one here.
        """
        found = [""]
        for number, name in enumerate(pattern.split("/")):
            separator = "/" if number else ""
            if not has_wildcard(name):
                found = [f"{start}{separator}{name}" for start in found]
                continue
            matches = re.compile(_regex_of(name), re.DOTALL).fullmatch
            next_found = []
            for start in found:
                prefix = f"{start}{separator}"
                for entry in self._entries(os.path.join(directory, prefix) or "/"):
                    is_hidden = entry.name.startswith(".") and not name.startswith(".")
                    if not is_hidden and matches(entry.name):
                        next_found.append(f"{prefix}{entry.name}")
            found = next_found
        if not has_wildcard(name):  # it was added to what is there, and may not be there itself
            found = [path for path in found if os.path.lexists(os.path.join(directory, path))]
        return found or [pattern]

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            entries = os.scandir(folder)
        except (OSError, ValueError):
            return
        with entries:
            for entry in entries:
                self._entries_left -= 1
                if self._entries_left < 0:
                    raise TooMuch("there are too many files to look at each")
                yield entry

    def below(self, folder: str, *, hidden: bool = True) -> Iterator[str]:
        """Yield all paths below a resolved folder, through symlinks too. Raises `TooMuch`."""
        left = [folder]
        entered = {folder}
        while left:
            for entry in self._entries(left.pop()):
                if entry.name.startswith(".") and not hidden:
                    continue
                path = entry.path
                yield path
                if entry.is_symlink():
                    target = self.resolved(path)
                    if target is None or target in entered or not os.path.isdir(target):
                        continue
                    entered.add(target)
                    left.append(path)
                elif entry.is_dir(follow_symlinks=False):
                    entered.add(path)
                    left.append(path)

    def sensitive(self, target: Target, *, writes: bool) -> str:
        """Return why a person decides about a file, as a clause with its name; else empty."""
        if target.why == _OF_PROCESS:
            return f"`{target.text}` {target.why}"
        for path in (target.text, target.path):
            if path and (reason := self._sensitive.reason(path, writes=writes)):
                return f"`{target.text}` {reason}"
        return ""

    def secret_below(self, folder: str, *, hidden: bool = True) -> str:
        """Return the same for the first file below a folder that is read. Raises `TooMuch`."""
        for path in self.below(folder, hidden=hidden):
            found = self.sensitive(Target(path, None), writes=False)
            if not found and os.path.islink(path):
                found = self.sensitive(Target(path, self.resolved(path)), writes=False)
            if found:
                return found
        return ""

    def is_inside(self, target: Target) -> bool:
        """Whether a file is for sure inside a working directory."""
        return target.path is not None and self._roots.contains(target.path)

    def protected_as(self, path: str) -> str:
        """Return why nobody should delete a resolved path, to follow "it is"; else empty."""
        if self._home is not None and f"{self._home}/".startswith(f"{path.rstrip('/')}/"):
            return "the home of its user, or has it below it"
        return self._roots.protected_as(path)


def _regex_of(name: str) -> str:
    """Return a regular expression for all that a name of a pattern may match, and some more."""
    found = ""
    at = 0
    for match in _SETS.finditer(name):
        found += _wildcards(name[at : match.start()])
        # A set of characters is one of them; a quoted one stands for itself.
        found += f"(?:.|{re.escape(match.group())})"
        at = match.end()
    return found + _wildcards(name[at:])


def _wildcards(text: str) -> str:
    return re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
