"""Secrets and settings in the folders that a confined program changes, as they are at its start.

Secrets are files with credentials; settings are files that make other programs run commands, such
as hooks of git and tasks of an editor. Both are known by their names, as `workspace` has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from toolbus.forked_children import call_in_children
from toolbus_toolkits.sandbox.plan import SandboxUnavailable, is_below_any
from toolbus_toolkits.workspace import SensitivePaths
from toolbus_toolkits.workspace.sensitive import SETTINGS

__all__ = [
    "CONFINED_FOLDERS",
    "ConfinedFolders",
    "FolderUse",
    "FoldersInUse",
    "Protection",
    "find_protection",
]

MAX_FILES = 50_000
"""The most files that are looked through before each start, in a tenth of a second."""
_SET_UP_S = 10.0
_OF_GIT = ("hooks", "config", "modules", "config.worktree")
"""What makes git run a program. A commit changes all else in `.git`."""
_PUBLIC = frozenset("cacert.pem .env.example .env.sample .env.template .env.dist".split())
"""The certificates that Python packages bring, named as a key; and examples, which git has as a
rule: it takes no file that is hidden."""
_SETTING_NAMES = frozenset(
    entry.rpartition("/")[2] for entries in SETTINGS.values() for entry in entries.split()
)


class FoldersInUse(SandboxUnavailable):
    """Another confined program runs in a folder, which this start has to have alone."""


@dataclass(frozen=True, slots=True)
class Protection:
    """What is kept from a program in the folders that it changes. All paths are real."""

    hide: tuple[str, ...]
    """Secrets: they cannot be read."""
    protected: tuple[str, ...]
    """Settings: they cannot be changed."""


def find_protection(
    folders: Iterable[str], hidden: Iterable[str], *, makes_hooks: bool
) -> Protection:
    """Look for secrets and settings in folders.

    Args:
        folders: Real paths.
        hidden: What is not looked at, since it cannot be read.
        makes_hooks: Make a folder `hooks` in each `.git` without one, so that a program makes none.

    Raises:
        SandboxUnavailable: There are more than 50,000 files, or settings of git are symlinks.
    """
    search = _Search(tuple(hidden), makes_hooks)
    for folder in folders:
        search.look(folder)
    return Protection(tuple(search.secrets), tuple(search.settings))


@lru_cache(maxsize=1)
def _names() -> SensitivePaths:
    return SensitivePaths()


@lru_cache(maxsize=16_384)  # trees have the same names again and again
def _concerns(name: str) -> bool:
    """Whether the last name of a path lets it be a secret or a setting."""
    plain = name.casefold()
    if plain in _PUBLIC:
        return False
    return plain in _SETTING_NAMES or _names().may_end_secret(os.fsencode(name))


class _Search:
    def __init__(self, hidden: tuple[str, ...], makes_hooks: bool) -> None:
        self.secrets: list[str] = []
        self.settings: list[str] = []
        self._hidden = frozenset(hidden)
        self._makes_hooks = makes_hooks
        self._left = MAX_FILES

    def look(self, root: str) -> None:
        folders = [(root, False)]
        while folders:
            folder, is_protected = folders.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:  # its user cannot read it either, or it is a file
                continue
            self._left -= len(entries)
            if self._left < 0:
                text = f"there are more than {MAX_FILES} files to look through for secrets"
                raise SandboxUnavailable(f"{text}: name smaller folders, or set protect to false")
            for entry in entries:
                is_below = is_protected
                if _concerns(entry.name) and not entry.is_symlink():
                    judged = self._judge(entry, root, is_protected)
                    if judged is None:
                        continue
                    is_below = judged
                if entry.is_dir(follow_symlinks=False) and entry.path not in self._hidden:
                    folders.append((entry.path, is_below))

    def _judge(self, entry: os.DirEntry[str], root: str, is_protected: bool) -> bool | None:
        """Note a secret or a setting; return whether what is below is protected by now.

        None means that nobody looks below.
        """
        if entry.path in self._hidden:
            return None
        if entry.name.casefold() == ".git" and entry.is_dir(follow_symlinks=False):
            if not is_protected:
                self._note_git(entry.path)
            return None
        path = os.path.relpath(entry.path, root)
        if _names().reason(path, writes=False):
            self.secrets.append(entry.path)
            return None
        if not is_protected and _names().reason(path, writes=True):
            self.settings.append(entry.path)
            return True
        return is_protected

    def _note_git(self, path: str) -> None:
        if self._makes_hooks:
            with contextlib.suppress(OSError):  # its user cannot write to it, nor can the program
                os.makedirs(f"{path}/hooks", exist_ok=True)
        for name in _OF_GIT:
            setting = f"{path}/{name}"
            if os.path.islink(setting):
                text = f"{setting!a} is a symlink, which cannot be protected"
                raise SandboxUnavailable(text)
            if os.path.exists(setting):
                self.settings.append(setting)


@dataclass(eq=False, slots=True)
class FolderUse:
    """One confined program and the folders that it changes."""

    folders: tuple[str, ...]
    is_alone: bool = True
    """Whether no other confined program of this process could change them at its start."""
    is_setting_up: bool = False
    """Whether its backend still makes what it sees."""
    _all: ConfinedFolders = field(kw_only=True)

    def set_up(self) -> None:
        """Note that the program runs, so that others may. Idempotent."""
        self._all.note(self, has_ended=False)

    def leave(self) -> None:
        """Note that all of the program has ended. Idempotent."""
        self._all.note(self, has_ended=True)


class ConfinedFolders:
    """Which folders are changed by the confined programs of this process. For any thread."""

    def __init__(self) -> None:
        self._reset()
        call_in_children(self._reset)  # what runs belongs to the parent

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._uses: list[FolderUse] = []
        self._on_leave: set[Callable[[], object]] = set()

    def enter(self, folders: tuple[str, ...], *, sets_up: bool) -> FolderUse:
        """Note that a program is about to start, once no other one is being set up in its folders.

        Args:
            folders: What it changes.
            sets_up: Whether something is set up in them while it starts.

        Raises:
            SandboxUnavailable: Another one was not set up in 10 s.
        """
        use = FolderUse(folders, is_setting_up=sets_up, _all=self)
        with self._changed:
            if not self._changed.wait_for(
                lambda: not any(other.is_setting_up for other in self._others(use)), _SET_UP_S
            ):
                raise SandboxUnavailable("another program has not started in 10 s in its sandbox")
            use.is_alone = not self._others(use)
            use.is_setting_up = sets_up and use.is_alone
            self._uses.append(use)
        return use

    def note(self, use: FolderUse, *, has_ended: bool) -> None:
        """Note that a program is set up, or has ended."""
        with self._changed:
            use.is_setting_up = False
            if has_ended and use in self._uses:
                self._uses.remove(use)
                for call in self._on_leave:
                    call()
            self._changed.notify_all()

    def count(self, folders: tuple[str, ...]) -> int:
        """Return how many confined programs can change some of these folders now."""
        with self._changed:
            return len(self._others(FolderUse(folders, _all=self)))

    async def wait_until_free(self, folders: tuple[str, ...]) -> None:
        """Wait until no confined program can change any of these folders."""
        has_left = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(has_left.set)

        with self._changed:
            self._on_leave.add(wake)
        try:
            while self.count(folders):
                await has_left.wait()
                has_left.clear()
        finally:
            with self._changed:
                self._on_leave.discard(wake)

    def _others(self, use: FolderUse) -> list[FolderUse]:
        return [
            other
            for other in self._uses
            if any(is_below_any(folder, use.folders) for folder in other.folders)
            or any(is_below_any(folder, other.folders) for folder in use.folders)
        ]


CONFINED_FOLDERS = ConfinedFolders()
