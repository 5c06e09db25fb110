"""A watch: the thread that reads what changes below a folder, or in one file."""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

from toolbus_toolkits.files.reached import ReachedFiles, failure
from toolbus_toolkits.files.waiting_changes import Notice, WaitingChanges, WatchedChange
from toolbus_toolkits.files.watched_tree import EventsLost, WatchedTree
from toolbus_toolkits.workspace import Location

__all__ = ["Watch"]

_QUIET_S = 0.05
"""After so long without an event the changes are told. Most programs write a file by several calls
within less; each of them would be a change of its own."""
_LATEST_S = 0.5
"""So long after its first event a change is told, whatever follows."""
_SCANNED_AT_ONCE = 32
"""Folders that are listed between two looks at the events, of which the kernel keeps 16,384."""


class Watch:
    """A folder or a file that is watched.

    Args:
        files: The files.
        path: What is watched.
        on_change: Is called on the thread of `run` when there is something to `take`.
    """

    def __init__(self, files: ReachedFiles, path: str, on_change: Callable[[], None]) -> None:
        self._files = files
        self._path = path
        self._on_change = on_change
        self._lock = threading.Lock()
        self._is_stopped = False
        self._wake: int | None = None
        self._changes: WaitingChanges | None = None

    def stop(self) -> None:
        """Let `run` end. From any thread."""
        with self._lock:
            self._is_stopped = True
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def take(self) -> Iterator[WatchedChange]:
        """Return what is to be told now. From any thread."""
        return iter(()) if self._changes is None else self._changes.take()

    def run(self) -> None:
        """Watch until `stop` is called; on a thread of its own.

        Raises `ToolFailed`: what is watched does not exist, or not any more, or it is too much.
        """
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._wake = wake
        try:
            with self._files.failing(self._path), ExitStack() as stack:
                top, only, changes = self._found()
                stack.callback(os.close, top)
                self._changes = changes
                notice: Notice | None = "watching"
                while not self._is_stopped:
                    with closing(WatchedTree(top, only, changes)) as tree:
                        self._check(top, only)
                        notice = self._follow(tree, wake, changes, notice)
        finally:
            with self._lock:
                self._wake = None
                os.close(wake)

    def _found(self) -> tuple[int, str | None, WaitingChanges]:
        """Open what is watched: return its folder, and the name in it if it is a file."""
        with self._files.at(self._path) as location:
            changes = WaitingChanges(_told(self._files, location))
            if location.status is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if stat.S_ISDIR(location.status.st_mode):
                return location.open_folder(), None, changes
            os.close(location.open_file())  # raises for a FIFO and its like
            return os.dup(location.folder), location.name, changes

    def _check(self, top: int, only: str | None) -> None:
        """Raise `ToolFailed` if the path leads elsewhere, now that a move would be noticed."""
        with self._files.at(self._path) as location:
            found = location.status if only is None else os.fstat(location.folder)
            if found is None or not os.path.samestat(found, os.fstat(top)):
                raise failure("no_such_file", "what was to be watched is moved")

    def _follow(
        self, tree: WatchedTree, wake: int, changes: WaitingChanges, notice: Notice | None
    ) -> Notice | None:
        """Tell what changes, after a notice that it is told, until `stop` is called.

        Returns the notice that another tree has to begin with if events were lost.
        """
        poll = select.poll()
        poll.register(tree.inotify.descriptor, select.POLLIN)
        poll.register(wake, select.POLLIN)
        first: float | None = None
        latest = 0.0
        while not self._is_stopped:
            if not tree.to_scan:
                if notice is not None:
                    changes.announce(notice)
                    notice = None
                    self._on_change()
                left_s = None
                if first is not None:
                    left_s = min(latest + _QUIET_S, first + _LATEST_S) - time.monotonic()
                    if left_s <= 0:
                        first = None
                        self._on_change()
                        continue
                poll.poll(None if left_s is None else left_s * 1000)
            events = tree.inotify.read()
            if not events and not tree.to_scan:
                continue
            latest = time.monotonic()
            if notice is None and first is None:
                first = latest
            try:
                tree.handle(events)
            except EventsLost:
                return notice or "missed"
            for _ in range(min(_SCANNED_AT_ONCE, len(tree.to_scan))):
                tree.scan()
        return notice


def _told(files: ReachedFiles, location: Location) -> str:
    """Return a real path as callers get it: from the first root, or absolute."""
    return location.relative if location.root == files.roots.folders[0] else location.path
