"""What changes below a folder, or in one file, from the events of the kernel.

Each folder is watched by an open descriptor of it, which was opened step by step from the one at
the top, and never through a symlink: nothing is reported of what is elsewhere, whatever is swapped
meanwhile. A folder that comes later is watched first and listed then, so that what was made in it
before is reported too.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from typing_extensions import TypedDict

from toolbus import ToolFailed
from toolbus.untrusted_text import one_line
from toolbus_toolkits.workspace import inotify
from toolbus_toolkits.workspace.inotify import Event, Inotify
from toolbus_toolkits.workspace.locating import READ, STEP
from toolbus_toolkits.workspace.replacing import is_draft

__all__ = [
    "MAX_DEPTH",
    "VERSION_CONTROL",
    "EventsLost",
    "Kind",
    "NotedChanges",
    "Notice",
    "WaitingChanges",
    "WatchedChange",
    "WatchedTree",
]

# The folders of version control hold copies of what was there, in many files.
VERSION_CONTROL = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")
MAX_DEPTH = 64
"""So many folders deep files are found: each folder on the way is held open here."""
_MAX_WAITING = 20_000
"""With paths of usual length some 4 MB. A slow caller gets a notice that more are lost."""

Kind: TypeAlias = Literal["added", "modified", "deleted", "replaced"]
Notice: TypeAlias = Literal["watching", "missed"]

# A path and whether it is a folder. `gone` is a folder that came and left: it is not reported.
_Waiting: TypeAlias = "dict[tuple[str, bool], Kind | Literal['gone']]"


class NotedChanges(Protocol):
    """Gets what changes."""

    def note(self, path: str, change: Kind, *, is_folder: bool) -> None:
        """Add a change; see `WaitingChanges`."""


class WatchedChange(TypedDict):
    """What became of a file or a folder."""

    path: str
    """As it can be passed to the other tools; that of a folder ends with `/`."""
    change: Literal["watching", "added", "modified", "deleted", "missed", "waiting"]
    """`watching`: changes from now on are reported. `missed`: some changes are lost, look at all
    again. `waiting`: there was none for a while. These three have the path that is watched. A
    folder that is `deleted` is so with all below it."""


class WaitingChanges:
    """The changes below one folder, or of one file, that wait. Used on several threads.

    Args:
        watched: The path that is watched, as results have it.
        folder: That of the folder, which is another one if a file is watched.
    """

    def __init__(self, watched: str, folder: str) -> None:
        self._watched = watched
        self._folder = folder
        self._lock = threading.Lock()
        self._notices: list[Notice] = []
        # In the order of their latest events, so that a folder comes before what was made in it.
        self._waiting: _Waiting = {}

    def announce(self, notice: Notice) -> None:
        """Say that from now on all is reported, for the first time or again; drop what waits."""
        with self._lock:
            self._announce(notice)

    def _announce(self, notice: Notice) -> None:
        self._waiting = {}
        if notice not in self._notices:
            self._notices.append(notice)

    def note(self, path: str, change: Kind, *, is_folder: bool) -> None:
        """Add a change; together with an earlier one of the same path it is one or none.

        Args:
            path: From the folder.
            change: What became of it. Only a folder is `replaced`: its files are other ones.
            is_folder: Whether it is a folder.
        """
        key = (path, is_folder)
        with self._lock:
            earlier = self._waiting.pop(key, None)
            if earlier == "added":
                if change == "deleted":
                    if is_folder:
                        self._waiting[key] = "gone"
                    return
                change = "added"
            elif earlier in ("deleted", "replaced") and change == "added":
                change = "replaced" if is_folder else "modified"
            self._waiting[key] = change
            if len(self._waiting) > _MAX_WAITING:
                self._announce("missed")

    def waiting(self) -> WatchedChange:
        """Return what tells that there was no change for a while."""
        return WatchedChange(path=one_line(self._watched), change="waiting")

    def take(self) -> Iterator[WatchedChange]:
        """Return what is to be reported now."""
        with self._lock:
            notices = self._notices
            self._notices = []
            waiting = self._waiting
            self._waiting = {}
        for notice in notices:
            yield WatchedChange(path=one_line(self._watched), change=notice)
        for path, is_folder, change in _still_true(waiting):
            shown = one_line(os.path.normpath(os.path.join(self._folder, path)))
            if is_folder:
                shown += "/"
            if change == "replaced":
                yield WatchedChange(path=shown, change="deleted")
                change = "added"
            yield WatchedChange(path=shown, change=change)


def _still_true(waiting: _Waiting) -> list[tuple[str, bool, Kind]]:
    """Return what is to be reported: what a folder has taken along that left later is not there."""
    reported: list[tuple[str, bool, Kind]] = []
    later: set[str] = set()
    for (path, is_folder), change in reversed(waiting.items()):
        if change != "gone" and (change == "deleted" or not _is_below(path, later)):
            reported.append((path, is_folder, change))
        if is_folder:
            later.add(path)
    return reported[::-1]


def _is_below(path: str, folders: set[str]) -> bool:
    while folders and "/" in path:
        path = path.rpartition("/")[0]
        if path in folders:
            return True
    return False


_MAX_NAMES = 100_000
"""Names that are kept to tell a new file from one that is replaced; some 10 MB."""
_MAX_READS = 64
"""A folder that is written to all the time would otherwise be read for ever."""
_SCANNED_AT_ONCE = 32
"""Folders that are listed between two looks at the events, of which the kernel keeps 16,384."""

_OF_ENTRIES = (
    inotify.MODIFY
    | inotify.CLOSE_WRITE  # what was written through memory is no MODIFY
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
    | inotify.CREATE
    | inotify.DELETE
    | inotify.EXCL_UNLINK  # not of drafts that have no name
)
_OF_ITSELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_NEW_FOLDER = inotify.ONLYDIR | inotify.MASK_CREATE
_IS_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED
_HAS_COME = inotify.CREATE | inotify.MOVED_TO
_HAS_LEFT = inotify.DELETE | inotify.MOVED_FROM


class EventsLost(Exception):
    """The kernel has dropped events: they came faster than they were read."""


class _Folder:
    """A folder that is watched, or will be.

    Args:
        parent: The folder that it is in; None for the one at the top.
        name: Its name there.
        is_new: Whether it came while its parent was watched, so that all in it is new.
    """

    __slots__ = ("folders", "is_dropped", "is_new", "name", "names", "parent", "watch")

    def __init__(self, parent: _Folder | None, name: str, *, is_new: bool) -> None:
        self.parent = parent
        self.name = name
        self.is_new = is_new
        self.is_dropped = False
        self.watch = -1
        self.folders: dict[str, _Folder] = {}
        self.names: set[str] | None = None

    def steps(self) -> list[str]:
        """Return the names from the folder at the top to it."""
        names = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return names[::-1]

    def path(self, name: str) -> str:
        """Return the path of an entry, from the folder at the top."""
        return "/".join((*self.steps(), name))


class WatchedTree:
    """A folder with all below it, or one file in a folder. Used on one thread.

    Symlinks are not followed. Folders that may not be read are left out, and so are those of
    version control and the drafts of `workspace.replacing`.

    Args:
        open_top: Opens the folder. It is open only while folders are listed: the deletion of an
            open one is reported when it is closed.
        only: The name of the file in it that is watched alone.
        changes: Gets what changes.

    `handle` and `scan` go on with it piece by piece, or `catch_up` as a whole.

    Raises `ToolFailed` if this user watches too much, and what `open_top` raises.
    """

    def __init__(
        self, open_top: Callable[[], int], only: str | None, changes: NotedChanges
    ) -> None:
        self._open_top = open_top
        self._top: int | None = None
        self._only = only
        self._changes = changes
        try:
            self.inotify: Inotify = Inotify()
            """Where events come from."""
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            text = "this host watches, or has opened, as much as it may"
            text += ": fs.inotify.max_user_instances and its open files are limited"
            raise ToolFailed(text, details={"reason": "too_many"}) from None
        self._above: set[int] = set()
        self._by_watch: dict[int, _Folder] = {}
        self._names = 0
        self._keeps_names = True
        self._cookie_of_draft = 0
        self.to_scan: list[_Folder] = []
        """Folders that are not watched yet; see `scan`."""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all watches, and close what is open."""
        self._close_top()
        self.inotify.close()

    def _close_top(self) -> None:
        if self._top is not None:
            os.close(self._top)
            self._top = None

    def _begin(self) -> None:
        top = self._top = self._open_top()
        self._watch_above(top)
        self._root = _Folder(None, "", is_new=False)
        if self._only is None:
            self.to_scan.append(self._root)
            return
        self._watch(self._root, top)
        with suppress(FileNotFoundError):
            os.stat(self._only, dir_fd=top, follow_symlinks=False)
            self._learn(self._root, self._only)
        self._close_top()

    def catch_up(self) -> None:
        """Note all that has changed until now, and watch the folders that have come.

        Raises `EventsLost` and `ToolFailed`.
        """
        # The kernel holds fewer events than are read here.
        for _ in range(_MAX_READS):
            events = self.inotify.read()
            self.handle(events)
            if not events and not self.to_scan:
                return
            while self.to_scan:
                self.scan()
                self.handle(self.inotify.read())

    def check(self) -> None:
        """Look whether the folder was moved before that would be noticed; raise as `open_top`."""
        os.close(self._open_top())

    def _watch_above(self, top: int) -> None:
        """Watch whether a folder above is moved: those below it would get other paths."""
        folder = os.dup(top)
        try:
            while True:
                above = os.open("..", STEP, dir_fd=folder)
                is_end = os.path.samestat(os.fstat(above), os.fstat(folder))
                os.close(folder)
                folder = above
                if is_end:
                    return
                with suppress(PermissionError):
                    self._above.add(self.inotify.add(folder, _OF_ITSELF))
        finally:
            os.close(folder)

    def _watch(self, folder: _Folder, descriptor: int) -> None:
        mask = _OF_ENTRIES | _NEW_FOLDER
        if folder is self._root:
            mask |= _OF_ITSELF
        try:
            folder.watch = self.inotify.add(descriptor, mask)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            text = (
                f"there are too many folders: beside {len(self._by_watch):,} of them, and what"
                " others watch, fs.inotify.max_user_watches allows no more; watch a smaller folder"
            )
            raise ToolFailed(text, details={"reason": "too_large"}) from None
        self._by_watch[folder.watch] = folder

    # Listing

    def scan(self) -> None:
        """Watch and list some of the folders of `to_scan`. Raises `ToolFailed`."""
        if self._top is None:
            self._top = self._open_top()
        for _ in range(min(_SCANNED_AT_ONCE, len(self.to_scan))):
            folder = self.to_scan.pop()
            if not folder.is_dropped:
                self._scan(folder, self._top)
        if not self.to_scan:
            self._close_top()

    def _scan(self, folder: _Folder, top: int) -> None:
        steps = folder.steps()
        # Searches find nothing deeper either, and who makes such a folder must end no watch.
        if len(steps) > MAX_DEPTH:
            self._leave_out(folder)
            return
        try:
            descriptor = _opened(steps, top)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self._leave_out(folder)
            return
        try:
            self._watch(folder, descriptor)
        except (FileExistsError, PermissionError):
            # One that was moved here is watched until its event is read; a mount has two paths.
            self._leave_out(folder)
        else:
            self._list(folder, descriptor)
        finally:
            os.close(descriptor)

    def _leave_out(self, folder: _Folder) -> None:
        if folder.parent is not None:
            folder.parent.folders.pop(folder.name, None)

    def _list(self, folder: _Folder, descriptor: int) -> None:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                if self._is_left_out(name):
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                self._learn(folder, name)
                if folder.is_new:
                    self._changes.note(folder.path(name), "added", is_folder=is_folder)
                if is_folder:
                    self._add(folder, name, is_new=folder.is_new)

    def _add(self, folder: _Folder, name: str, *, is_new: bool) -> None:
        inner = _Folder(folder, name, is_new=is_new)
        folder.folders[name] = inner
        self.to_scan.append(inner)

    def _drop(self, folder: _Folder) -> None:
        """Forget a folder that has left, with all below it."""
        left = [folder]
        while left:
            gone = left.pop()
            left += gone.folders.values()
            gone.is_dropped = True
            self._names -= len(gone.names or ())
            if self._by_watch.pop(gone.watch, None) is not None:
                with suppress(OSError):  # it was deleted
                    self.inotify.remove(gone.watch)

    # Names

    def _is_left_out(self, name: str) -> bool:
        if self._only is not None:
            return name != self._only
        return name in VERSION_CONTROL or is_draft(name)

    def _learn(self, folder: _Folder, name: str) -> None:
        if not self._keeps_names:
            return
        if folder.names is None:
            folder.names = set()
        self._names -= len(folder.names)
        folder.names.add(name)
        self._names += len(folder.names)
        if self._names > _MAX_NAMES:
            self._keeps_names = False
            for watched in self._by_watch.values():
                watched.names = None

    def _forget(self, folder: _Folder, name: str) -> None:
        if folder.names is not None and name in folder.names:
            folder.names.remove(name)
            self._names -= 1

    def _was_there(self, folder: _Folder, event: Event) -> bool:
        """Whether there was something of that name before an event."""
        if self._keeps_names:
            return folder.names is not None and event.name in folder.names
        # A draft takes the place of a file; for a new one it gets a second name, by CREATE.
        if event.mask & inotify.MOVED_TO:
            return event.cookie == self._cookie_of_draft
        return not event.mask & inotify.CREATE

    # Events

    def handle(self, events: Iterable[Event]) -> None:
        """Note what events say.

        Raises `EventsLost`, and `ToolFailed` if what is watched is gone.
        """
        for event in events:
            if event.mask & inotify.Q_OVERFLOW:
                raise EventsLost
            is_of_itself = event.watch in self._above or event.watch == self._root.watch
            if is_of_itself and event.mask & _IS_GONE:
                text = "what is watched was deleted or moved, or a folder above it was"
                raise ToolFailed(text, details={"reason": "no_such_file"})
            folder = self._by_watch.get(event.watch)
            if folder is None:
                continue
            if event.mask & inotify.IGNORED:
                del self._by_watch[event.watch]
            elif event.name:
                self._note(folder, event)

    def _note(self, folder: _Folder, event: Event) -> None:
        if not self._is_left_out(event.name):
            if not event.mask & inotify.ISDIR:
                self._note_file(folder, event)
            elif self._only is None:
                self._note_folder(folder, event)
        elif event.mask & inotify.MOVED_FROM and is_draft(event.name):
            self._cookie_of_draft = event.cookie

    def _note_file(self, folder: _Folder, event: Event) -> None:
        was_there = self._was_there(folder, event)
        change: Kind = "modified"
        if event.mask & _HAS_LEFT:
            if not was_there:
                return
            change = "deleted"
            self._forget(folder, event.name)
        elif event.mask & _HAS_COME:
            if not was_there:
                change = "added"
            self._learn(folder, event.name)
        self._changes.note(folder.path(event.name), change, is_folder=False)

    def _note_folder(self, folder: _Folder, event: Event) -> None:
        was_there = self._was_there(folder, event)
        inner = folder.folders.get(event.name)
        path = folder.path(event.name)
        if event.mask & _HAS_LEFT:
            self._forget(folder, event.name)
            if inner is not None:
                del folder.folders[event.name]
                self._drop(inner)
            if was_there:
                self._changes.note(path, "deleted", is_folder=True)
        elif event.mask & inotify.MOVED_TO or (event.mask & inotify.CREATE and inner is None):
            # One that was made and is known already was found when its parent was listed.
            if inner is not None:
                self._drop(inner)
            self._learn(folder, event.name)
            self._changes.note(path, "replaced" if was_there else "added", is_folder=True)
            self._add(folder, event.name, is_new=True)


def _opened(steps: list[str], top: int) -> int:
    above = os.dup(top)
    try:
        for name in steps[:-1]:
            inner = os.open(name, STEP, dir_fd=above)
            os.close(above)
            above = inner
        return os.open(steps[-1] if steps else ".", READ | os.O_DIRECTORY, dir_fd=above)
    finally:
        os.close(above)
