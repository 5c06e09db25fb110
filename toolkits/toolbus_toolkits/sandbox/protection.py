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
from glob import glob
from itertools import chain
from pathlib import Path

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
_OF_GIT = ("hooks", "config", "modules", "config.worktree", "commondir", "worktrees/*/commondir")
"""What makes git run a program. A commit changes all else in `.git`."""
_PLACEHOLDER = b"./."
"""The text of a file `commondir`, which names the folder with the hooks and the config: here the
one that it is in, as without the file. By its words such a file is known as one that was made."""
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
    placeholders: tuple[str, ...]
    """Files that were made, so that no program makes others. They can be removed later."""


def find_protection(
    folders: Iterable[str], hidden: Iterable[str], *, fills_git: bool
) -> Protection:
    """Look for secrets and settings in folders.

    Args:
        folders: Real paths.
        hidden: What is not looked at, since it cannot be read.
        fills_git: Make a folder `hooks` and a file `commondir` in each `.git` without one, so that
            no program makes them.

    Raises:
        SandboxUnavailable: There are more than 50,000 files, a folder that cannot be looked
            through, or settings that are symlinks.
    """
    search = _Search(tuple(hidden), fills_git)
    for folder in folders:
        search.look(folder)
    return Protection(tuple(search.secrets), tuple(search.settings), tuple(search.placeholders))


def remove_placeholders(paths: Iterable[str]) -> None:
    """Remove files that `find_protection` has made, if they are still those."""
    for path in paths:
        with contextlib.suppress(OSError):
            if Path(path).read_bytes() == _PLACEHOLDER:
                os.unlink(path)


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
    def __init__(self, hidden: tuple[str, ...], fills_git: bool) -> None:
        self.secrets: list[str] = []
        self.settings: list[str] = []
        self.placeholders: list[str] = []
        self._hidden = frozenset(hidden)
        self._fills_git = fills_git
        self._left = MAX_FILES

    def look(self, root: str) -> None:
        folders = [(root, False)]
        while folders:
            folder, is_protected = folders.pop()
            for entry in self._entries(folder):
                is_below = is_protected
                if _concerns(entry.name):
                    judged = self._judge(entry, root, is_protected)
                    if judged is None:
                        continue
                    is_below = judged
                if entry.is_dir(follow_symlinks=False) and entry.path not in self._hidden:
                    folders.append((entry.path, is_below))

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        entries = []
        try:
            with os.scandir(folder) as found:
                for entry in found:
                    entries.append(entry)
                    self._left -= 1
                    if self._left < 0:
                        text = f"there are more than {MAX_FILES} files to look through for secrets"
                        text += ": name smaller folders, or set protect to false"
                        raise SandboxUnavailable(text)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            # The owner of a folder could open it later: then it is no folder without secrets.
            if isinstance(error, SandboxUnavailable) or _may_open(folder):
                raise SandboxUnavailable(f"{folder!a} cannot be looked through: {error}") from None
        return entries

    def _judge(self, entry: os.DirEntry[str], root: str, is_protected: bool) -> bool | None:
        """Note a secret or a setting; return whether what is below is protected by now.

        None means that nobody looks below.
        """
        if entry.path in self._hidden:
            return None
        if entry.is_symlink():
            self._note_symlink(entry, root, is_protected)
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

    def _note_symlink(self, entry: os.DirEntry[str], root: str, is_protected: bool) -> None:
        """Note where a secret is that a symlink names, and refuse settings that are symlinks."""
        path = os.path.relpath(entry.path, root)
        if _names().reason(path, writes=False):
            target = os.path.realpath(entry.path)
            if is_below_any(target, (root,)) and os.path.exists(target):
                self.secrets.append(target)
        elif not is_protected and _names().reason(path, writes=True):
            raise SandboxUnavailable(f"{entry.path!a} is a symlink, which cannot be protected")

    def _note_git(self, path: str) -> None:
        common = f"{path}/commondir"
        if self._fills_git:
            with contextlib.suppress(OSError):  # its user cannot write to it, nor can the program
                os.makedirs(f"{path}/hooks", exist_ok=True)
            with contextlib.suppress(OSError), open(common, "xb") as file:
                file.write(_PLACEHOLDER)
        if os.path.exists(common):
            self.placeholders.append(common)
        for setting in chain.from_iterable(glob(name, root_dir=path) for name in _OF_GIT):
            if os.path.islink(f"{path}/{setting}"):
                text = f"{f'{path}/{setting}'!a} is a symlink, which cannot be protected"
                raise SandboxUnavailable(text)
            self.settings.append(f"{path}/{setting}")


def _may_open(folder: str) -> bool:
    try:
        return os.getuid() in (0, os.lstat(folder).st_uid)
    except OSError:
        return True


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
